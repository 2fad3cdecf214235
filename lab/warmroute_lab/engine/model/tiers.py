"""The cache tiers below the device, as SGLang's HiCache has them with `write_through`, and the listener to changes.

Host: whatever is cached on the device is copied to the host at once. It is a radix cache of its own with its own
capacity: LRU, leaf first, and touched whenever the device's copy of a path is written or used. Evicting on the device
leaves the host's copy. (SGLang evicts from the host only what is not on the device. With a host tier larger than the
device's the pages used last are on both, so that comes to nearly the same.)

Storage: what was copied to the host is given to `Storage` too, an object that the caller may share between ranks and
engines. It answers for the continuation of what device and host have; a hit shorter than a threshold is not fetched
(SGLang: `prefetch_threshold`, 256 tokens).

What a lower tier has is loaded back: it takes device pages like any other part of a prompt, and is resident on the
device, and on the host, when the first prefill step of its request ends.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol

from warmroute_lab.engine.model.radix import RadixCache
from warmroute_lab.engine.model.work import Work

Tier = Literal["device", "host", "storage"]
PREFETCH_THRESHOLD_TOKENS: Final = 256


class TierListener(Protocol):
    """Receives each change of host and, after it, device. Changes of storage are not reported, as in SGLang."""

    def stored(self, work: Work, start: int, stop: int, tier: Tier, *, computed: bool) -> None:
        """Pages `work.keys[start:stop]` are new in a tier. Not `computed`: they were copied from another tier."""

    def removed(self, keys: Sequence[int], tier: Tier) -> None:
        """These pages, a part of one path in its order, were evicted from a tier."""

    def cleared(self) -> None:
        """Device and host are empty."""


class Storage(Protocol):
    """A set of pages by key, such as a `set` or a directory. Its owner bounds it."""

    def __contains__(self, key: object, /) -> bool: ...

    def add(self, key: int, /) -> None: ...


class HostTier(NamedTuple):
    """The capacity of a rank's host tier in tokens, and the storage behind it, if any."""

    tokens: int
    storage: Storage | None = None


class LowerTiers:
    """The host tier of one rank, and the storage behind it. `storage` may be attached and detached when idle."""

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
        """What continues the first `device_pages` of `keys[:limit]`: pages on the host, then pages in storage."""
        limit = min(limit, len(keys))
        path = self.host.hold(keys, limit)  # and so touch it
        known = max(device_pages, self.host.resident(path))
        self.host.release(path)
        return known - device_pages, self._stored(keys, known, limit) - known

    def known(self, keys: Sequence[int], device_pages: int, limit: int) -> int:
        """How many leading pages of `keys[:limit]` all tiers have, or will have, together. Touches nothing."""
        limit = min(limit, len(keys))
        return self._stored(keys, max(device_pages, self.host.known(keys, limit)), limit)

    def _stored(self, keys: Sequence[int], known: int, limit: int) -> int:
        """How far storage continues the first `known` pages."""
        storage = self.storage
        if storage is None or (limit - known) * self.page_size < self.prefetch_threshold_tokens:
            return known
        stop = known
        while stop < limit and keys[stop] in storage:
            stop += 1
        return known if (stop - known) * self.page_size < self.prefetch_threshold_tokens else stop

    def write(self, work: Work, pages: int, computed_from: int) -> None:
        """The first `pages` pages of `work` are on the device: copy what the tiers lack, and touch the rest.

        Pages before `computed_from` were not computed by `work`.
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
    """Report new pages: those loaded from another tier apart from those that `work` computed."""
    if start < min(stop, computed_from):
        listener.stored(work, start, min(stop, computed_from), tier, computed=False)
    if max(start, computed_from) < stop:
        listener.stored(work, max(start, computed_from), stop, tier, computed=True)
