"""A store that all workers of a region share: a bounded set of blocks, the least recently used goes first."""

from collections import OrderedDict


class Store:
    """At most `max_blocks` keys."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        if key not in self._keys:
            return False
        self._keys.move_to_end(key)  # type: ignore[arg-type]
        return True

    def add(self, key: int) -> None:
        """Write a block."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._max_blocks:
            self._keys.popitem(last=False)
