"""What a router knows of its fleet: who is there and up, how busy each is, and what each has cached.

Probes, `/v1/loads` and KV events tell it, in any order; unknown workers are ignored, since probes race with removals.
"""

import math
from typing import Final

from warmroute_proxy.core.base.mypyc import mypyc_attr
from warmroute_proxy.core.cache.affinity import Affinity
from warmroute_proxy.core.cache.index import PrefixIndex
from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.load.load import Changes, WorkerLoad, level_rates, starts_among
from warmroute_proxy.core.load.pace import COMPARE_EVERY_S, forget_paces, level_paces
from warmroute_proxy.core.load.traffic import Traffic
from warmroute_proxy.core.placement.choices import NO_SLOT, Choices, WorkerState
from warmroute_proxy.core.placement.fleet import Peer, Worker, peer_id

MAX_MODELS: Final = 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class Fleet:
    """The places of a router, and what they hold."""

    def __init__(self, region: str, index: PrefixIndex | None, affinity: Affinity | None) -> None:
        self._region = region
        self._index = PrefixIndex() if index is None else index
        self._affinity = Affinity() if affinity is None else affinity
        self._places: dict[str, WorkerState] = {}
        self._changes = Changes()
        self._choices_by_model: dict[str, Choices] = {}
        self._traffic = Traffic()
        self._rates_differ = False  # one was learned, and is not levelled with the others yet
        self._compare_at_s = -math.inf  # from when on paces are compared again
        self._forget_at_s = math.inf  # when a slow worker is due to be tried again

    def busy(self, now_s: float) -> float:
        """The share of time in which a worker that keeps prefixes prefills, by what was sent lately."""
        return self._traffic.of_each(max(1, sum(place.holds for place in self._places.values())), now_s)[0]

    def running(self, worker_id: str) -> int:
        """How many requests that were sent to a worker have not ended."""
        return self._places[worker_id].load.running if worker_id in self._places else 0

    def add_worker(self, worker: Worker) -> None:
        """A rank found at run time, or a changed worker of the same id (its load and cache stay)."""
        self._add(worker.id, worker)

    def remove_worker(self, worker_id: str) -> None:
        """A worker that is no more. Unknown ids are ignored, here and below: probes race with removals."""
        self._level_rates()
        if self._places.pop(worker_id, None) is not None:
            self._index.retire(worker_id)
            self._index.retire(_host_of(worker_id))
            self._choices_by_model.clear()

    def worker_restarted(self, worker_id: str) -> None:
        """The engine began anew: nothing is predicted there any more. What it wrote to a store is still there."""
        place = self._places.get(worker_id)
        if place is not None:
            self.cache_cleared(worker_id)
            self._starts(place)

    def set_draining(self, worker_id: str, draining: bool) -> None:
        """A draining worker finishes what it has and gets nothing new."""
        if worker_id in self._places:
            self._places[worker_id].load.set_health(draining=draining)

    def set_up(self, worker_id: str, up: bool) -> None:
        """What the probe says."""
        if worker_id in self._places:
            self._places[worker_id].load.set_health(up=up)

    def set_peer_up(self, region: str, up: bool) -> None:
        """What the probe says of a peer region."""
        self.set_up(peer_id(region), up)

    def observe_loads(self, worker_id: str, loads: EngineLoads, now_s: float) -> None:
        """What the engine says of itself at `/v1/loads`."""
        place = self._places.get(worker_id)
        if place is not None:
            if place.load.has_begun_anew(loads):
                self.worker_restarted(worker_id)
            if place.load.observe(loads, now_s):
                self._rates_differ = True

    # What engines say of their caches. Keys are hashes of chains; unknown workers and tiers that one lacks are ignored.

    def cache_stored(self, worker_id: str, keys: list[int], tier: Tier) -> None:
        """A worker has these cuts in a tier now."""
        slots = self._slots_of(worker_id, tier)
        if slots:
            self._index.insert(keys, slots)

    def cache_removed(self, worker_id: str, keys: list[int], tier: Tier) -> None:
        """A worker has evicted these cuts from a tier."""
        slots = self._slots_of(worker_id, tier)
        if slots:
            self._places[worker_id].load.retention.told = True
            self._index.remove(keys, slots)

    def cache_cleared(self, worker_id: str) -> None:
        """A worker has nothing cached any more, on the device and in host memory, or nobody knows what it has."""
        place = self._places.get(worker_id)
        if place is not None:
            self._index.retire(worker_id)
            self._index.retire(_host_of(worker_id))
            self._add(worker_id, place.on)

    def observe_moves(self, worker_id: str, tier: Tier, tokens: int, seconds: float) -> None:
        """What bringing tokens to the device from `host` or `storage` has taken."""
        place = self._places.get(worker_id)
        if place is not None and tier == "host":
            place.load.moves.observe_load(tokens, seconds)
        elif place is not None and tier == "storage":
            place.load.moves.observe_fetch(tokens, seconds)

    # Inside

    def _choices(self, model: str) -> Choices:
        """All that serves a model. Kept until the fleet changes; at most `MAX_MODELS`, then all are made anew."""
        choices = self._choices_by_model.get(model)
        if choices is None:
            serving = [place for place in self._places.values() if place.on.serves(model)]
            cache_workers = tuple(place for place in serving if place.holds)
            decodes = tuple(place for place in serving if place.role == "decode")
            peers = tuple(place for place in serving if isinstance(place.on, Peer))
            if len(self._choices_by_model) >= MAX_MODELS:
                self._choices_by_model.clear()
            choices = self._choices_by_model[model] = Choices(
                self._region, cache_workers, decodes, peers, self._changes
            )
        return choices

    def _level_rates(self) -> None:
        """Before anybody asks: an engine's report is one of many that come together."""
        if self._rates_differ:
            self._rates_differ = False
            level_rates([place.load for place in self._places.values() if place.holds])

    def _add(self, id_: str, on: Worker | Peer) -> None:
        self._level_rates()
        known = self._places.get(id_)
        load = known.load if known is not None else self._load_of(on)
        is_new = known is None and isinstance(on, Worker) and self._affinity.lineages > 0
        slot_for = self._index.slot_for
        place = WorkerState(id_, on, load, slot_for(id_))
        if isinstance(on, Worker) and on.role != "decode":
            host_slot = slot_for(_host_of(id_)) if on.host_cache else NO_SLOT
            store_slot = slot_for(_store_of(on.store)) if on.store is not None else NO_SLOT
            place = WorkerState(id_, on, load, place.slot, host_slot, store_slot)
        self._places[id_] = place
        self._choices_by_model.clear()
        if is_new:
            self._starts(place)

    def _load_of(self, on: Worker | Peer) -> WorkerLoad:
        return WorkerLoad(on.max_running if isinstance(on, Worker) else None, self._changes)

    def _starts(self, place: WorkerState) -> None:
        """A worker starts under traffic, with nothing to show for it: it is taken to be like the others of its role."""
        starts_among(place.load, [other.load for other in self._places.values() if other.role == place.role])
        level_rates([other.load for other in self._places.values() if other.holds])

    def _slots_of(self, worker_id: str, tier: Tier) -> int:
        """The mask of the slot of a worker's tier, 0 where there is none."""
        place = self._places.get(worker_id)
        if place is None:
            return 0
        slot = {"device": place.slot, "host": place.host_slot, "storage": place.store_slot}[tier]
        return 1 << slot if slot != NO_SLOT else 0

    def _renew_weights(self, now_s: float) -> None:
        left = self._traffic.renew(now_s)
        for place in self._places.values():
            place.load.inserted *= left
            place.load.ahead = None

    def _compare_paces(self, now_s: float) -> None:
        self._compare_at_s = now_s + COMPARE_EVERY_S
        groups: dict[object, list[WorkerLoad]] = {}
        for place in self._places.values():
            groups.setdefault((place.role, place.on.models), []).append(place.load)
        level_paces(groups.values(), now_s)
        self._forget_paces(now_s)

    def _forget_paces(self, now_s: float) -> None:
        self._forget_at_s = forget_paces([place.load for place in self._places.values()], now_s)


def _host_of(worker_id: str) -> str:
    """The name of a worker's host memory in the index. No worker id holds such a character."""
    return f"{worker_id}\nhost"


def _store_of(store: str) -> str:
    """The name of a store in the index."""
    return f"{store}\nstore"
