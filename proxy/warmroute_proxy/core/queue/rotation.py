"""What is looked at in turn, some in each round, so that a round takes the same time however many there are."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Rotation(Generic[T]):
    """Things in the order in which they are looked at next."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items: OrderedDict[T, None] = OrderedDict.fromkeys(items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        """Have it looked at, after those that are there."""
        self._items.setdefault(item)

    def remove(self, item: T) -> None:
        """Have it looked at no more."""
        del self._items[item]

    def round(self, most: int) -> Iterator[T]:
        """The next ones. A caller that stops early goes on there in its next round."""
        for _ in range(min(most, len(self._items))):
            item = next(iter(self._items))
            self._items.move_to_end(item)
            yield item
