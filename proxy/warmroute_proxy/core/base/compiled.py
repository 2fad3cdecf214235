"""What modules that may be compiled are built on: the base of their plain values, and options of classes for mypyc.

mypyc silently ignores the options of a class statement behind its bases (mypy issue 21938), so that a compiled
`class A(msgspec.Struct, frozen=True, gc=False)` would be neither. Options of a base are inherited. mypyc also makes
rough types of the fields, so structures that are decoded from JSON, or from another process, are in modules that are
not compiled.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

__all__ = ["Frozen", "mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:
    _T = TypeVar("_T")

    def mypyc_attr(**_options: bool) -> Callable[[_T], _T]:
        return lambda kind: kind


class Frozen(msgspec.Struct, frozen=True, gc=False):
    """A value: compared and hashed by its fields, which never change, and not tracked by the garbage collector."""
