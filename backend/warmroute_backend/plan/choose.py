"""Makes a plan: the engines of a cluster for a model and its traffic, with a reason for each choice.

The order of choices: KV type, context, division into prefill and decode, engines, drafts, host memory and storage. Each
step reads only what earlier steps have fixed, so equal requests give equal plans.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from warmroute_backend.costs import Role
from warmroute_backend.plan import reasons
from warmroute_backend.plan.argv import HTTP_PORT
from warmroute_backend.plan.deployment import Choice, Plan, PlannedEngine
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import GPUS, Cluster
from warmroute_backend.plan.layout import (
    DISPATCH_TOKENS,
    Layout,
    fitted,
    holds,
    layouts,
    least_context,
    on_nodes,
    smallest_engine,
    stages_of,
)
from warmroute_backend.plan.request import AGGREGATED, PlanRequest
from warmroute_backend.plan.speculation import PUBLISHED_STEPS, Draft, draft_of, speculation
from warmroute_backend.plan.speed import Load, decode_step_s, prefill_tokens_per_s
from warmroute_backend.plan.tiers import add_tiers
from warmroute_backend.ports import Ports

BOOTSTRAP_PORT: Final = 8998
DISTRIBUTED_PORT: Final = 20000
EVENTS_PORT: Final = 5557
REPLAY_PORT: Final = 5657
RANK_PORTS: Final = 100
"""The ports that an engine reserves for its ranks: a rank's port is the engine's first port plus the rank's number."""

ALTERNATIVE_GPUS: Final = ("H100", "H200", "B200", "B300", "MI300X")
_NO_TRAFFIC: Final = Load(16_384, 4_096, 512)


class Side(NamedTuple):
    """A role, its number of GPUs, and the layout of its engines."""

    role: Role
    gpus: int
    layout: Layout


class Placed(NamedTuple):
    """One engine: its role, its first GPU in the cluster, and its layout."""

    role: Role
    first_gpu: int
    layout: Layout


def make_plan(request: PlanRequest) -> Plan:
    """The plan for a request. Raises PlanError, which says what is too large and, unless `request.compared`, which
    requests would fit.
    """
    request.checked()
    found = _plan(request)
    if found is None:
        raise PlanError(_why_not(request), () if request.compared else alternatives(request))
    return found


def _plan(request: PlanRequest) -> Plan | None:
    sides = _sides(request)
    if sides is None:
        return None
    draft = _draft(request, sides)
    engines = []
    for role, first_gpu, layout in _spread(request, sides):
        drafting = _with_draft(request, layout, draft)
        if not holds(request, drafting):
            return None if request.speculation else _plan(replace(request, speculation=False))
        engines.append(_engine(request, role, first_gpu, drafting, draft))
    plan = Plan(
        request.model,
        request.model_name or request.model.name,
        request.cluster,
        request.objective,
        tuple(_on_ports(engines)),
        request.traffic,
        request.site,
    )
    plan, tier_choices = add_tiers(plan, request)
    plan = _with_context(plan, request)
    choices: list[Choice] = [*reasons.of_engines(plan, request), *reasons.of_drafts(plan, request), *tier_choices]
    return replace(plan, choices=tuple(choices))


def average_load(request: PlanRequest) -> Load:
    traffic = request.traffic
    if traffic is None:
        return _NO_TRAFFIC
    return Load(traffic.input_tokens, traffic.uncached_tokens, traffic.output_tokens)


# --- division into engines ---------------------------------------------------------------------------------------


def _sides(request: PlanRequest) -> list[Side] | None:
    """The roles, with their GPUs and the layout of their engines; None if an engine of a role does not fit."""
    cluster = request.cluster
    split = request.split
    if split is None:
        split = _chosen_split(request)
    if split == AGGREGATED:
        layout = _engine_of(request, cluster.gpus, "aggregated")
        return None if layout is None else [Side("aggregated", cluster.gpus, layout)]
    sides: list[Side] = []
    for role, gpus in zip(("prefill", "decode"), split, strict=True):
        groups = request.decode_dp if role == "decode" else None
        of_side = replace(request, attention_dp=groups or request.attention_dp)
        layout = _engine_of(of_side, gpus, role)  # type: ignore[arg-type]
        if layout is None:
            return None
        sides.append(Side(role, gpus, layout))  # type: ignore[arg-type]
    return sides


def _engine_of(request: PlanRequest, gpus: int, role: Role) -> Layout | None:
    """An engine on at most `gpus` GPUs. The engine spans nodes if one node does not hold the model, if the engine has
    pipeline stages, or if DeepEP moves tokens to experts on all nodes. Otherwise the engine is inside one node."""
    cluster, wide = request.cluster, _wide(request, gpus, role)
    if wide is not None:
        layout = next(layouts(request, wide, role), None) if wide <= gpus else None
    else:
        layout = smallest_engine(request, min(gpus, cluster.per_node), role)
        size = request.tp if request.tp is not None and request.tp > cluster.per_node else 2 * cluster.per_node
        while layout is None and size <= gpus and request.tp in {None, size}:
            layout = next(layouts(request, size, role), None)
            size *= 2
    return layout if layout is not None and on_nodes(layout.shape, cluster.per_node) else None


def _wide(request: PlanRequest, gpus: int, role: Role) -> int | None:
    """GPUs of an engine with pipeline stages or DeepEP; None for an engine with neither."""
    stages = stages_of(request.pp, role)
    if stages == 1 and request.all_to_all != "deepep":
        return None
    return stages * (request.tp or (gpus if stages == 1 else min(request.cluster.per_node, gpus // stages)))


def _chosen_split(request: PlanRequest) -> tuple[int, int]:
    """GPUs of prefill and of decode. For latency on two or more nodes, they follow from the work of prefill and of
    decode; otherwise engines are aggregated.
    """
    cluster = request.cluster
    if cluster.nodes < 2 or request.objective != "latency" or request.lmcache:
        return AGGREGATED
    engine = _engine_of(request, cluster.gpus // 2, "aggregated")
    if engine is None:
        return AGGREGATED
    units = cluster.gpus // engine.shape.gpus
    prefills = max(1, min(units - 1, round(units * prefill_share(request, engine))))
    return prefills * engine.shape.gpus, (units - prefills) * engine.shape.gpus


def prefill_share(request: PlanRequest, engine: Layout) -> float:
    """The share of a request's GPU time that goes into its prompt: seconds of prefill over seconds of prefill and
    decode.
    """
    gpu, model, load = request.cluster.gpu, request.model, average_load(request)
    shape = engine.shape
    prefill_s = load.uncached_tokens / prefill_tokens_per_s(gpu, model, shape, load)
    batch = max(1, shape.running_requests // shape.attention_dp)
    decode_s = load.output_tokens * decode_step_s(gpu, model, shape, load, batch) / batch
    return prefill_s / (prefill_s + decode_s)


def _spread(request: PlanRequest, sides: list[Side]) -> Iterator[Placed]:
    at = 0
    for role, gpus, layout in sides:
        for _ in range(max(1, gpus // layout.shape.gpus)):
            step = layout.shape.gpus
            at = -(-at // min(step, request.cluster.per_node)) * min(step, request.cluster.per_node)
            yield Placed(role, at, layout)
            at += step


# --- engines -----------------------------------------------------------------------------------------------------


def _draft(request: PlanRequest, sides: list[Side]) -> Draft | None:
    """The draft model of all engines, or None for a plan without drafts."""
    draft = draft_of(request.model)
    refused = request.speculation is False or request.divides_kv or request.has_stages
    if refused or (request.lmcache and request.speculation is None):
        return None
    if draft is None:
        if request.speculation or request.draft_steps:
            raise PlanError(f"no draft model of {request.model.name} is known.", ["a plan without it"])
        return None
    if request.speculation or request.objective == "latency":
        return draft
    shape = sides[-1].layout.shape
    found = speculation(request.cluster.gpu, request.model, shape, average_load(request), draft)
    return draft if shape.running_requests // shape.attention_dp <= found.largest_batch else None


def _with_draft(request: PlanRequest, layout: Layout, draft: Draft | None) -> Layout:
    """The layout with memory for the draft model. For latency, the number of running requests is also lowered to the
    most with which drafts pay.
    """
    if draft is None:
        return layout
    shape = layout.shape
    steps = request.draft_steps or PUBLISHED_STEPS
    found = speculation(request.cluster.gpu, request.model, shape, average_load(request), draft, steps)
    running = shape.running_requests // shape.attention_dp
    if request.objective == "latency":
        running = max(1, min(running, found.largest_batch or running))
    if shape.all_to_all == "deepep":
        running = min(running, DISPATCH_TOKENS // found.draft_tokens)
    shape = replace(
        shape,
        running_requests=running * shape.attention_dp,
        graph_batch=running,
        draft_layers=draft.layers,
        draft_tokens=found.draft_tokens,
        draft_bytes=draft.parameters_bytes // shape.attention_tp,
        draft_is_mtp=draft.path is None,
    )
    return fitted(request, shape)


def _engine(request: PlanRequest, role: Role, first_gpu: int, layout: Layout, draft: Draft | None) -> PlannedEngine:
    cluster = request.cluster
    found = None
    if draft is not None:
        steps = request.draft_steps or PUBLISHED_STEPS
        found = speculation(cluster.gpu, request.model, layout.shape, average_load(request), draft, steps)
    return PlannedEngine(
        name=role,
        node=first_gpu // cluster.per_node,
        nodes=-(-layout.shape.gpus // cluster.per_node),
        first_gpu=first_gpu % cluster.per_node,
        shape=layout.shape,
        ep=layout.ep,
        fraction=layout.fraction,
        context_tokens=0,
        ports=_ports(0),
        lmcache=request.lmcache,
        speculation=found,
    )


def _on_ports(engines: Iterable[PlannedEngine]) -> Iterator[PlannedEngine]:
    """The engines with names, and with ports that no other engine of their node has."""
    of_role: dict[str, int] = {}
    of_node: dict[int, int] = {}
    for engine in engines:
        number = of_role.setdefault(engine.role, 0)
        of_role[engine.role] += 1
        slot = of_node.setdefault(engine.node, 0)
        of_node[engine.node] += 1
        yield replace(engine, name=f"{engine.role}-{number}", ports=_ports(slot))


def _ports(slot: int) -> Ports:
    """The ports of an engine. `slot`: its number on its node."""
    return Ports(
        http=HTTP_PORT + slot,
        bootstrap=BOOTSTRAP_PORT + slot,
        distributed=DISTRIBUTED_PORT + RANK_PORTS * slot,
        kv_events=EVENTS_PORT + 2 * RANK_PORTS * slot,
        kv_replay=REPLAY_PORT + 2 * RANK_PORTS * slot,
    )


def _with_context(plan: Plan, request: PlanRequest) -> Plan:
    """Give all engines one context: the longest request that a rank of every engine can hold, but at most the model's
    context.
    """
    held = min(plan.memory(engine).tokens for engine in plan.engines)
    context = request.context_tokens or min(request.model.context_tokens, held)
    return replace(plan, engines=tuple(replace(engine, context_tokens=context) for engine in plan.engines))


# --- what does not fit -------------------------------------------------------------------------------------------


def _why_not(request: PlanRequest) -> str:
    """The sentence that says why the cluster does not hold the request."""
    cluster, split = request.cluster, request.split or AGGREGATED
    where = f"{request.model.name} on {cluster}"
    role: Role = "aggregated" if split == AGGREGATED else "prefill"
    wide = _wide(request, split[0] or cluster.gpus, role)
    gpus = wide or request.tp or min(max(split) or cluster.per_node, cluster.per_node)
    while wide is request.tp is None and gpus > 1 and request.model.heads % gpus:
        gpus //= 2
    tries = layouts(replace(request, context_tokens=-1), gpus, role)
    best = max((found.memory for found in tries), key=lambda found: found.tokens, default=None)
    if wide is not None and (uneven := _uneven(request, wide, role)) is not None:
        return f"{where}: {uneven}"
    if best is None and request.divides_kv:
        return f"{where}: --dcp {request.dcp} does not divide the GPUs of an attention group."
    if best is None:
        return f"{where}: {request.model.heads} attention heads are not divisible by the GPUs of an engine."
    if best.pool <= 0:
        return (
            f"{where}: {best.weights / 2**30:.1f} GiB of weights on each GPU leave no memory for KV: of "
            f"{best.free_before_weights / 2**30:.1f} GiB, SGLang keeps {best.slack / 2**30:.1f} for activations and "
            f"graphs (fraction {best.fraction:.3f}, and weights alone need {best.least_fraction:.3f})."
        )
    return f"{where}: a rank holds {best.tokens:,} tokens of KV, and {least_context(request):,} are needed."


def _uneven(request: PlanRequest, gpus: int, role: Role) -> str | None:
    """Why the GPUs or experts of an engine with pipeline stages or DeepEP do not divide evenly; None if they do."""
    cluster, experts, stages = request.cluster, request.model.experts, stages_of(request.pp, role)
    if gpus < stages or -(-gpus // cluster.per_node) > cluster.nodes:
        return f"{stages} stages have no GPUs each."
    nodes, rest = divmod(gpus, cluster.per_node)
    if (cluster.per_node % gpus if not nodes else rest) or (nodes > 1 and stages % nodes and nodes % stages):
        return (
            f"an engine of {gpus} GPUs in {stages} stage{'s' * (stages > 1)} takes no even part of nodes with "
            f"{cluster.per_node}: each node has whole stages, or a part of one."
        )
    if request.all_to_all == "deepep" and role == "aggregated" and experts % gpus:
        return (
            f"{experts} experts do not divide among {gpus} GPUs, and aggregated engines have no redundant "
            "ones; take other GPUs, or --pd."
        )
    return None


def alternatives(request: PlanRequest) -> list[str]:
    """The nearest changes that give a plan: KV type, nodes, other GPUs, a shorter context."""
    found = []
    if request.kv_type is None and _fits(replace(request, kv_type="fp8_e4m3")):
        found.append("--kv-dtype fp8_e4m3")
    if request.divides_kv and _fits(replace(request, dcp=None)):
        found.append("no --dcp")
    for cluster in _near_clusters(request.cluster):
        changed = replace(request, cluster=cluster, split=None)
        if _fits(changed):
            found.append(f"--gpus {cluster}")
    if request.context_tokens and _fits(replace(request, context_tokens=8192, traffic=None)):
        plan = _plan(replace(request, context_tokens=None, traffic=None))
        if plan is not None:
            found.append(f"--context {plan.engines[0].context_tokens}")
    return found or ["a smaller model, or one with smaller weights"]


def _near_clusters(cluster: Cluster) -> Iterator[Cluster]:
    full = replace(cluster, per_node=cluster.gpu.per_node)
    if full != cluster:
        yield full
    yield replace(full, nodes=2 * cluster.nodes)
    for name in ALTERNATIVE_GPUS:
        if name != cluster.gpu.name:
            yield replace(full, gpu=GPUS[name])


def _fits(request: PlanRequest) -> bool:
    try:
        return _plan(request.checked()) is not None
    except PlanError:
        return False
