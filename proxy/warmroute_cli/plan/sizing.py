"""Estimates latency, utilisation and bottleneck of a plan under its traffic, with the replay's simulated engines.

Each rank of a plan is a worker with the costs of the planner's roofline, its KV pool and its host pool. The proxy's
production placement assigns the requests. The figures are for comparing plans: they come from a queueing model, not
from a GPU.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from warmroute_backend.costs import Costs, Role
from warmroute_backend.plan.choose import average_load
from warmroute_backend.plan.deployment import Plan, PlannedEngine
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.layout import default_chunk, default_kv_type
from warmroute_backend.plan.memory import default_fraction, requests_held
from warmroute_backend.plan.request import PlanRequest
from warmroute_backend.plan.speculation import PUBLISHED_STEPS, draft_of
from warmroute_backend.plan.speed import Load, costs, decode_step_s, prefill_tokens_per_s, transfer_gb_s
from warmroute_backend.plan.tiers import default_storage, host_tokens, store_tokens
from warmroute_cli.plan.inputs import warm_up_share
from warmroute_lab.engine.model.tiers import HostTier
from warmroute_lab.replay.fleet import ReplayFleet, Store, Worker
from warmroute_lab.replay.production import Production, Proxies
from warmroute_lab.replay.results import Result
from warmroute_lab.replay.simulation import Simulation, make_scheduler
from warmroute_lab.replay.split import SplitSimulation
from warmroute_lab.replay.trace import Trace

_FRACTION_DIGIT: Final = 0.0005
SATURATED: Final = 0.95
"""If more than this share of the capacity for prefill or decode is used, a queue grows as long as the traffic lasts."""
BACKLOG_SHARE: Final = 0.1
"""A queue has grown if, after the last arrival, work goes on for longer than this share of the time of arrivals plus
the time of one request."""
MAX_WAITING: Final = 1000
"""The maximum number of waiting requests of a plan; `MAX_WAITING_EACH` times its ranks, if that is more. If more wait,
the plan does not keep up, and the simulation stops: its cost grows with the square of the queue's length."""
MAX_WAITING_EACH: Final = 100
MEMORY_WAIT_S: Final = 120.0
"""The proxy's default `working_set_wait_s`."""
CHECKS: Final = 100
"""How often the queue's length is checked, spread over the time in which requests arrive."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """A plan under its traffic. Latencies are in seconds; utilisations are shares of capacity."""

    division: str
    hit: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    token_p50_s: float
    token_p90_s: float
    token_p99_s: float
    answer_p90_s: float
    """TTFT at p90, plus the tokens of an average answer at `token_p90_s`."""
    alone_s: float
    """TTFT of a request that has the average cached share and that no other request delays."""
    prefill_utilisation: float
    decode_utilisation: float
    kv_utilisation: float
    """The largest share of a decoding rank's KV pool that its running and waiting requests needed at once."""
    bottleneck: str
    saturated: bool
    tokens_per_s_gpu: float
    """Answer tokens/s per GPU at full capacity: those under this traffic, divided by the highest utilisation."""
    played: float = 1.0
    """Share of the trace that was played. If below 1, the queue became too long, and figures cover only that share."""

    @property
    def busiest(self) -> float:
        return max(self.prefill_utilisation, self.decode_utilisation, self.kv_utilisation)


# --- one plan ----------------------------------------------------------------------------------------------------


class QueueError(Exception):
    """Too many requests wait: the plan does not keep up."""

    def __init__(self, at_s: float) -> None:
        super().__init__(at_s)
        self.at_s = at_s


def simulate(plan: Plan, request: PlanRequest, trace: Trace) -> Sizing:
    """Play the trace on a plan, or only its beginning if the queue becomes too long. Raises PlanError if a request
    does not fit a rank."""
    try:
        return _played(plan, request, trace)
    except QueueError as error:
        came = [each for each in trace.requests if each.at_s <= error.at_s]
        sizing = _played(plan, request, replace(trace, requests=came), to_its_end=True)
        return replace(sizing, saturated=True, played=len(came) / len(trace.requests))


def _played(plan: Plan, request: PlanRequest, trace: Trace, *, to_its_end: bool = False) -> Sizing:
    load = average_load(request)
    workers = list(_workers(plan, load, trace.block_tokens))
    least = min(worker.scheduler.capacity_pages for worker in workers) * trace.block_tokens
    largest = max(each.input_tokens + each.output_tokens for each in trace.requests)
    if largest + trace.block_tokens > least:
        raise PlanError(f"{trace.name}: a request of {largest:,} tokens does not fit a rank's {least:,}.")
    fleet = ReplayFleet(workers)
    tiers = any(engine.hicache is not None for engine in plan.engines)
    proxies = Proxies(host_cache=tiers, store=plan.has_store, queue=True, memory_wait_s=MEMORY_WAIT_S)
    policy = Production(fleet, trace, proxies, [])
    kind = SplitSimulation if plan.is_split else Simulation
    share = warm_up_share(trace)
    simulation = kind(trace, fleet, policy, skip_share=share)
    work = WorkersDone(workers)
    starts = sorted(each.at_s for each in trace.requests if each.after is None)
    simulation.at(starts[int(len(starts) * share)], work.begin)
    counted = starts[int(len(starts) * share) :]
    for number in range(1, CHECKS):
        simulation.at(counted[len(counted) * number // CHECKS], work.sample)
    if len(starts) == len(trace.requests) and not to_its_end:  # else turns wait for answers, so queues stay short
        for number in range(1, CHECKS):
            simulation.at(starts[len(starts) * number // CHECKS], partial(_check_queue, workers, policy))
    result = simulation.run()
    work.last_arrival_s = max(turn.arrived_s for turn in simulation.turns)
    return _sizing(plan, load, work, result)


def _check_queue(workers: list[Worker], policy: Production, now_s: float) -> None:
    waiting = policy.waiting + sum(len(worker.scheduler.waiting) for worker in workers)
    if waiting > max(MAX_WAITING, MAX_WAITING_EACH * len(workers)):
        raise QueueError(now_s)


def engine_costs(plan: Plan, engine: PlannedEngine, load: Load) -> Costs:
    gpu = plan.cluster.gpu
    return costs(
        gpu,
        plan.model,
        engine.shape,
        load,
        transfer=transfer_gb_s(gpu, engine.shape, inside_node=plan.inside_node),
        accept_length=engine.speculation.accept_length if engine.speculation else 1.0,
    )


def _workers(plan: Plan, load: Load, block_tokens: int) -> Iterable[Worker]:
    index, stored = 0, store_tokens(plan) // block_tokens
    store = Store(stored) if stored else None
    for engine in plan.engines:
        cost = engine_costs(plan, engine, load)
        for _ in range(engine.ranks):
            host = host_tokens(plan, engine)
            scheduler = make_scheduler(
                engine.role,
                _tokens(plan, engine, load),
                block_tokens,
                max_running=engine.shape.running_requests // engine.ranks,
                costs=cost,
                host=HostTier(host, store) if host and engine.role != "decode" else None,
            )
            yield Worker(index, "", engine.role, scheduler)
            index += 1


def _tokens(plan: Plan, engine: PlannedEngine, load: Load) -> int:
    """How many tokens of requests with this load a rank's pools hold: fewer than its first pool, if the pool for
    sliding-window layers is full earlier."""
    found, each = plan.memory(engine), max(1, int(load.input_tokens + load.output_tokens))
    held = requests_held(found, plan.model, engine.shape, each)
    return found.tokens if held == found.tokens // each else held * each


def _pool(worker: Worker) -> int:
    return worker.scheduler.capacity_pages * worker.scheduler.page_size


class WorkersDone:
    """The work that workers have done since the warm-up."""

    def __init__(self, workers: list[Worker]) -> None:
        self._prompts = [worker for worker in workers if worker.role != "decode"]
        self.answers = [worker for worker in workers if worker.role != "prefill"]
        self.last_arrival_s = 0.0
        self._began_s = 0.0
        self._busy_s = 0.0
        self._tokens = 0
        self._most_held = 0.0

    def sample(self, _now_s: float) -> None:
        """Measure the share of each decoding rank's pool that requests need now. The largest share is kept."""
        self._most_held = max(self._most_held, *(worker.tokens / _pool(worker) for worker in self.answers))

    def held(self, samples: Iterable[Sequence[int]]) -> float:
        """The largest share of a rank's pool that requests needed, by `sample` and by `samples`, those of the run."""
        found = [row[worker.index] / _pool(worker) for worker in self.answers for row in samples]
        return max(self._most_held, *found) if found else self._most_held

    def begin(self, now_s: float) -> None:
        self._began_s, self._busy_s, self._tokens = now_s, self._prefill_s(), self._generated()

    def shares(self, until_s: float, tokens_per_s: float) -> tuple[float, float]:
        """The share of the workers' time that prompts took, and the generated share of the tokens that they could
        generate."""
        span_s = max(until_s - self._began_s, 1e-9)
        prefill = (self._prefill_s() - self._busy_s) / (span_s * len(self._prompts))
        return prefill, (self._generated() - self._tokens) / (span_s * tokens_per_s)

    def backlog(self, until_s: float, one_request_s: float) -> bool:
        """Whether a queue had grown by the last arrival."""
        allowed_s = BACKLOG_SHARE * (self.last_arrival_s - self._began_s) + one_request_s
        return until_s - self.last_arrival_s > allowed_s

    def _prefill_s(self) -> float:
        return sum(worker.scheduler.totals.prefill_busy_s for worker in self._prompts)

    def _generated(self) -> int:
        return sum(worker.scheduler.totals.generated_tokens for worker in self.answers)


def _sizing(plan: Plan, load: Load, work: WorkersDone, result: Result) -> Sizing:
    prefill, decode = work.shares(result.simulated_s, _decode_rate(plan, load))
    held = work.held(result.load_tokens)
    used = {"computing prompts": prefill, "decoding": decode, "memory for KV": held}
    bottleneck = max(used, key=lambda name: used[name])
    traffic_tokens_s = decode * _decode_rate(plan, load)
    return Sizing(
        division=division(plan),
        hit=result.hit,
        ttft_p50_s=result.ttft_p50_s,
        ttft_p90_s=result.ttft_p90_s,
        ttft_p99_s=result.ttft_p99_s,
        token_p50_s=result.tpot_p50_s,
        token_p90_s=result.tpot_p90_s,
        token_p99_s=result.tpot_p99_s,
        answer_p90_s=result.ttft_p90_s + (load.output_tokens - 1) * result.tpot_p90_s,
        alone_s=load.uncached_tokens / prefill_tokens_per_s(plan.cluster.gpu, plan.model, plan.engines[0].shape, load),
        prefill_utilisation=prefill,
        decode_utilisation=decode,
        kv_utilisation=held,
        bottleneck=bottleneck,
        saturated=max(prefill, decode) > SATURATED or work.backlog(result.simulated_s, _alone_s(plan, load)),
        tokens_per_s_gpu=traffic_tokens_s / max(prefill, decode, held, 1e-9) / plan.cluster.gpus,
    )


def division(plan: Plan) -> str:
    """A plan in a few words: its engines, their attention groups, and what differs from the planner's defaults."""
    sides = [_side(plan, role) for role in ("aggregated", "prefill", "decode") if plan.of(role)]
    engine = plan.engines[0]
    tail = ", fp8 KV" if engine.shape.kv_type != default_kv_type(plan.cluster.gpu, plan.model) else ""
    default = round(default_fraction(plan.cluster.gpu, plan.model, engine.shape), 3)
    tail += f", fraction {engine.fraction:.2f}" if abs(engine.fraction - default) > _FRACTION_DIGIT else ""
    if draft_of(plan.model) is not None and engine.speculation is None:
        tail += ", no drafts"
    elif engine.speculation is not None and engine.speculation.steps != PUBLISHED_STEPS:
        tail += f", drafts of {engine.speculation.steps}"
    hosts = any(each.hicache is not None for each in plan.engines)
    if not hosts and not engine.lmcache:
        tail += ", no HiCache"
    elif plan.has_store != (default_storage(plan.cluster) == "mooncake"):
        tail += ", store" if plan.has_store else ", no store"
    return " + ".join(sides) + tail


def _side(plan: Plan, role: Role) -> str:
    engines = plan.of(role)
    shape = engines[0].shape
    groups = f", {shape.attention_dp} groups" if shape.attention_dp > 1 else ""
    groups += f", KV over {shape.dcp}" if shape.dcp > 1 else ""
    groups += f", {shape.pp} stages" if shape.pp > 1 else ""
    groups += ", DeepEP" if shape.all_to_all == "deepep" else ""
    chunk = ""
    if role != "decode" and shape.chunk_tokens != default_chunk(plan.cluster.gpu, shape.attention_dp):
        chunk = f", chunk {shape.chunk_tokens / 1024:.3g}k"
    words = f"{groups}{chunk}".removeprefix(", ")
    size = "" if len(engines) == 1 else f" of TP {shape.tp}"
    return f"{len(engines)} {role}{size}" + (f" ({words})" if words else "")


def _alone_s(plan: Plan, load: Load) -> float:
    """Time of a request that runs alone and has no cached tokens."""
    gpu, engine = plan.cluster.gpu, plan.engines[0]
    prefill_s = load.input_tokens / (prefill_tokens_per_s(gpu, plan.model, engine.shape, load))
    return prefill_s + load.output_tokens * decode_step_s(gpu, plan.model, plan.engines[-1].shape, load, 1)


def _decode_rate(plan: Plan, load: Load) -> float:
    return sum(_engine_rate(plan, engine, load) for engine in plan.engines if engine.role != "prefill")


def _engine_rate(plan: Plan, engine: PlannedEngine, load: Load) -> float:
    shape = engine.shape
    batch = max(1, shape.running_requests // engine.ranks)
    step_s = decode_step_s(plan.cluster.gpu, plan.model, shape, load, batch, max(1, shape.draft_tokens))
    accepted = engine.speculation.accept_length if engine.speculation else 1.0
    return engine.ranks * batch * accepted / step_s


# --- lower bounds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Speeds:
    """Lower bounds of a plan's figures, computed without playing: no request waits, and no token is computed twice."""

    prefill_utilisation: float
    decode_utilisation: float
    kv_utilisation: float
    """Share of the decoding pools that running requests fill; their number is the rate times the time of an answer."""
    ttft_s: float
    token_s: float
    answer_s: float


def speeds(plan: Plan, load: Load, requests_per_s: float, *, alike: bool = True) -> Speeds:
    """The bounds at a rate of requests per second. `alike`: each request has this load; if not, the load is the mean of
    different requests, which gives no bound on times."""
    prefill = sum(
        engine.ranks * engine_costs(plan, engine, load).prefill_tokens_per_s
        for engine in plan.engines
        if engine.role != "decode"
    )
    prefill_costs, decode_costs = (engine_costs(plan, engine, load) for engine in (plan.engines[0], plan.engines[-1]))
    ttft_s = load.uncached_tokens / prefill_costs.prefill_tokens_per_s if alike else 0.0
    token_s = decode_costs.decode_base_s + decode_costs.decode_per_sequence_s
    decode_s = (load.output_tokens - 1) * token_s
    pools = sum(engine.ranks * _tokens(plan, engine, load) for engine in plan.engines if engine.role != "prefill")
    return Speeds(
        requests_per_s * load.uncached_tokens / prefill,
        requests_per_s * load.output_tokens / _decode_rate(plan, load),
        requests_per_s * decode_s * load.context_tokens / max(1, pools),
        ttft_s,
        token_s if alike else 0.0,
        ttft_s + decode_s if alike else 0.0,
    )
