"""What could serve a model, and what of that one request may use.

What decisions need of all workers at once and seldom changes (is each of them ready, are their rates equal) is looked
up once and kept until it does (`Changes`).
"""

from typing import Final

from warmroute_proxy.core.load.load import Changes, WorkerLoad
from warmroute_proxy.core.placement.fleet import Peer, Role, Worker
from warmroute_proxy.core.prompt.facts import Facts

NO_SLOT: Final = -1
"""Where a place lacks a tier."""
MAX_MASKS: Final = 1024


class NoWorker(Exception):
    """Nothing can serve the request. `served`: a worker or peer for the model exists, but none can be used now."""

    def __init__(self, model: str, served: bool) -> None:
        super().__init__(f"no worker {'is available' if served else 'exists'} for model {model!r}")
        self.model = model
        self.served = served


class WorkerState:
    """A worker or a peer region, with its load and its slots in the index: one for each tier that it has.

    `slots` is the mask of them. `holds`: prompts are kept in this worker's cache.
    """

    __slots__ = (
        "holds",
        "host_slot",
        "id",
        "load",
        "on",
        "region",
        "role",
        "slot",
        "slots",
        "store_slot",
        "tiered",
        "worker",
    )

    def __init__(
        self,
        id_: str,
        on: Worker | Peer,
        load: WorkerLoad,
        slot: int,
        host_slot: int = NO_SLOT,
        store_slot: int = NO_SLOT,
    ) -> None:
        self.id = id_
        self.on = on
        self.worker: Worker | None = on if isinstance(on, Worker) else None
        self.role: Role | None = on.role if isinstance(on, Worker) else None
        self.holds = self.role in {"prefill", "aggregated"}
        self.region = on.region if isinstance(on, Peer) else ""
        self.load = load
        self.slot = slot
        self.host_slot = host_slot
        self.store_slot = store_slot
        self.slots = sum(1 << each for each in (slot, host_slot, store_slot) if each != NO_SLOT)
        self.tiered = host_slot != NO_SLOT or store_slot != NO_SLOT


class Choices:
    """Places for a model, at least one. Holders keep prefixes: prefill and aggregated workers.

    `mask` are the slots of holders and peers, of all tiers. `split`: a holder needs a decode worker beside it.
    `plain`: none does, none has a second tier, and all are equally fast, as in most fleets. `s_per_token` is the rate
    of the first holder, `mean_s_per_token` the mean of all (of the peers where there are none).
    """

    __slots__ = (
        "_alike",
        "_alone",
        "_at_by_mask",
        "_at_by_slot",
        "_changes",
        "_ready",
        "_seen",
        "cache_workers",
        "count",
        "decodes",
        "loads",
        "mask",
        "mean_s_per_token",
        "peers",
        "plain",
        "region",
        "s_per_token",
        "split",
    )

    def __init__(
        self,
        region: str,
        cache_workers: tuple[WorkerState, ...],
        decodes: tuple[WorkerState, ...],
        peers: tuple[WorkerState, ...],
        changes: Changes,
    ) -> None:
        self.region = region
        self.cache_workers = cache_workers
        self.decodes = decodes
        self.peers = peers
        self.mask = 0
        for place in (*cache_workers, *peers):
            self.mask |= place.slots
        self.split = any(place.role == "prefill" for place in cache_workers)
        self._alike = not self.split and not any(place.tiered for place in cache_workers)
        self.loads = tuple([place.load for place in cache_workers])
        self.count = len(cache_workers) or len(peers)
        self._at_by_slot = {place.slot: at for at, place in enumerate(cache_workers)}
        self._alone: Choices | None = None
        self._at_by_mask: dict[int, tuple[int, ...]] = {}
        self._changes = changes
        self._seen = -1
        self.look()

    def look(self) -> None:
        """Take in how places are, where any has changed."""
        if self._seen == self._changes.count:
            return
        self._seen = self._changes.count
        everything = (*self.cache_workers, *self.decodes, *self.peers)
        paired = bool(self.decodes) or not self.split
        self._ready = self.count > 0 and paired and all(place.load.ready for place in everything)
        rates_s = [place.load.prefill_s_per_token for place in self.cache_workers or self.peers]
        self.s_per_token = rates_s[0] if rates_s else 0.0
        self.mean_s_per_token = sum(rates_s) / len(rates_s) if rates_s else 0.0
        self.plain = self._alike and rates_s.count(self.s_per_token) == len(rates_s)

    def at(self, mask: int) -> tuple[int, ...]:
        """Which holders have their device's slot in a mask.

        Kept, since few sets of workers drop out of chains together, again and again; all are dropped when `MAX_MASKS`
        are known.
        """
        found = self._at_by_mask.get(mask)
        if found is None:
            if len(self._at_by_mask) >= MAX_MASKS:
                self._at_by_mask.clear()
            found = tuple([at for slot, at in self._at_by_slot.items() if mask >> slot & 1])
            self._at_by_mask[mask] = found
        return found

    def usable(self, facts: Facts, now_s: float, exclude: frozenset[str]) -> "Choices":
        """What of it this request may use. A prefill worker is of no use without a decode worker, nor the reverse."""
        if self._seen != self._changes.count:
            self.look()
        if self._ready and not exclude and facts.allowed_regions is None and (facts.may_forward or not self.peers):
            return self
        found = self._usable(facts, now_s, exclude)
        found.look()
        return found

    def _usable(self, facts: Facts, now_s: float, exclude: frozenset[str]) -> "Choices":
        allowed = facts.allowed_regions
        cache_workers: tuple[WorkerState, ...] = ()
        decodes: tuple[WorkerState, ...] = ()
        peers: tuple[WorkerState, ...] = ()
        if allowed is None or self.region in allowed:
            decodes = _usable(self.decodes, now_s, exclude)
            cache_workers = _usable(self.cache_workers, now_s, exclude)
            if not decodes and self.split:
                cache_workers = tuple([place for place in cache_workers if place.role == "aggregated"])
        if facts.may_forward and self.peers:
            peers = _usable(self.peers, now_s, exclude)
            if allowed is not None:
                peers = tuple([place for place in peers if place.region in allowed])
        if not cache_workers and not peers:
            raise NoWorker(facts.model, served=bool(self.cache_workers or self.peers))
        if len(cache_workers) == len(self.cache_workers) and len(decodes) == len(
            self.decodes
        ):  # all of this region, as mostly
            if len(peers) == len(self.peers):
                return self
            if not peers:
                return self.alone()
        return Choices(self.region, cache_workers, decodes, peers, self._changes)

    def alone(self) -> "Choices":
        """Without the peers. Made once."""
        if self._alone is None:
            self._alone = Choices(self.region, self.cache_workers, self.decodes, (), self._changes)
        return self._alone


def _usable(places: tuple[WorkerState, ...], now_s: float, exclude: frozenset[str]) -> tuple[WorkerState, ...]:
    return tuple([place for place in places if place.load.usable(now_s) and place.id not in exclude])
