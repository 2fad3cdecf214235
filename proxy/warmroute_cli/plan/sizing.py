"""Plans over the replay's engine model: what latency, what utilisation, what is the bottleneck.

Each rank of a plan is a worker with the costs of the planner's roofline, its pool and its host pool; production's own
placement gives it the requests. The figures compare plans: they are those of a queueing model, not of any GPU.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

from warmroute_backend.engine.model.tiers import HostTier
from warmroute_backend.plan.choose import average_load, make_plan, prefill_share
from warmroute_backend.plan.deployment import Engine, Plan
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.layout import Layout
from warmroute_backend.plan.page import table
from warmroute_backend.plan.request import AGGREGATED, PlanRequest
from warmroute_backend.plan.speed import Load, costs, decode_step_s, prefill_tokens_per_s, transfer_gb_s
from warmroute_backend.plan.tiers import host_tokens
from warmroute_cli.plan.traffic import warm_up_share
from warmroute_proxy.replay.fleet import Fleet, Worker
from warmroute_proxy.replay.production import Production, Proxies
from warmroute_proxy.replay.results import Result
from warmroute_proxy.replay.simulation import Simulation, make_scheduler
from warmroute_proxy.replay.split import SplitSimulation
from warmroute_proxy.replay.trace import Trace

SATURATED: Final = 0.95
"""Of a side's capacity: above it a queue grows as long as the traffic lasts."""
BACKLOG_SHARE: Final = 0.1
"""Of the time in which requests came: if what is left takes longer than that and one request, a queue has grown."""
MAX_WAITING: Final = 1000
"""Requests that wait in a whole plan, or `MAX_WAITING_EACH` in each rank if that is more: with as many it does not keep
up, and the rest of the trace would say only how long the queue becomes, at a cost that grows with its square."""
MAX_WAITING_EACH: Final = 100
MEMORY_WAIT_S: Final = 120.0
"""The proxy's default `working_set_wait_s`."""
CHECKS: Final = 100
"""Of the queue, over the time in which requests come."""
MOST_SPLITS: Final = 2
"""The ratio of GPU time falls between two divisions into whole engines: both are played."""
REMEDIES: Final = {
    "computing prompts": ("more GPUs", "more prompts cached, with --storage mooncake"),
    "decoding": ("more GPUs", "--objective throughput"),
    "memory for KV": ("more GPUs", "--kv-dtype fp8_e4m3", "a higher --mem-fraction, tried under load"),
}


@dataclass(frozen=True, slots=True)
class Sizing:
    """A plan under its traffic. Latencies in seconds at the 90th percentile; utilisations are shares of capacity."""

    division: str
    hit: float
    ttft_p90_s: float
    token_p90_s: float
    answer_p90_s: float
    """TTFT and the time of an average answer's tokens."""
    prefill_utilisation: float
    decode_utilisation: float
    kv_utilisation: float
    """The largest share of a decoding rank's pool that its requests, waiting ones too, asked for at once."""
    bottleneck: str
    saturated: bool
    played: float = 1.0
    """Share of the trace: less where the queue became too long, and the figures are of what came before."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def sized(request: PlanRequest, trace: Trace) -> tuple[Plan, list[Sizing]]:
    """The plan that serves the trace best, and the figures of all that were compared, the chosen one first.

    Without a division asked for, aggregated engines and prefill/decode splits of the same GPUs are compared, with one
    attention group and with as many as possible: for latency by the time of a whole answer at p90, for throughput by
    the utilisation of the busier side. A plan that does not keep up loses to any that does.
    """
    found: list[tuple[Plan, Sizing]] = []
    refused: PlanError | None = None
    for each in _candidates(request):
        try:
            plan = make_plan(each)
            if _division(plan) not in (sizing.division for _, sizing in found):
                found.append((plan, simulate(plan, each, trace)))
        except PlanError as error:
            refused = refused or error
    if not found:
        raise refused or PlanError("there is no plan to compare.")
    found.sort(key=lambda pair: _score(request, pair[1]))
    return found[0][0], [sizing for _, sizing in found]


def _score(request: PlanRequest, sizing: Sizing) -> tuple[bool, float, float, str]:
    busier = max(sizing.prefill_utilisation, sizing.decode_utilisation, sizing.kv_utilisation)
    by = sizing.answer_p90_s if request.objective == "latency" else busier
    return sizing.saturated, -sizing.played, by, sizing.division


def _candidates(request: PlanRequest) -> Iterable[PlanRequest]:
    """The request as it is where it names a division; else aggregated, and splits around the ratio of GPU time."""
    if request.split is not None or request.lmcache:
        divisions = [request]
    else:
        aggregated = replace(request, split=AGGREGATED, compared=True)
        divisions = [aggregated, *(replace(aggregated, split=split) for split in _splits(aggregated))]
    if request.attention_dp is not None or not request.model.is_latent or request.lmcache:
        return divisions
    groups = request.cluster.per_node
    return [*divisions, *(replace(each, attention_dp=_groups(each, groups)) for each in divisions)]


def _groups(request: PlanRequest, most: int) -> int:
    """Attention groups of one GPU each, on the smaller side of a split."""
    sides = [gpus for gpus in request.split or () if gpus]
    return min([most, *sides])


def _splits(request: PlanRequest) -> list[tuple[int, int]]:
    cluster = request.cluster
    if cluster.gpus < 2:
        return []
    if cluster.nodes == 1:
        half = cluster.gpus // 2
        return [(half, half)]
    try:
        engine = make_plan(request).engines[0]
    except PlanError:
        return []
    size = max(engine.shape.tp, cluster.per_node)
    units = cluster.gpus // size
    layout = Layout(engine.shape, engine.ep, engine.fraction, make_plan(request).memory(engine))
    wanted = units * prefill_share(request, layout)
    nearest = sorted(range(1, units), key=lambda prefills: (abs(prefills - wanted), prefills))[:MOST_SPLITS]
    return [(prefills * size, (units - prefills) * size) for prefills in nearest]


# --- one plan ----------------------------------------------------------------------------------------------------


class QueueError(Exception):
    """So many requests wait that the plan does not keep up."""

    def __init__(self, at_s: float) -> None:
        super().__init__(at_s)
        self.at_s = at_s


def simulate(plan: Plan, request: PlanRequest, trace: Trace) -> Sizing:
    """Play the trace on a plan, or its beginning where the queue becomes too long. Raises PlanError where a request
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
    fleet = Fleet(workers)
    tiers = any(engine.hicache is not None for engine in plan.engines)
    policy = Production(fleet, trace, Proxies(host_cache=tiers, queue=True, memory_wait_s=MEMORY_WAIT_S), [])
    kind = SplitSimulation if plan.is_split else Simulation
    share = warm_up_share(trace)
    simulation = kind(trace, fleet, policy, skip_share=share)
    work = Work(workers)
    starts = sorted(each.at_s for each in trace.requests if each.after is None)
    simulation.at(starts[int(len(starts) * share)], work.begin)
    counted = starts[int(len(starts) * share) :]
    for number in range(1, CHECKS):
        simulation.at(counted[len(counted) * number // CHECKS], work.sample)
    if len(starts) == len(trace.requests) and not to_its_end:  # else sessions wait for their answers: queues are short
        for number in range(1, CHECKS):
            simulation.at(starts[len(starts) * number // CHECKS], partial(_check_queue, workers, policy))
    result = simulation.run()
    work.last_arrival_s = max(turn.arrived_s for turn in simulation.turns)
    return _sizing(plan, load, work, result)


def _check_queue(workers: list[Worker], policy: Production, now_s: float) -> None:
    waiting = policy.waiting + sum(len(worker.scheduler.waiting) for worker in workers)
    if waiting > max(MAX_WAITING, MAX_WAITING_EACH * len(workers)):
        raise QueueError(now_s)


def _workers(plan: Plan, load: Load, block_tokens: int) -> Iterable[Worker]:
    index = 0
    for engine in plan.engines:
        gpu = plan.cluster.gpu
        cost = costs(
            gpu,
            plan.model,
            engine.shape,
            load,
            transfer=transfer_gb_s(gpu, engine.shape, inside_node=plan.inside_node),
            accept_length=engine.speculation.accept_length if engine.speculation else 1.0,
        )
        for _ in range(engine.ranks):
            host = host_tokens(plan, engine)
            scheduler = make_scheduler(
                engine.role,
                plan.memory(engine).tokens,
                block_tokens,
                max_running=engine.shape.running_requests // engine.ranks,
                costs=cost,
                host=HostTier(host) if host and engine.role != "decode" else None,
            )
            yield Worker(index, "", engine.role, scheduler)
            index += 1


def _pool(worker: Worker) -> int:
    return worker.scheduler.capacity_pages * worker.scheduler.page_size


class Work:
    """What workers have done since the warm-up."""

    def __init__(self, workers: list[Worker]) -> None:
        self._prompts = [worker for worker in workers if worker.role != "decode"]
        self.answers = [worker for worker in workers if worker.role != "prefill"]
        self.last_arrival_s = 0.0
        self._began_s = 0.0
        self._busy_s = 0.0
        self._tokens = 0
        self._most_held = 0.0

    def sample(self, _now_s: float) -> None:
        """Look at what requests ask for of the pools of decoding ranks."""
        self._most_held = max(self._most_held, *(worker.tokens / _pool(worker) for worker in self.answers))

    def held(self, samples: Iterable[Sequence[int]]) -> float:
        """The most that requests asked for of a rank's pool, then and in the samples of a run."""
        found = [row[worker.index] / _pool(worker) for worker in self.answers for row in samples]
        return max(self._most_held, *found) if found else self._most_held

    def begin(self, now_s: float) -> None:
        """The warm-up has ended."""
        self._began_s, self._busy_s, self._tokens = now_s, self._prefill_s(), self._generated()

    def shares(self, until_s: float, tokens_per_s: float) -> tuple[float, float]:
        """Of the time that all workers had for prompts, and of the tokens that they could generate."""
        span_s = max(until_s - self._began_s, 1e-9)
        prefill = (self._prefill_s() - self._busy_s) / (span_s * len(self._prompts))
        return prefill, (self._generated() - self._tokens) / (span_s * tokens_per_s)

    def backlog(self, until_s: float, one_request_s: float) -> bool:
        """Whether a queue was left when the last request came."""
        allowed_s = BACKLOG_SHARE * (self.last_arrival_s - self._began_s) + one_request_s
        return until_s - self.last_arrival_s > allowed_s

    def _prefill_s(self) -> float:
        return sum(worker.scheduler.totals.prefill_busy_s for worker in self._prompts)

    def _generated(self) -> int:
        return sum(worker.scheduler.totals.generated_tokens for worker in self.answers)


def _sizing(plan: Plan, load: Load, work: Work, result: Result) -> Sizing:
    prefill, decode = work.shares(result.simulated_s, _decode_rate(plan, load))
    held = work.held(result.load_tokens)
    used = {"computing prompts": prefill, "decoding": decode, "memory for KV": held}
    bottleneck = max(used, key=lambda name: used[name])
    answer_s = result.ttft_p90_s + (load.output_tokens - 1) * result.tpot_p90_s
    return Sizing(
        division=_division(plan),
        hit=result.hit,
        ttft_p90_s=result.ttft_p90_s,
        token_p90_s=result.tpot_p90_s,
        answer_p90_s=answer_s,
        prefill_utilisation=prefill,
        decode_utilisation=decode,
        kv_utilisation=held,
        bottleneck=bottleneck,
        saturated=max(prefill, decode) > SATURATED or work.backlog(result.simulated_s, _alone_s(plan, load)),
    )


def _division(plan: Plan) -> str:
    groups = plan.engines[0].shape.attention_dp
    tail = f", {groups} groups" if groups > 1 else ""
    if not plan.is_split:
        return f"{len(plan.engines)} aggregated{tail}"
    return f"{len(plan.of('prefill'))} prefill + {len(plan.of('decode'))} decode{tail}"


def _alone_s(plan: Plan, load: Load) -> float:
    """One request that nothing else delays, with its whole prompt to compute."""
    gpu, engine = plan.cluster.gpu, plan.engines[0]
    prefill_s = load.input_tokens / (prefill_tokens_per_s(gpu, plan.model, engine.shape, load))
    return prefill_s + load.output_tokens * decode_step_s(gpu, plan.model, plan.engines[-1].shape, load, 1)


def _decode_rate(plan: Plan, load: Load) -> float:
    """Tokens a second of all engines that decode, with full batches."""
    return sum(_engine_rate(plan, engine, load) for engine in plan.engines if engine.role != "prefill")


def _engine_rate(plan: Plan, engine: Engine, load: Load) -> float:
    shape = engine.shape
    batch = max(1, shape.running_requests // engine.ranks)
    step_s = decode_step_s(plan.cluster.gpu, plan.model, shape, load, batch, max(1, shape.draft_tokens))
    accepted = engine.speculation.accept_length if engine.speculation else 1.0
    return engine.ranks * batch * accepted / step_s


def _keeps_up(sizing: Sizing) -> str:
    if sizing.played < 1:
        return f"no, cut at {sizing.played:.0%}"
    return "no" if sizing.saturated else "yes"


def section(sizings: list[Sizing]) -> str:
    """The section of the page: the chosen plan first, those on the same GPUs that it was compared with after it."""
    heads = (
        "on the same GPUs",
        "hit",
        "TTFT p90 s",
        "ms/token p90",
        "answer p90 s",
        "prefill",
        "decode",
        "KV",
        "keeps up",
    )
    rows = [
        (
            each.division,
            f"{each.hit:.2f}",
            f"{each.ttft_p90_s:.2f}",
            f"{each.token_p90_s * 1000:.1f}",
            f"{each.answer_p90_s:.1f}",
            f"{each.prefill_utilisation:.0%}",
            f"{each.decode_utilisation:.0%}",
            f"{each.kv_utilisation:.0%}" if each.kv_utilisation <= 1 else "> 100%",
            _keeps_up(each),
        )
        for each in sizings
    ]
    chosen = sizings[0]
    lines = ["Traffic (of a queueing model, to compare plans)", table(heads, rows), f"bottleneck: {chosen.bottleneck}"]
    if chosen.saturated:
        lines.append("This traffic is more than the GPUs serve: a queue grows as long as it lasts.")
    if chosen.saturated or chosen.kv_utilisation > 1:
        lines.append(f"what helps: {'; '.join(REMEDIES[chosen.bottleneck])}")
    return "\n".join(lines)
