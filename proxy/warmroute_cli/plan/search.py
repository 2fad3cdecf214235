"""Chooses a plan among those that given GPUs allow, by simulating traffic on the promising ones ("playing" them).

The search goes by steps. KV of the model's own type comes first, then KV of 8 bits. Each type is tried with SGLang's
memory fraction, and then with the largest fraction that leaves what SGLang reserves. The last step, for latent
attention, divides the KV of each sequence among the GPUs of its group; SGLang runs that only without draft tokens. The
search ends with the first step in which a plan keeps up and reaches the targets.

A step compares all divisions into engines, sizes of engines and attention groups, for prefill and decode. Its best plan
is then varied: half the prefill chunk, other numbers of draft tokens, other cache tiers. Lower bounds, computed from
the planner's roofline, rule out plans before they are played.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final, NamedTuple

from warmroute_backend.plan.choose import average_load, make_plan
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.layout import default_kv_type
from warmroute_backend.plan.memory import takes_deepep
from warmroute_backend.plan.model import CacheKind
from warmroute_backend.plan.request import AGGREGATED, WHOLE_GROUP, PlanRequest
from warmroute_backend.plan.speculation import PUBLISHED_STEPS
from warmroute_backend.plan.words import AllToAll
from warmroute_cli.plan.inputs import AVERAGE
from warmroute_cli.plan.sizing import SATURATED, Sizing, Speeds, simulate, speeds
from warmroute_cli.plan.targets import Targets
from warmroute_lab.replay.trace import Trace

MOST_PLAYED: Final = 40
"""The maximum number of plans that are played in a step. The plans with the most promising bounds are played first."""

LEAST_PLAYED: Final = 3
"""Plans that are played if the bounds rule out all of them, so that the best one can be shown."""

LEAST_CHUNK_TOKENS: Final = 2048
DRAFT_STEPS: Final = (1, 2, 5)
LEAST_GAIN: Final = 1.05
"""Factor by which other drafts or tiers must be better than the default ones to be chosen."""


@dataclass(frozen=True, slots=True)
class PlayedPlan:
    """A plan, its figures under the traffic, and the targets that it misses."""

    request: PlanRequest
    plan: Plan
    sizing: Sizing
    missed: tuple[str, ...]


class _Hopeful(NamedTuple):
    request: PlanRequest
    plan: Plan
    least: Speeds


@dataclass(slots=True)
class Search:
    """The plans that were played, the best first, and the number of plans ruled out by each reason."""

    played: list[PlayedPlan] = field(default_factory=list)
    ruled_out: Counter[str] = field(default_factory=Counter)

    @property
    def best(self) -> PlayedPlan:
        return self.played[0]


def search(request: PlanRequest, trace: Trace, targets: Targets, *, bounded: bool = True) -> Search:
    """Play plans until a step has one that reaches the targets. `bounded`: skip plans that their bounds rule out.
    Raises PlanError if no plan fits the GPUs."""
    found = Search()
    refused: PlanError | None = None
    for step in _steps(request):
        try:
            _play(step, trace, targets, found, bounded=bounded)
        except PlanError as error:
            refused = refused or error
        if found.played and not found.best.missed:
            break
    if not found.played:
        make_plan(request)  # raises PlanError, which says what does not fit, and what would
        raise refused or PlanError("there is no plan to compare.")
    return found


def _steps(request: PlanRequest) -> Iterator[PlanRequest]:
    """The request with each KV type and memory fraction, then with divided KV. The least changed comes first."""
    types = [request.kv_type]
    if request.kv_type is None and default_kv_type(request.cluster.gpu, request.model) != "fp8_e4m3":
        types.append("fp8_e4m3")
    raised = (False, True) if request.fraction is None else (False,)
    for kv_type, most in product(types, raised):
        yield replace(request, kv_type=kv_type, most_fraction=most)
    may_divide = request.dcp is None and not request.speculation and not request.lmcache
    if may_divide and request.model.kind is CacheKind.LATENT:
        yield replace(request, kv_type=types[-1], most_fraction=raised[-1], dcp=WHOLE_GROUP)


def _play(step: PlanRequest, trace: Trace, targets: Targets, found: Search, *, bounded: bool) -> None:
    rate = step.traffic.requests_per_s if step.traffic is not None else 0.0
    known = {_key(each.plan) for each in found.played}
    refused: PlanRequest | None = None
    made: list[_Hopeful] = []
    for candidate in candidates(step):
        try:
            plan = make_plan(candidate)
        except PlanError:
            refused = refused or candidate
            continue
        if _key(plan) not in known:
            known.add(_key(plan))
            least = speeds(plan, average_load(candidate), rate, alike=trace.name == AVERAGE)
            made.append(_Hopeful(candidate, plan, least))
    if not made and not found.played and refused is not None:
        make_plan(replace(refused, compared=False))  # raises PlanError, which says what does not fit, and what would
    made.sort(key=lambda each: _bound(step, each.least))
    hopeful = [each for each in made if not bounded or _ruled_out(each.least, targets, found.ruled_out) is None]
    for candidate, plan, least in hopeful[:MOST_PLAYED] or made[:LEAST_PLAYED]:
        if bounded and found.played and not found.best.missed and _bound(step, least) >= _weighed(step, found.best):
            found.ruled_out["slower than the best, even alone"] += 1
            continue
        _add(found, step, candidate, plan, trace, targets)
    if len(hopeful) > MOST_PLAYED:
        found.ruled_out["less promising than the simulated ones"] += len(hopeful) - MOST_PLAYED
    if found.played:
        _vary(found, step, trace, targets, bounded=bounded)


def _add(found: Search, step: PlanRequest, candidate: PlanRequest, plan: Plan, trace: Trace, targets: Targets) -> None:
    sizing = simulate(plan, candidate, trace)
    found.played.append(PlayedPlan(candidate, plan, sizing, tuple(targets.missed(sizing))))
    found.played.sort(key=lambda each: _score(step, each))


def _vary(found: Search, step: PlanRequest, trace: Trace, targets: Targets, *, bounded: bool) -> None:
    """Play the best plan with settings that do not change its division into engines, one after the other: half the
    chunk, since running answers wait while a chunk of a prompt is computed; other numbers of drafts; other tiers."""
    rate = step.traffic.requests_per_s if step.traffic is not None else 0.0
    for variants in (_chunks, _drafts, _tiers) if not step.lmcache else ():
        for candidate in variants(step, found.best):
            with suppress(PlanError):
                plan = make_plan(candidate)
                if any(_key(plan) == _key(each.plan) for each in found.played):
                    continue
                least = speeds(plan, average_load(candidate), rate, alike=trace.name == AVERAGE)
                if bounded and _ruled_out(least, targets, found.ruled_out) is not None:
                    continue
                _add(found, step, candidate, plan, trace, targets)


def _chunks(step: PlanRequest, best: PlayedPlan) -> Iterator[PlanRequest]:
    shape = best.plan.engines[0].shape
    if step.chunk_tokens is None and shape.chunk_tokens // 2 >= LEAST_CHUNK_TOKENS * shape.attention_dp:
        yield replace(best.request, chunk_tokens=shape.chunk_tokens // 2)


def _drafts(step: PlanRequest, best: PlayedPlan) -> Iterator[PlanRequest]:
    """If the best plan uses draft tokens: no drafts, then one, two and five drafts per step. A draft layer in the model
    is trained to draft one token, so its accept length at three drafts does not predict that at more."""
    if best.plan.engines[-1].speculation is None:
        return
    if step.speculation is None and step.draft_steps is None:
        yield replace(best.request, speculation=False, draft_steps=None)
    most = PUBLISHED_STEPS if best.plan.engines[-1].shape.draft_is_mtp else max(DRAFT_STEPS)
    for steps in DRAFT_STEPS if step.draft_steps is None else ():
        if steps <= most:
            yield replace(best.request, draft_steps=steps)


def _tiers(step: PlanRequest, best: PlayedPlan) -> Iterator[PlanRequest]:
    """The best plan without host memory, then with the shared store off if it is on by default, else on. No plan with a
    file tier is played, since the size and speed of the disk are unknown."""
    if step.hicache is None and step.storage is None:
        yield replace(best.request, hicache=False)
    if step.hicache is not False and step.storage is None:
        yield replace(best.request, storage="none" if step.cluster.nodes > 1 else "mooncake")


def _key(plan: Plan) -> tuple[object, ...]:
    return tuple((engine.shape, engine.fraction, engine.ep, engine.hicache, engine.storage) for engine in plan.engines)


def _ruled_out(least: Speeds, targets: Targets, reasons: Counter[str]) -> str | None:
    """The reason why a plan cannot keep up or reach the targets; None if it may do both. `reasons` counts reasons."""
    reason = None
    if least.prefill_utilisation > SATURATED:
        reason = "too slow for these prompts"
    elif least.decode_utilisation > SATURATED:
        reason = "too slow for these answers"
    elif least.kv_utilisation > SATURATED:
        reason = "too little memory for the running requests"
    elif targets.least_ttft_s is not None and least.ttft_s > targets.least_ttft_s:
        reason = "a prompt alone takes longer than the target of the TTFT"
    elif targets.least_token_s is not None and least.token_s > targets.least_token_s:
        reason = "a token alone takes longer than its target"
    if reason is not None:
        reasons[reason] += 1
    return reason


def _bound(step: PlanRequest, least: Speeds) -> float:
    if step.objective == "latency":
        return least.answer_s
    return max(least.prefill_utilisation, least.decode_utilisation, least.kv_utilisation)


def _score(step: PlanRequest, found: PlayedPlan) -> tuple[bool, float, float, int, str]:
    """A sort key, the best plan first. Of equal plans, the one with the shortest description is first."""
    sizing = found.sizing
    return bool(found.missed), -sizing.played, _weighed(step, found), len(sizing.division), sizing.division


def _weighed(step: PlanRequest, found: PlayedPlan) -> float:
    """The figure to minimise, times `LEAST_GAIN` for each setting of drafts or tiers that differs from the step's.

    The factor keeps a setting from being changed for a gain below the noise.
    """
    asked = found.request
    unusual = (asked.draft_steps, asked.hicache, asked.storage)
    usual = (step.draft_steps, step.hicache, step.storage)
    return _goal(step, found) * LEAST_GAIN ** sum(one != other for one, other in zip(unusual, usual, strict=True))


def _goal(step: PlanRequest, found: PlayedPlan) -> float:
    return found.sizing.answer_p90_s if step.objective == "latency" else found.sizing.busiest


# --- what is compared --------------------------------------------------------------------------------------------


def candidates(step: PlanRequest) -> Iterator[PlanRequest]:
    for (tp, pp, all_to_all), split in product(_sizes(step), _splits(step)):
        of_size = replace(step, tp=tp, pp=pp, all_to_all=all_to_all, split=split, compared=True)
        if not of_size.is_even:  # some GPUs would be idle
            continue
        for groups, decode_groups in _groups(of_size):
            yield replace(of_size, attention_dp=groups, decode_dp=decode_groups)


class Size(NamedTuple):
    """`tp`: GPUs of an engine or stage; None: all for prefill, all for decode. `pp`: stages. `all_to_all`: how tokens
    reach experts."""

    tp: int | None
    pp: int | None = None
    all_to_all: AllToAll | None = None


def _sizes(step: PlanRequest) -> list[Size]:
    """Engines of 1, 2, 4 ... GPUs. Over several nodes also pipeline stages of one node each, and DeepEP on up to all
    GPUs. Within a node DeepEP is left out: it costs memory, and its exchange takes as long as SGLang's."""
    if step.lmcache:
        return [Size(step.tp, step.pp, step.all_to_all)]
    cluster = step.cluster
    sizes = [step.tp] if step.tp is not None else [1 << power for power in range(cluster.gpus.bit_length())]
    found = [Size(size, step.pp, step.all_to_all) for size in sizes if size <= cluster.gpus]
    if step.all_to_all == "deepep" and step.tp is None:
        return [Size(None, None, "deepep"), *found]
    if cluster.nodes == 1 or step.tp is not None:
        return found
    if step.pp is None and not step.speculation and not step.divides_kv:
        stages = [1 << power for power in range(1, cluster.nodes.bit_length())]
        found += [Size(cluster.per_node, pp, step.all_to_all) for pp in stages if step.all_to_all is None]
    if step.all_to_all is None and not step.has_stages and takes_deepep(cluster.gpu, step.model):
        found.append(Size(None, None, "deepep"))
        found += [Size(size, None, "deepep") for size in sizes if cluster.per_node < size < cluster.gpus]
    return found


def _splits(step: PlanRequest) -> list[tuple[int, int] | None]:
    """GPUs of prefill and of decode: undivided, or divided at each quarter of a single node, or between nodes."""
    if step.split is not None or step.lmcache:
        return [step.split]
    cluster = step.cluster
    unit = cluster.per_node if cluster.nodes > 1 else max(1, cluster.gpus // 4)
    divided = [(at, cluster.gpus - at) for at in range(unit, cluster.gpus, unit)]
    return [AGGREGATED, *divided]


def _groups(step: PlanRequest) -> Iterable[tuple[int | None, int | None]]:
    """Attention groups of prefill (or of all engines) and of decode. For latent attention, whose KV is repeated on all
    GPUs of a group, these are all divisors of an engine's GPUs. Otherwise the planner's layout chooses (None)."""
    plain = step.model.is_latent and not step.lmcache and step.all_to_all != "deepep"
    if step.attention_dp is not None or not plain or step.tp is None:
        return [(step.attention_dp, step.decode_dp)]
    divisors = [1 << power for power in range(step.tp.bit_length())]
    if step.split in {None, AGGREGATED}:
        return [(each, None) for each in divisors]
    return list(product(divisors, divisors))
