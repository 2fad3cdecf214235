"""What compiled modules share: a base class for plain values, and the decorator for class options of mypyc.

mypyc silently ignores keyword options in a class statement (mypy issue 21938): a compiled
`class A(msgspec.Struct, frozen=True, gc=False)` has neither option. Options of a base class are inherited. mypyc also
coarsens the types of fields. So structures that are decoded from JSON, or from another process, are in modules that are
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
    """An immutable value, compared and hashed by its fields, and not tracked by the garbage collector."""
