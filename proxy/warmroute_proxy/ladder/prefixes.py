"""Computes how much of each prompt was seen before, and how much of it caches of a given size would still hold.

A prompt is a list of units: token ids, or pieces of text. The prompt is cut into pages, and a page stands for itself
and all pages before it, as in an engine's prefix cache. Each worker has a cache that drops the least recently used
pages, of each prompt the end first. A cache without a size drops nothing.

Limits: all caches together remember `MAX_PAGES` pages. Beyond that, the largest cache drops its oldest pages, which
`Prefixes.forgot` counts. `MAX_WORKERS` workers have their own caches. All further workers share one cache, and
`Prefixes.has_rest` is set.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

PAGE_UNITS: Final = 16
MAX_PAGES: Final = 20_000_000
MAX_WORKERS: Final = 1_000
_REST: Final = "\0rest"


class Seen(NamedTuple):
    """How many units at a prompt's beginning were seen before, are held by some worker, and by the prompt's worker."""

    reachable: int
    held: int
    chosen: int


class _Cache:
    """The pages of one worker, the least recently used first."""

    def __init__(self, pages: int | None) -> None:
        self._pages = pages
        self._held: OrderedDict[int, None] = OrderedDict()

    def matched(self, chain: Sequence[int]) -> int:
        for number, page in enumerate(chain):
            if page not in self._held:
                return number
        return len(chain)

    def use(self, chain: Sequence[int]) -> None:
        """Add the pages of a prompt, in an order by which the prompt's end will be dropped before its beginning."""
        for page in reversed(chain):
            self._held[page] = None
            self._held.move_to_end(page)
        while self._pages is not None and len(self._held) > self._pages:
            self._held.popitem(last=False)

    def drop(self, pages: int) -> None:
        for _ in range(pages):
            self._held.popitem(last=False)

    def __len__(self) -> int:
        return len(self._held)


class Prefixes:
    """The prompts that were sent so far. `units`: the capacity of each worker's cache; None: no bound."""

    def __init__(self, units: int | None = None, page_units: int = PAGE_UNITS) -> None:
        self._page_units = page_units
        self._pages = None if units is None else max(1, units // page_units)
        self._ever = _Cache(None)
        self._workers: dict[str, _Cache] = {}
        self.forgot = 0
        """Pages that were dropped because there were more than `MAX_PAGES`."""
        self.has_rest = False
        """Whether there were more than `MAX_WORKERS` workers."""

    def add(self, units: Sequence[Hashable], worker: str = "", answer: Sequence[Hashable] = ()) -> Seen:
        """Return what was seen and held before this prompt. Afterwards `worker` holds the prompt and its answer."""
        chain = self._chain(units)
        caches = self._workers
        if worker not in caches and len(caches) >= MAX_WORKERS:
            worker, self.has_rest = _REST, True
        own = caches.setdefault(worker, _Cache(self._pages))
        most = max(0, len(units) - 1) // self._page_units  # the last token of a prompt is always computed
        pages = (
            self._ever.matched(chain),
            max(cache.matched(chain) for cache in caches.values()),
            own.matched(chain),
        )
        if answer:
            chain = self._chain([*units, *answer])
        own.use(chain)
        self._ever.use(chain)
        self._bound()
        return Seen(*(min(count, most) * self._page_units for count in pages))

    def _bound(self) -> None:
        caches = (self._ever, *self._workers.values())
        while (over := sum(map(len, caches)) - MAX_PAGES) > 0:
            largest = max(caches, key=len)
            dropped = min(over, max(1, len(largest) // 2))
            largest.drop(dropped)
            self.forgot += dropped

    def _chain(self, units: Sequence[Hashable]) -> list[int]:
        size, chain, before = self._page_units, [], 0
        for start in range(0, len(units) - size + 1, size):
            before = hash((before, tuple(units[start : start + size])))
            chain.append(before)
        return chain
