"""The paged radix cache: which prompt prefixes are resident, pinned by whom, and what goes first when room is needed.

A page is `page_size` tokens. Its key is a hash chained over the pages before it, starting from the salt, so a key
names the whole path from the root: two prompts share a key exactly when they share the salt and everything up to the
end of that page. A flat map of keys is therefore the radix tree, and "longest cached prefix" is "walk the keys until
one is missing".

Eviction is least recently used, leaf first, pinned pages excepted, at O(1) per page. No tree walk is needed because
of one rule: a path is put into the recency order *deepest page first*. Whoever pins a page pins all its ancestors, so
a parent becomes idle when its child does or later, and stands behind it in the order. The oldest idle page thus
never has a child in the cache.

The number of pages is bounded by the caller, which evicts before it inserts; `Scheduler` holds that bound.
"""

from collections import OrderedDict
from collections.abc import Sequence


class RadixCache:
    """Pages by chained key: `_pins` counts the users of pages in use, `_idle` orders the rest, oldest first."""

    __slots__ = ("_idle", "_pins", "evicted_pages")

    def __init__(self) -> None:
        self._pins: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.evicted_pages = 0

    def __len__(self) -> int:
        return len(self._pins) + len(self._idle)

    @property
    def idle_pages(self) -> int:
        """Pages that nobody uses: what can be evicted."""
        return len(self._idle)

    def match(self, keys: Sequence[int], limit: int) -> tuple[int, int]:
        """How many leading pages of `keys[:limit]` are resident, and how many of those are idle."""
        pins, idle = self._pins, self._idle
        matched = from_idle = 0
        for key in keys[:limit]:
            if key in idle:
                from_idle += 1
            elif key not in pins:
                break
            matched += 1
        return matched, from_idle

    def pin(self, keys: Sequence[int]) -> None:
        """Hold a resident path, given from its root."""
        pins, idle = self._pins, self._idle
        for key in keys:
            if key in pins:
                pins[key] += 1
            else:
                del idle[key]
                pins[key] = 1

    def insert(self, keys: Sequence[int]) -> int:
        """Add the continuation of a path that the caller has pinned, pinned as well. Returns how many are new."""
        pins, idle = self._pins, self._idle
        new = 0
        for key in keys:
            if key in pins:
                pins[key] += 1
                continue
            if key in idle:
                del idle[key]
            else:
                new += 1
            pins[key] = 1
        return new

    def unpin(self, keys: Sequence[int]) -> None:
        """Let go of a whole path, given from its root. Pages that nobody holds become the most recently used."""
        pins, idle = self._pins, self._idle
        for key in reversed(keys):
            users = pins[key] - 1
            if users:
                pins[key] = users
            else:
                del pins[key]
                idle[key] = None

    def evict(self, pages: int) -> None:
        """Drop the `pages` least recently used idle pages. The caller has checked that there are as many."""
        for _ in range(pages):
            self._idle.popitem(last=False)
        self.evicted_pages += max(0, pages)

    def flush(self) -> None:
        """Drop every idle page."""
        self._idle.clear()
