"""Collects the workers and peer regions that serve a model, and selects those that one request may use.

Whether all workers are ready, and whether their rates are equal, seldom changes. So these facts are cached until the
health or the rate of some worker changes (`load.availability.Changes`).
"""

from typing import Final

from warmroute_proxy.core.base.role import Role
from warmroute_proxy.core.load.availability import Changes
from warmroute_proxy.core.load.load import WorkerLoad
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

NO_SLOT: Final = -1
"""Stands for the index slot of a tier that a worker does not have."""
MAX_MASKS: Final = 1024
_NONE: Final[frozenset[str]] = frozenset()


class NoWorker(Exception):
    """No worker can serve the request. `served`: workers or peers for the model exist, but they are unusable now."""

    def __init__(self, model: str, served: bool) -> None:
        super().__init__(f"no worker {'is available' if served else 'exists'} for model {model!r}")
        self.model = model
        self.served = served


class WorkerState:
    """A worker or a peer region, with its load and its slots (bits) in the prefix index: one for each of its cache
    tiers.

    `slots`: the mask of all these slots. `caches_prompts`: whether it computes prompts and keeps them in its cache, as
    prefill and aggregated workers do.
    """

    __slots__ = (
        "caches_prompts",
        "host_slot",
        "id",
        "load",
        "region",
        "role",
        "slot",
        "slots",
        "store_slot",
        "target",
        "tiered",
        "worker",
    )

    def __init__(
        self,
        id_: str,
        target: Worker | Peer,
        load: WorkerLoad,
        slot: int,
        host_slot: int = NO_SLOT,
        store_slot: int = NO_SLOT,
    ) -> None:
        self.id = id_
        self.target = target
        self.worker: Worker | None = target if isinstance(target, Worker) else None
        self.role: Role | None = target.role if isinstance(target, Worker) else None
        self.caches_prompts = self.role in {"prefill", "aggregated"}
        self.region = target.region if isinstance(target, Peer) else ""
        self.load = load
        self.slot = slot
        self.host_slot = host_slot
        self.store_slot = store_slot
        self.slots = sum(1 << each for each in (slot, host_slot, store_slot) if each != NO_SLOT)
        self.tiered = host_slot != NO_SLOT or store_slot != NO_SLOT


class Choices:
    """The workers and peer regions that serve a model. `cache_workers`: those that cache prompts (prefill and
    aggregated).

    `mask`: the slots of cache workers and peers, for all tiers. `split`: some cache worker is a prefill worker, which
    needs a decode worker as its partner. `plain`: no cache worker needs a decode worker or has a second tier, and all
    are equally fast, as in most fleets. `s_per_token`: the prefill rate of the first cache worker; `mean_s_per_token`:
    the mean rate of all cache workers. Without cache workers, both are rates of the peers. `known_peers`: also the
    peers that this request may not use; `peer_slots`: the slots of all known peers.
    """

    __slots__ = (
        "_alike",
        "_alone",
        "_changes",
        "_number_by_slot",
        "_numbers_by_mask",
        "_ready",
        "_refreshed_count",
        "cache_workers",
        "count",
        "decode_workers",
        "known_peers",
        "loads",
        "mask",
        "mean_s_per_token",
        "peer_slots",
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
        decode_workers: tuple[WorkerState, ...],
        peers: tuple[WorkerState, ...],
        changes: Changes,
        known_peers: tuple[WorkerState, ...],
    ) -> None:
        self.region = region
        self.cache_workers = cache_workers
        self.decode_workers = decode_workers
        self.peers = peers
        self.known_peers = known_peers
        self.mask = self.peer_slots = 0
        for peer in known_peers:
            self.peer_slots |= peer.slots
        for worker in (*cache_workers, *peers):
            self.mask |= worker.slots
        self.split = any(worker.role == "prefill" for worker in cache_workers)
        self._alike = not self.split and not any(worker.tiered for worker in cache_workers)
        self.loads = tuple([worker.load for worker in cache_workers])
        self.count = len(cache_workers) or len(peers)
        self._number_by_slot = {worker.slot: number for number, worker in enumerate(cache_workers)}
        self._alone: Choices | None = None
        self._numbers_by_mask: dict[int, tuple[int, ...]] = {}
        self._changes = changes
        self._refreshed_count = -1
        self.refresh()

    def refresh(self) -> None:
        """Compute what depends on health and rates again, if health or rates have changed."""
        if self._refreshed_count == self._changes.count:
            return
        self._refreshed_count = self._changes.count
        everything = (*self.cache_workers, *self.decode_workers, *self.peers)
        paired = bool(self.decode_workers) or not self.split
        self._ready = self.count > 0 and paired and all(worker.load.availability.ready for worker in everything)
        rates_s = [worker.load.prefill_s_per_token for worker in self.cache_workers or self.peers]
        self.s_per_token = rates_s[0] if rates_s else 0.0
        self.mean_s_per_token = sum(rates_s) / len(rates_s) if rates_s else 0.0
        self.plain = self._alike and rates_s.count(self.s_per_token) == len(rates_s)

    def numbers_of(self, mask: int) -> tuple[int, ...]:
        """The positions in `cache_workers` of the workers whose device slot is in a mask.

        The result is cached, since the masks of a walk recur: workers tend to hold equal prefixes in the same few sets.
        The cache is emptied at `MAX_MASKS` entries.
        """
        found = self._numbers_by_mask.get(mask)
        if found is None:
            if len(self._numbers_by_mask) >= MAX_MASKS:
                self._numbers_by_mask.clear()
            found = tuple([number for slot, number in self._number_by_slot.items() if mask >> slot & 1])
            self._numbers_by_mask[mask] = found
        return found

    def usable(self, routing: RoutingRequest, now_s: float, exclude: frozenset[str]) -> "Choices":
        """The choices that this request may use. A prefill worker needs a usable decode worker, and the reverse."""
        if self._refreshed_count != self._changes.count:
            self.refresh()
        if self._ready and not exclude and routing.allowed_regions is None and (routing.may_forward or not self.peers):
            return self
        found = self._usable(routing, now_s, exclude)
        found.refresh()
        return found

    def _usable(self, routing: RoutingRequest, now_s: float, exclude: frozenset[str]) -> "Choices":
        allowed = routing.allowed_regions
        cache_workers: tuple[WorkerState, ...] = ()
        decode_workers: tuple[WorkerState, ...] = ()
        peers: tuple[WorkerState, ...] = ()
        here = allowed is None or self.region in allowed
        if here:
            cache_workers, decode_workers = self._usable_here(now_s, exclude)
        if routing.may_forward and self.peers:
            within = self.peers if allowed is None else tuple([peer for peer in self.peers if peer.region in allowed])
            peers = _usable(within, now_s, exclude)
            if not peers and not cache_workers and not (here and self._usable_here(now_s, _NONE)[0]):
                peers = _suspect(within, now_s, exclude)
        if not cache_workers and not peers:
            raise NoWorker(routing.model, served=bool(self.cache_workers or self.peers))
        if len(cache_workers) == len(self.cache_workers) and len(decode_workers) == len(
            self.decode_workers
        ):  # usually all workers of this region are usable
            if len(peers) == len(self.peers):
                return self
            if not peers:
                return self.alone()
        return Choices(self.region, cache_workers, decode_workers, peers, self._changes, self.known_peers)

    def _usable_here(
        self, now_s: float, exclude: frozenset[str]
    ) -> tuple[tuple[WorkerState, ...], tuple[WorkerState, ...]]:
        decode_workers = _usable(self.decode_workers, now_s, exclude)
        cache_workers = _usable(self.cache_workers, now_s, exclude)
        if not decode_workers and self.split:
            cache_workers = tuple([worker for worker in cache_workers if worker.role == "aggregated"])
        return cache_workers, decode_workers

    def alone(self) -> "Choices":
        """These choices without the peers. The object is made only once."""
        if self._alone is None:
            self._alone = Choices(
                self.region, self.cache_workers, self.decode_workers, (), self._changes, self.known_peers
            )
        return self._alone


def _suspect(peers: tuple[WorkerState, ...], now_s: float, exclude: frozenset[str]) -> tuple[WorkerState, ...]:
    """The peers that count as down only because of one lost probe. Called for a request that nothing else can serve,
    not even a worker of this region in `exclude`: such a worker may just be full.
    """
    return tuple([peer for peer in peers if peer.load.availability.is_last_resort(now_s) and peer.id not in exclude])


def _usable(workers: tuple[WorkerState, ...], now_s: float, exclude: frozenset[str]) -> tuple[WorkerState, ...]:
    return tuple(
        [worker for worker in workers if worker.load.availability.is_usable(now_s) and worker.id not in exclude]
    )


def has_idle_prefill(choices: Choices, now_s: float) -> bool:
    """Whether some usable cache worker has less prefill queued than its bound (`Capacity.prefill`)."""
    return any(
        load.prefills.tokens < load.capacity.prefill and load.availability.is_usable(now_s) for load in choices.loads
    )


def may_forward(choices: Choices, now_s: float) -> bool:
    return any(peer.load.availability.is_usable(now_s) for peer in choices.peers)


def is_full(choices: Choices, now_s: float) -> bool:
    """Whether no worker or prefill-decode pair would run another request now, and no peer region is usable."""
    if may_forward(choices, now_s):
        return False
    if not has_idle_prefill(choices, now_s):
        return True
    decodes = any(
        worker.load.has_slots() and worker.load.availability.is_usable(now_s) for worker in choices.decode_workers
    )
    return not any(
        worker.load.has_slots()
        and (decodes or worker.role == "aggregated")
        and worker.load.availability.is_usable(now_s)
        for worker in choices.cache_workers
    )
