"""Options of classes for mypyc, where the request path is compiled; without effect at run time."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:
    _T = TypeVar("_T")

    def mypyc_attr(**_options: bool) -> Callable[[_T], _T]:
        """A decorator that leaves the class as it is."""
        return lambda kind: kind
