"""For modules that mypyc compiles: a base class for plain values, and the decorator for mypyc's class options.

mypyc silently ignores keyword options in a class statement (mypy issue 21938): a compiled
`class A(msgspec.Struct, frozen=True, gc=False)` is neither frozen nor `gc=False`. But options of a base class are
inherited, hence `Frozen`. mypyc also replaces the types of fields by coarser ones. So structures that are decoded from
JSON, or from messages of another process, are in modules that are not compiled.
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
    """An immutable value, compared and hashed by its fields, and not tracked by the garbage collector."""
