"""Holds the state of a fleet: which workers and peer regions exist, their load, and what each has cached.

Probes, reports at `/v1/loads` and KV events change the state, in any order. Reports about unknown workers, or about
tiers that a worker does not have, are ignored, because a report may arrive after the removal of its worker.
"""

import math
from typing import Final

from warmroute_proxy.core.cache.index import PrefixIndex
from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.load.availability import Changes
from warmroute_proxy.core.load.comparison import (
    COMPARE_EVERY_S,
    forget_paces,
    level_paces,
    level_rates,
    level_sizes,
    restart_among,
)
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.load.load import WorkerLoad
from warmroute_proxy.core.load.traffic import Traffic
from warmroute_proxy.core.placement.choices import NO_SLOT, Choices, WorkerState
from warmroute_proxy.core.placement.fleet import Peer, Worker, peer_id
from warmroute_proxy.core.placement.working_set import WorkingSet

MAX_MODELS: Final = 1024


class Fleet:
    def __init__(self, region: str, index: PrefixIndex) -> None:
        self.region = region
        self.index = index
        self.workers: dict[str, WorkerState] = {}
        self.working_set = WorkingSet(self.workers)
        self.traffic = Traffic()
        self._changes = Changes()
        self._choices_by_model: dict[str, Choices] = {}
        self._rates_differ = False  # whether a newly learned rate has not been levelled with the others yet
        self._compare_at_s = -math.inf  # when streaming paces are compared next
        self._forget_at_s = math.inf  # when a slow worker is tried again

    def busy(self, now_s: float) -> float:
        """The mean share of time that a worker spends on prefill, estimated from what was sent to it lately."""
        return self.traffic.of_each(max(1, sum(worker.caches_prompts for worker in self.workers.values())), now_s)[0]

    def choices(self, model: str) -> Choices:
        """The workers and peers that serve a model. Cached for up to `MAX_MODELS` models, until the fleet changes."""
        choices = self._choices_by_model.get(model)
        if choices is None:
            serving = [worker for worker in self.workers.values() if worker.target.serves(model)]
            cache_workers = tuple(worker for worker in serving if worker.caches_prompts)
            decode_workers = tuple(worker for worker in serving if worker.role == "decode")
            peers = tuple(worker for worker in serving if isinstance(worker.target, Peer))
            if len(self._choices_by_model) >= MAX_MODELS:
                self._choices_by_model.clear()
            choices = self._choices_by_model[model] = Choices(
                self.region, cache_workers, decode_workers, peers, self._changes, peers
            )
        return choices

    # Members

    def add_worker(self, worker: Worker, *, serves_traffic: bool) -> None:
        """Add a worker, or replace the worker with this id, and keep its load and cache. A new worker is unproven
        (`load`) if the fleet already serves traffic.
        """
        is_new = worker.id not in self.workers
        self._add(worker.id, worker)
        if is_new and serves_traffic:
            self._restart(self.workers[worker.id])

    def add_peer(self, peer: Peer) -> None:
        self._add(peer_id(peer.region), peer)

    def remove_worker(self, worker_id: str) -> None:
        self.level_rates()
        if self.workers.pop(worker_id, None) is not None:
            self.index.retire(worker_id, restarted=True)
            self.index.retire(_host_of(worker_id), restarted=True)
            self._choices_by_model.clear()

    def worker_restarted(self, worker_id: str) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            self._clear(worker, restarted=True)
            self._restart(worker)

    # Health and load

    def set_draining(self, worker_id: str, draining: bool) -> None:
        if worker_id in self.workers:
            self.workers[worker_id].load.availability.set_health(draining=draining)

    def set_up(self, worker_id: str, up: bool) -> None:
        if worker_id in self.workers:
            self.workers[worker_id].load.availability.set_health(up=up)

    def suspect(self, worker_id: str) -> None:
        """Record that a probe of a peer region got no answer, although the probe before it was good."""
        self.set_up(worker_id, False)
        if worker_id in self.workers:
            self.workers[worker_id].load.availability.suspect = True

    def ended_prefill_tokens(self, worker_id: str) -> int:
        """The uncached tokens of all prompts that have left a worker's prefill queue since the worker was added."""
        worker = self.workers.get(worker_id)
        return 0 if worker is None else worker.load.prefills.ended_tokens

    def observe_loads(self, worker_id: str, loads: EngineLoads, now_s: float) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            if worker.load.prefill_rate.has_restarted(loads):
                self.worker_restarted(worker_id)
            pool_tokens = worker.load.capacity.pool_tokens
            if worker.load.observe(loads, now_s):
                self._rates_differ = True
            if worker.load.capacity.pool_tokens != pool_tokens:
                level_sizes([other.load for other in self.workers.values() if other.caches_prompts])

    def observe_moves(self, worker_id: str, tier: Tier, tokens: int, seconds: float) -> None:
        """Learn that moving `tokens` out of a tier (`host` or `storage`) took `seconds`."""
        worker = self.workers.get(worker_id)
        if worker is not None and tier == "host":
            worker.load.moves.observe_load(tokens, seconds)
        elif worker is not None and tier == "storage":
            worker.load.moves.observe_fetch(tokens, seconds)

    # Caches. Keys are prefix hashes (`Chain.hashes`).

    def cache_stored(self, worker_id: str, keys: list[int], tier: Tier) -> None:
        slots = self._slots_of(worker_id, tier)
        if slots:
            self.index.insert(keys, slots)

    def cache_removed(self, worker_id: str, keys: list[int], tier: Tier) -> None:
        slots = self._slots_of(worker_id, tier)
        if slots:
            load = self.workers[worker_id].load
            load.occupancy.has_events = load.has_evicted = True
            self.index.remove(keys, slots)

    def cache_cleared(self, worker_id: str) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            self._clear(worker, restarted=False)
            worker.load.has_evicted = True

    def _clear(self, worker: WorkerState, *, restarted: bool) -> None:
        self.index.retire(worker.id, restarted=restarted)
        self.index.retire(_host_of(worker.id), restarted=restarted)
        self._add(worker.id, worker.target)

    def has_same_cache(self, worker: WorkerState) -> bool:
        """Whether the fleet still has this worker, and its cache has not been emptied since this state was made."""
        current = self.workers.get(worker.id)
        return current is worker or (current is not None and current.slot == worker.slot)

    # Rates and paces

    def level_rates_and_forget_paces(self, now_s: float) -> None:
        """Level newly learned rates, and forget streaming paces that are too old. Called before each decision."""
        if self._rates_differ:
            self.level_rates()
        if now_s >= self._forget_at_s:
            self._forget_paces(now_s)

    def level_rates(self) -> None:
        """Level newly learned rates. Called only before rates are used, because reports come in bursts."""
        if self._rates_differ:
            self._rates_differ = False
            level_rates([worker.load for worker in self.workers.values() if worker.caches_prompts])

    def compare_paces(self, now_s: float) -> None:
        """Compare the paces of streams, if the next comparison is due. Called when a stream has ended."""
        if now_s < self._compare_at_s:
            return
        self._compare_at_s = now_s + COMPARE_EVERY_S
        groups: dict[object, list[WorkerLoad]] = {}
        for worker in self.workers.values():
            groups.setdefault((worker.role, worker.target.models), []).append(worker.load)
        level_paces(groups.values(), now_s)
        self._forget_paces(now_s)

    def renew_weights(self, now_s: float) -> None:
        """Renew the weights of `traffic`, and scale each worker's `inserted` to the new weights."""
        scale = self.traffic.renew(now_s)
        for worker in self.workers.values():
            worker.load.inserted *= scale
            worker.load.ahead = None

    def _forget_paces(self, now_s: float) -> None:
        self._forget_at_s = forget_paces([worker.load for worker in self.workers.values()], now_s)

    def _add(self, id_: str, target: Worker | Peer) -> None:
        self.level_rates()
        known = self.workers.get(id_)
        load = known.load if known is not None else self._load_of(target)
        slot_for = self.index.slot_for
        slot, host_slot, store_slot = slot_for(id_), NO_SLOT, NO_SLOT
        if isinstance(target, Worker) and target.role != "decode":
            host_slot = slot_for(_host_of(id_)) if target.host_cache else NO_SLOT
            store_slot = slot_for(_store_of(target.store)) if target.store is not None else NO_SLOT
        self.workers[id_] = WorkerState(id_, target, load, slot, host_slot, store_slot)
        self._choices_by_model.clear()

    def _load_of(self, target: Worker | Peer) -> WorkerLoad:
        return WorkerLoad(target.max_running if isinstance(target, Worker) else None, self._changes)

    def _restart(self, worker: WorkerState) -> None:
        """Start a worker while others serve traffic: its prefill rate begins as the mean of those with its role."""
        restart_among(worker.load, [other.load for other in self.workers.values() if other.role == worker.role])
        level_rates([other.load for other in self.workers.values() if other.caches_prompts])

    def _slots_of(self, worker_id: str, tier: Tier) -> int:
        """The mask of the slot of a worker's tier; 0 if the worker or the tier is unknown."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return 0
        slot = {"device": worker.slot, "host": worker.host_slot, "storage": worker.store_slot}[tier]
        return 1 << slot if slot != NO_SLOT else 0


def _host_of(worker_id: str) -> str:
    """The name of a worker's host memory in the index. No worker id contains a newline."""
    return f"{worker_id}\nhost"


def _store_of(store: str) -> str:
    return f"{store}\nstore"
