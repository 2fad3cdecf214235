"""The KV capacity of one rank: pages reserved for running work, pages cached, and the tiers below.

At admission, a request reserves all its pages that are not cached on the device, including those of its answer, since
the model knows the answer's length. Pages reserved + pages cached never exceed the capacity; idle cached pages are
evicted to free pages. Computed pages move from the reservation into the cache.

A page can be a hit only if all of it was computed, and the last token of a prompt is always computed anew. So the
incomplete last page of a prompt is never a hit. Pages of an answer can be hits only if `Work.keys` has their keys.
"""

from collections.abc import Sequence

from warmroute_lab.engine.model.radix import RadixCache
from warmroute_lab.engine.model.tiers import LowerTiers, TierListener, report_stored
from warmroute_lab.engine.model.work import Work


class KvPool:
    """The device's pages of `page_size` tokens. `tiers`: None without a host tier."""

    def __init__(
        self, capacity_pages: int, page_size: int, tiers: LowerTiers | None, listener: TierListener | None
    ) -> None:
        self.capacity_pages = capacity_pages
        self.page_size = page_size
        self.tiers = tiers
        self.cache = RadixCache(None if listener is None else lambda keys: listener.removed(keys, "device"))
        self.reserved_pages = 0
        self.lookahead_tokens = 0
        """How many tokens after a page must have been computed too: 1 if pages consist of pairs of tokens (EAGLE)."""
        self._listener = listener

    def pages_needed(self, work: Work) -> int:
        """How many pages `work` takes if nothing of it is cached."""
        return -(-(work.prompt_tokens + work.output_tokens * work.width) // self.page_size)

    @property
    def free_pages(self) -> int:
        return self.capacity_pages - self.cache.resident_pages - self.reserved_pages

    def match(self, work: Work) -> int:
        """How many leading pages of a prompt are hits on the device."""
        limit = self._hit_limit(work)
        if work.path is None:
            return self.cache.match(work.keys, limit)[0]
        return min(limit, self.cache.resident(work.path))

    def _hit_limit(self, work: Work) -> int:
        """How many pages of a prompt may be hits: the full pages before its last token."""
        return (work.prompt_tokens - 1 - self.lookahead_tokens) // self.page_size

    def hold(self, work: Work) -> None:
        """Protect the pages of waiting work from eviction, including those that are cached later."""
        work.path = self.cache.hold(work.keys)

    def unpin_last(self, waiting: Sequence[Work]) -> bool:
        """Undo the `hold` of the last work in `waiting` that has one; False if no work has one."""
        for work in reversed(waiting):
            if work.path is not None:
                self.cache.release(work.path)
                work.path = None
                return True
        return False

    def admit(self, work: Work) -> bool:
        """Look up the prompt and reserve its pages, evicting idle pages; False if too few pages are free or idle."""
        cache = self.cache
        limit = self._hit_limit(work)
        if work.path is None:
            matched, from_idle = cache.match(work.keys, limit)
        else:
            matched, from_idle = min(limit, cache.resident(work.path)), 0
        need = self.pages_needed(work) - matched
        missing = need - self.free_pages
        if missing > cache.idle_pages - from_idle:
            return False
        work.kept_pages = matched
        work.cached_tokens = work.computed_tokens = matched * self.page_size
        if self.tiers is not None:
            self._load_back(work, self.tiers, limit)
        if work.path is None:
            if missing > 0:
                work.path = cache.hold(work.keys, matched)  # only the hits: other pages may be evicted
                cache.evict(missing)
            work.path = cache.hold(work.keys, after=work.path)
        else:
            cache.evict(missing)
        self.reserve(work, need)
        return True

    def reserve(self, work: Work, pages: int) -> None:
        work.reserved_pages = pages
        self.reserved_pages += pages

    def keep(self, work: Work, known_tokens: int) -> None:
        """Move the complete pages of the first `known_tokens` from the reservation into the cache."""
        pages, named = (known_tokens - self.lookahead_tokens) // self.page_size, len(work.keys)
        if pages > named:  # noqa: PLR1730 - min() takes three times as long
            pages = named
        count = pages - work.kept_pages
        if count <= 0:
            return
        new = self.cache.fill(work.path, pages)
        work.kept_pages = pages
        work.reserved_pages -= count
        self.reserved_pages -= count
        if self.tiers is not None:  # reported first: pages from storage pass through the host
            self.tiers.write(work, pages, work.cached_tokens // self.page_size)
        if self._listener is not None:
            report_stored(self._listener, work, pages - new, pages, "device", work.cached_tokens // self.page_size)

    def release(self, work: Work) -> None:
        """Let the cached pages of ended work become idle, and free its other pages."""
        self.cache.release(work.path)
        work.path = None
        self.reserved_pages -= work.reserved_pages
        work.reserved_pages = 0

    def flush(self) -> None:
        """Remove the pages that no work holds from device and host, not from storage."""
        self.cache.flush()
        if self.tiers is not None:
            self.tiers.host.flush()
        if self._listener is not None:
            self._listener.cleared()

    def _load_back(self, work: Work, tiers: LowerTiers, limit: int) -> None:
        host, storage = tiers.lookup(work.keys, work.kept_pages, limit)
        work.cached_host_tokens = host * self.page_size
        work.cached_storage_tokens = storage * self.page_size
        work.cached_tokens += work.cached_host_tokens + work.cached_storage_tokens
        work.computed_tokens = work.cached_tokens
