"""What runs until its `with` block ends: engines, proxies, and fleets of them."""

from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T", bound="Stopped")


class Stopped:
    """A `with` block begins it, if it has not begun, and stops it."""

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def begin(self) -> None:
        """Start what has not started."""

    def stop(self) -> None:
        raise NotImplementedError


class Several(list[T], Stopped):
    """A list of such things."""

    def begin(self) -> None:
        for each in self:
            each.begin()

    def stop(self) -> None:
        for each in self:
            each.stop()
