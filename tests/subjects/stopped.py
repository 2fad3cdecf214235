"""What runs until its `with` block ends: engines, proxies, and fleets of them."""

from typing import TypeVar

from warmroute_cli.processes import Stopped

__all__ = ["Several", "Stopped"]
T = TypeVar("T", bound="Stopped")


class Several(list[T], Stopped):
    """A list of such things."""

    def begin(self) -> None:
        for each in self:
            each.begin()

    def stop(self) -> None:
        for each in self:
            each.stop()
