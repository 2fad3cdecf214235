"""The cache tiers below the device, as in SGLang's HiCache with `write_through`, and the listener to changes.

Host: a page that is cached on the device is copied to the host at once. The host is a second radix cache with separate
capacity (LRU, leaf first), in which a page counts as used whenever the device's copy is written or used. Eviction from
the device leaves the host's copy. (SGLang evicts from the host only pages that are not on the device. If the host tier
is larger than the device, the pages used last are on both, so the effect is nearly the same.)

Storage: pages that were copied to the host also go to `Storage`, which the caller may share between ranks and engines.
Storage is looked up for pages that continue those of device and host. A hit shorter than a threshold is not fetched
(SGLang: `prefetch_threshold`, 256 tokens).

Pages of a lower tier are loaded back. They take device pages like any other part of a prompt. When the first prefill
step of the request ends, they are resident on the device and on the host.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol

from warmroute_lab.engine.model.radix import RadixCache
from warmroute_lab.engine.model.work import Work

Tier = Literal["device", "host", "storage"]
PREFETCH_THRESHOLD_TOKENS: Final = 256


class TierListener(Protocol):
    """Receives each change of the host, then of the device. As in SGLang, changes of storage are not reported."""

    def stored(self, work: Work, start: int, stop: int, tier: Tier, *, computed: bool) -> None:
        """Pages `work.keys[start:stop]` are new in a tier. `computed`: False if they came from another tier."""

    def removed(self, keys: Sequence[int], tier: Tier) -> None:
        """These pages were evicted from a tier. They are consecutive pages of one path."""

    def cleared(self) -> None:
        """Device and host are empty."""


class Storage(Protocol):
    """A set of page keys, such as a `set` or a directory. Its owner bounds its size."""

    def __contains__(self, key: object, /) -> bool: ...

    def add(self, key: int, /) -> None: ...


class HostTier(NamedTuple):
    """The capacity of a rank's host tier in tokens, and the storage tier below it, if any."""

    tokens: int
    storage: Storage | None = None


class LowerTiers:
    """The host tier of one rank, and the storage below it. `storage` may be set or removed while the rank is idle."""

    def __init__(self, host: HostTier, page_size: int, listener: TierListener | None) -> None:
        self.host_pages = host.tokens // page_size
        self.page_size = page_size
        self.storage = host.storage
        self.prefetch_threshold_tokens = PREFETCH_THRESHOLD_TOKENS
        self.host = RadixCache(None if listener is None else lambda keys: listener.removed(keys, "host"))
        self.host_written_pages = 0
        self.storage_written_pages = 0
        self._listener = listener

    def lookup(self, keys: Sequence[int], device_pages: int, limit: int) -> tuple[int, int]:
        """How many pages of `keys[:limit]` follow the device's on the host, and how many more follow in storage."""
        limit = min(limit, len(keys))
        path = self.host.hold(keys, limit)  # held and released, the path counts as used
        known = max(device_pages, self.host.resident(path))
        self.host.release(path)
        return known - device_pages, self._stored(keys, known, limit) - known

    def known(self, keys: Sequence[int], device_pages: int, limit: int) -> int:
        """How many leading pages of `keys[:limit]` the tiers together have or will have. Does not count as a use."""
        limit = min(limit, len(keys))
        return self._stored(keys, max(device_pages, self.host.known(keys, limit)), limit)

    def _stored(self, keys: Sequence[int], known: int, limit: int) -> int:
        """How many leading pages all tiers have together, if device and host have the first `known`."""
        storage = self.storage
        if storage is None or (limit - known) * self.page_size < self.prefetch_threshold_tokens:
            return known
        stop = known
        while stop < limit and keys[stop] in storage:
            stop += 1
        return known if (stop - known) * self.page_size < self.prefetch_threshold_tokens else stop

    def write(self, work: Work, pages: int, computed_from: int) -> None:
        """Copy the first `pages` pages of `work`, which are on the device, to the tiers that lack them. The host
        counts all of them as used.

        `work` has computed only the pages from `computed_from` on.
        """
        host = self.host
        path = host.hold(work.keys, pages)
        start = host.resident(path)
        host.evict(min(host.idle_pages, pages - start - (self.host_pages - host.resident_pages)))
        stop = min(pages, start + self.host_pages - host.resident_pages)
        host.fill(path, stop)
        host.release(path)
        self.host_written_pages += stop - start
        if self._listener is not None:
            report_stored(self._listener, work, start, stop, "host", computed_from)
        if self.storage is not None:
            for key in work.keys[start:stop]:
                if key not in self.storage:
                    self.storage.add(key)
                    self.storage_written_pages += 1


def report_stored(listener: TierListener, work: Work, start: int, stop: int, tier: Tier, computed_from: int) -> None:
    """Report new pages, in separate calls for loaded pages and for pages that `work` computed (`computed_from` on)."""
    if start < min(stop, computed_from):
        listener.stored(work, start, min(stop, computed_from), tier, computed=False)
    if max(start, computed_from) < stop:
        listener.stored(work, max(start, computed_from), stop, tier, computed=True)
