"""What to replay: the fleet, the policies, the loads. A run has one trace, `Setup`, policy and speed-up."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from warmroute.files.documents import toml_in
from warmroute_backend.costs import Costs
from warmroute_lab.engine.model.model import Role, Scheduler
from warmroute_lab.engine.model.tiers import HostTier, Storage
from warmroute_lab.replay.baselines import BASELINES
from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Store, Worker
from warmroute_lab.replay.policy import InRegion, Policy
from warmroute_lab.replay.production import Feed, Production, Proxies
from warmroute_lab.replay.results import Result
from warmroute_lab.replay.simulation import (
    MAX_RUNNING,
    Changes,
    Ingress,
    Progress,
    Simulation,
    WorkerChange,
    make_scheduler,
)
from warmroute_lab.replay.split import SplitSimulation
from warmroute_lab.replay.tenants import by_tenant
from warmroute_lab.replay.trace import Trace, TraceError
from warmroute_proxy.core.cache.index import MAX_SLOTS

MAX_WORKERS: Final = 1024
MIN_SPEED: Final = 0.01
MAX_SPEED: Final = 100.0
MAX_BYTES: Final = 1_048_576


class WorkerKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`count` workers that are alike. If a field is None, the value in the `Setup` counts."""

    count: int = 1
    speed: float = 1.0
    kv_tokens: int | None = None
    max_running: int | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker: list[WorkerKind]


def read_fleet(path: Path) -> tuple[WorkerKind, ...]:
    """The kind of each worker of a region, from a file. Raises: TraceError, UnreadableFile."""
    try:
        found = msgspec.convert(toml_in(path, MAX_BYTES), _File)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: {error}") from None
    workers: list[WorkerKind] = []
    for number, kind in enumerate(found.worker, 1):
        _check_kind(path, number, kind)
        workers += [kind] * kind.count
    if not 0 < len(workers) <= MAX_WORKERS:
        raise TraceError(f"{path}: a fleet has 1 to {MAX_WORKERS} workers, not {len(workers)}")
    return tuple(workers)


def _check_kind(path: Path, number: int, kind: WorkerKind) -> None:
    where = f"{path}: worker {number}"
    if not 0 < kind.count <= MAX_WORKERS:
        raise TraceError(f"{where}: count is a number from 1 to {MAX_WORKERS}, not {kind.count}")
    if not MIN_SPEED <= kind.speed <= MAX_SPEED:
        raise TraceError(f"{where}: speed is a number from {MIN_SPEED} to {MAX_SPEED:g}, not {kind.speed}")
    for name in ("kv_tokens", "max_running"):
        value = getattr(kind, name)
        if value is not None and value < 1:
            raise TraceError(f"{where}: {name} is a number from 1 on, not {value}")


MAX_TIME_S: Final = 1e7
"""The longest virtual time of a run, since each virtual second takes some work."""

PRODUCTION: Final = "warmroute"
WITH_EVENTS: Final = "warmroute+events"
WITH_QUEUE: Final = "warmroute+queue"
WITH_WORKING_SET: Final = "warmroute+working-set"
DEFAULT_POLICY: Final = WITH_WORKING_SET
"""What a proxy does by default."""
OURS: Final = (PRODUCTION, WITH_EVENTS, WITH_QUEUE, WITH_WORKING_SET)
POLICIES: Final = (*OURS, *BASELINES)
ACROSS_REGIONS: Final = frozenset({*OURS, "skylb"})
"""Policies that know of regions. Any other policy runs separately in each region."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A fleet. Each region has `prefills` workers that compute prompts and, if the fleet is split, `decodes` workers
    that generate. `kv_tokens` and `host_tokens` are per worker, `store_tokens` per region.

    `rtt_s`, `each_turn` and `home_share` are those of `Ingress`. `naming_share`, `routers`, `share_lag_s`,
    `share_loss`, `event_lag_s`, `hinting_share` and `ending_share` are for the production policy: see `Proxies`.
    """

    prefills: int = 8
    decodes: int = 0
    kv_tokens: int = 3_000_000
    max_running: int = MAX_RUNNING
    host_tokens: int = 0
    store_tokens: int = 0
    regions: int = 1
    rtt_s: float = 0.0
    each_turn: bool = False
    naming_share: float = 1.0
    routers: int = 1
    share_lag_s: float | None = None
    share_loss: float = 0.0
    event_lag_s: float = 0.1
    changes: tuple[WorkerChange, ...] = ()
    skip_share: float = 0.0
    home_share: float = 0.0
    working_set_wait_s: float = 120.0
    hinting_share: float = 0.0
    ending_share: float = 0.0
    tenant_shares: tuple[float, ...] = ()
    """The share of sessions of each tenant, if there are several."""
    kinds: tuple[WorkerKind, ...] = ()
    """The kind of each worker of a region, in order; empty if all workers are alike."""

    @property
    def workers(self) -> str:
        pool = f"{self.prefills}:{self.decodes}" if self.decodes else str(self.prefills)
        return f"{self.regions} x {pool}" if self.regions > 1 else pool

    @property
    def region_names(self) -> list[str]:
        return [f"r{number}" for number in range(self.regions)] if self.regions > 1 else [""]


def run(trace: Trace, setup: Setup, policy: str, speed_up: float = 1.0, progress: Progress | None = None) -> Result:
    """Play a trace once. Raises: TraceError, if it cannot be played on this fleet."""
    return _played(trace, setup, policy, speed_up, progress, watch_caches=False)[0]


def run_watched(trace: Trace, setup: Setup, policy: str) -> tuple[Result, list[ReplayTurn]]:
    """As `run`, but also return the turns; each turn notes what the caches held when it was sent."""
    return _played(trace, setup, policy, 1.0, None, watch_caches=True)


def _played(
    trace: Trace, setup: Setup, policy: str, speed_up: float, progress: Progress | None, *, watch_caches: bool
) -> tuple[Result, list[ReplayTurn]]:
    _check(trace, setup)
    _check_time(trace, setup, speed_up)
    built = _Built(trace, setup, with_events=policy == WITH_EVENTS)
    kind = SplitSimulation if setup.decodes else Simulation
    simulation = kind(
        trace, built.fleet, built.policy(policy), speed_up, progress,
        ingress=Ingress(setup.region_names, setup.each_turn, setup.rtt_s, setup.home_share),
        changes=Changes(setup.changes, built.scheduler), skip_share=setup.skip_share,
    )  # fmt: skip
    simulation.watch_caches = watch_caches
    result = simulation.run()
    result.policy = policy
    result.by_tenant = by_tenant(simulation.turns, setup.tenant_shares)
    result.workers = setup.workers
    return result, simulation.turns


class _Built:
    """The workers of a set-up, with their schedulers, feeds and stores."""

    def __init__(self, trace: Trace, setup: Setup, *, with_events: bool) -> None:
        self._trace = trace
        self._setup = setup
        pool: list[Role] = ["prefill" if setup.decodes else "aggregated"] * setup.prefills
        pool += ["decode"] * setup.decodes
        slots = [(region, role) for region in setup.region_names for role in pool]
        self._feeds = [Feed() for _ in slots] if with_events else []
        self._stores: dict[str, Storage] = {}
        if setup.store_tokens:
            self._stores = {name: Store(setup.store_tokens // trace.block_tokens) for name in setup.region_names}
        workers = [
            Worker(index, region, role, self._scheduler(index, region, role))
            for index, (region, role) in enumerate(slots)
        ]
        self.fleet = ReplayFleet(workers)
        later = {change.worker for change in setup.changes if change.kind == "add"}
        self.fleet.set_up({worker.index for worker in workers} - later)

    def policy(self, name: str) -> Policy:
        setup = self._setup
        if name in OURS:
            _check_caches(setup)
            queue = name in {WITH_QUEUE, WITH_WORKING_SET}
            wait_s = setup.working_set_wait_s if name == WITH_WORKING_SET else 0.0
            proxies = Proxies(
                routers=setup.routers, share_lag_s=setup.share_lag_s, share_loss=setup.share_loss,
                event_lag_s=setup.event_lag_s, naming_share=setup.naming_share, rtt_s=setup.rtt_s,
                host_cache=setup.host_tokens > 0, store=setup.store_tokens > 0, queue=queue,
                hinting_share=setup.hinting_share, ending_share=setup.ending_share, memory_wait_s=wait_s,
                tenant_shares=setup.tenant_shares,
            )  # fmt: skip
            return Production(self.fleet, self._trace, proxies, self._feeds)
        make = BASELINES[name]
        return make(self.fleet) if setup.regions == 1 or name in ACROSS_REGIONS else InRegion(self.fleet, make)

    def scheduler(self, worker: Worker) -> Scheduler:
        return self._scheduler(worker.index, worker.region, worker.role)

    def _scheduler(self, index: int, region: str, role: Role) -> Scheduler:
        setup = self._setup
        kind = setup.kinds[index % len(setup.kinds)] if setup.kinds else WorkerKind()
        return make_scheduler(
            role, kind.kv_tokens or setup.kv_tokens, self._trace.block_tokens,
            max_running=kind.max_running or setup.max_running, costs=_costs(kind),
            host=HostTier(setup.host_tokens, self._stores.get(region)) if role != "decode" else None,
            listener=self._feeds[index] if self._feeds else None,
        )  # fmt: skip


def _costs(kind: WorkerKind) -> Costs:
    plain = Costs()
    return replace(
        plain,
        prefill_tokens_per_s=plain.prefill_tokens_per_s * kind.speed,
        decode_base_s=plain.decode_base_s / kind.speed,
        decode_per_sequence_s=plain.decode_per_sequence_s / kind.speed,
        step_overhead_s=plain.step_overhead_s / kind.speed,
    )


def _check(trace: Trace, setup: Setup) -> None:
    largest = max((request.input_tokens + request.output_tokens for request in trace.requests), default=0)
    smallest = min([kind.kv_tokens or setup.kv_tokens for kind in setup.kinds] or [setup.kv_tokens])
    if largest + trace.block_tokens > smallest:
        raise TraceError(f"{trace.name}: a request of {largest} tokens does not fit {smallest} KV tokens")
    if setup.store_tokens and not setup.host_tokens:
        raise TraceError("a store needs a host tier: write KV tokens as device:host:store")
    if setup.changes:
        _check_changes(setup)


def _check_time(trace: Trace, setup: Setup, speed_up: float) -> None:
    times = [request.at_s / speed_up for request in trace.requests if request.after is None] or [0.0]
    begins_s = min(times)
    ends_s = max([*times, begins_s + setup.event_lag_s, *(change.at_s for change in setup.changes)])
    if ends_s - begins_s > MAX_TIME_S:
        raise TraceError(
            f"{ends_s - begins_s:.3g} s from the first arrival to the last event: at most {MAX_TIME_S:g} s"
        )


def _check_caches(setup: Setup) -> None:
    tiers = 2 if setup.host_tokens else 1
    caches = setup.prefills * tiers + setup.decodes + setup.regions
    if caches > MAX_SLOTS:
        raise TraceError(f"a region of {caches} caches (of workers, by tier, and of peers): at most {MAX_SLOTS}")


def _check_changes(setup: Setup) -> None:
    count = setup.regions * (setup.prefills + setup.decodes)
    if setup.decodes:
        raise TraceError("workers cannot come and go in a split fleet yet")
    up: set[int] = set(range(count)) - {change.worker for change in setup.changes if change.kind == "add"}
    _check_up(setup, up)
    for change in sorted(setup.changes):
        if not 0 <= change.worker < count:
            raise TraceError(f"there is no worker {change.worker}: they are 0 to {count - 1}")
        if change.kind == "remove":
            up.discard(change.worker)
        else:
            up.add(change.worker)
        _check_up(setup, up)


def _check_up(setup: Setup, up: set[int]) -> None:
    for region in range(setup.regions):
        if not any(index // setup.prefills == region for index in up):
            raise TraceError("a region would be without any worker")
