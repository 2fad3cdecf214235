"""Finds the problems of a plan, even of one that was edited by hand. Each is a sentence that says what would work.

The problems are settings with which SGLang 0.5.23 stops, or starts but serves badly. If no formula covers a model's
cache, only flags are judged, since the memory that the model needs is not known.
"""

from collections import defaultdict
from collections.abc import Iterator

from warmroute_backend.plan.deployment import Plan, PlannedEngine
from warmroute_backend.plan.hardware import GIB
from warmroute_backend.plan.layout import DISPATCH_TOKENS, divides_kv, page_tokens
from warmroute_backend.plan.memory import (
    chunk_of_rank,
    dispatched_tokens,
    most_fraction,
    reserve_mib,
    takes_deepep,
    takes_stages,
)
from warmroute_backend.plan.model import CacheKind
from warmroute_backend.plan.tiers import RESERVE_GIB, host_bytes, refuse_lmcache, refuse_nvfp4, shares_answers

_WEIGHT_BLOCK = 128
_FRACTION_DIGIT = 0.0005


def problems(plan: Plan) -> list[str]:
    """All problems, in the order of the engines. Empty: the plan can be deployed."""
    found = []
    computable = True
    for engine in plan.engines:
        impossible = [*_places(plan, engine), *_shape(plan, engine)]
        computable &= not impossible
        found += [f"{engine.name}: {each}" for each in impossible or _engine(plan, engine)]
    return [*found, *_together(plan)] if computable else found


def _engine(plan: Plan, engine: PlannedEngine) -> Iterator[str]:
    """Problems of an engine whose place and shape are possible; without these, its memory cannot be computed."""
    yield from _context(plan, engine)
    if plan.model.kind is not CacheKind.UNKNOWN:
        yield from _memory(plan, engine)
        yield from _host(plan, engine)
    if engine.hicache is not None and engine.role == "decode":
        yield "HiCache on a decode engine needs its prefix cache, which it does not keep; take hicache away."
    if engine.lmcache and (refusal := refuse_lmcache(engine)) is not None:
        yield f"{refusal}; remove lmcache, or the setting that excludes it."
    if (refusal := refuse_nvfp4(plan, engine)) is not None:
        yield f"{refusal}; set another kv_dtype."
    if engine.storage != "none" and engine.hicache is None and engine.role != "decode":
        yield f"storage {engine.storage} is a tier behind HiCache, which this engine does not have."


def _places(plan: Plan, engine: PlannedEngine) -> Iterator[str]:
    cluster, shape = plan.cluster, engine.shape
    if engine.node < 0 or engine.nodes < 1 or engine.node + engine.nodes > cluster.nodes:
        yield f"it is on nodes {engine.node} to {engine.node + engine.nodes - 1}, and {cluster} has {cluster.nodes}."
    each = engine.gpus_each_node
    if engine.first_gpu < 0 or engine.first_gpu + each > cluster.per_node:
        yield (
            f"GPUs {engine.first_gpu} to {engine.first_gpu + each - 1} are not all of a node's {cluster.per_node}; "
            f"first_gpu is at most {max(0, cluster.per_node - each)} with {shape.gpus} GPUs."
        )


def _shape(plan: Plan, engine: PlannedEngine) -> Iterator[str]:
    shape, model = engine.shape, plan.model
    if shape.tp < 1 or shape.attention_dp < 1 or shape.tp % max(1, shape.attention_dp):
        yield f"attention_dp {shape.attention_dp} does not divide tp {shape.tp}."
        return
    if model.heads % shape.attention_tp:
        what = f"tp {shape.tp}" if shape.attention_dp == 1 else f"a group of {shape.attention_tp} GPUs"
        yield f"{what} does not divide {model.heads} attention heads; take 1, 2, 4 or 8."
    if shape.dcp != 1 and not divides_kv(model, shape):
        yield (
            f"dcp {shape.dcp}: it divides the KV of latent attention among the {shape.attention_tp} GPUs of a group; "
            "set 1, or a divisor with such a model."
        )
    if shape.dcp > 1 and engine.speculation is not None:
        yield f"dcp {shape.dcp} runs without drafts (`hicache_hook.py:141`); set dcp to 1, or take speculation away."
    yield from _stages(plan, engine)
    yield from _all_to_all(plan, engine)
    experts = model.experts + shape.redundant_experts
    if engine.ep < 1 or (engine.ep > 1 and (not model.experts or experts % engine.ep or shape.tp % engine.ep)):
        yield f"ep {engine.ep} does not divide both tp {shape.tp} and {experts} experts."
    elif model.experts and model.weight_format == "fp8" and model.expert_width * engine.ep // shape.tp % _WEIGHT_BLOCK:
        yield (
            f"an expert's {model.expert_width} columns on {shape.tp // engine.ep} GPUs are not a multiple of "
            f"{_WEIGHT_BLOCK}, which fp8 weights share a scale for; raise ep."
        )
    fixed = model.kind in {CacheKind.SPARSE, CacheKind.COMPRESSED} and shape.page_tokens != page_tokens(model)
    if shape.page_tokens < 1 or fixed:
        yield f"a page of {shape.page_tokens} tokens: sparse attention has 64, DeepSeek V4 256, others at least 1."
    if model.kind is CacheKind.COMPRESSED and shape.kv_type != "fp8_e4m3":
        yield f"kv_dtype {shape.kv_type}: DeepSeek V4 keeps its own format under the name fp8_e4m3; set that."
    if min(shape.chunk_tokens, shape.running_requests, shape.graph_batch) < 1:
        yield "chunk_tokens, running_requests and graph_batch are at least 1."
    if not 0 < engine.fraction < 1:
        yield f"memory_fraction {engine.fraction} is not between 0 and 1."


def _stages(plan: Plan, engine: PlannedEngine) -> Iterator[str]:
    shape = engine.shape
    if shape.pp < 1:
        yield "pp is at least 1."
    if shape.pp > 1 and not takes_stages(plan.model):
        yield f"pp {shape.pp}: SGLang's class of this model has no pipeline stages; set 1."
    if shape.pp > 1 and engine.role == "decode":
        yield f"pp {shape.pp}: decode engines are planned with one stage; set 1."
    against = (engine.speculation, engine.lmcache, shape.dcp > 1, shape.all_to_all != "none")
    if shape.pp > 1 and any(against):
        yield f"pp {shape.pp} runs without drafts, LMCache, dcp and all_to_all; set pp to 1, or take them away."
    nodes = max(1, engine.nodes)
    if shape.gpus % nodes:
        yield f"{shape.gpus} GPUs do not divide among {engine.nodes} nodes."
    elif shape.pp % nodes and nodes % max(1, shape.pp):
        yield f"{shape.pp} stages do not divide among {nodes} nodes: each has whole stages, or a part of one."


def _all_to_all(plan: Plan, engine: PlannedEngine) -> Iterator[str]:
    shape = engine.shape
    if shape.redundant_experts < 0 or (shape.redundant_experts and shape.all_to_all == "none"):
        yield f"redundant_experts {shape.redundant_experts}: copies come with all_to_all deepep; set 0."
    if shape.all_to_all == "none":
        return
    if shape.redundant_experts and engine.role == "aggregated":
        yield (
            f"redundant_experts {shape.redundant_experts}: SGLang does not count tokens of experts in DeepEP's mode of "
            "aggregated engines (`expert_distribution.py:412`); set 0."
        )
    if not takes_deepep(plan.cluster.gpu, plan.model):
        yield "all_to_all deepep takes tokens to experts of fp8 on NVIDIA's GPUs; set none."
    if engine.ep != shape.tp:
        yield f"with all_to_all deepep SGLang sets ep to tp {shape.tp}, not {engine.ep}."
    if engine.role != "prefill" and dispatched_tokens(shape) > DISPATCH_TOKENS:
        yield (
            f"DeepEP's kernels take {DISPATCH_TOKENS} tokens of a rank in a step, and graph_batch and "
            f"running_requests come to {dispatched_tokens(shape)}; lower both."
        )


def _context(plan: Plan, engine: PlannedEngine) -> Iterator[str]:
    if engine.context_tokens > plan.model.context_tokens:
        yield f"context_tokens {engine.context_tokens:,} is above the model's {plan.model.context_tokens:,}."
    if engine.context_tokens < 1:
        yield "context_tokens is at least 1."


def _memory(plan: Plan, engine: PlannedEngine) -> Iterator[str]:
    found = plan.memory(engine)
    reserve = reserve_mib(plan.cluster.gpu, plan.model, engine.shape) / 1024
    if found.pool <= 0:
        yield (
            f"{found.weights / GIB:.1f} GiB of weights leave no memory for KV with memory_fraction "
            f"{engine.fraction:.3f}; it has to be above {found.least_fraction:.3f}, and SGLang keeps {reserve:.1f} GiB."
        )
    elif found.tokens < engine.context_tokens:
        yield (
            f"a rank holds {found.tokens:,} tokens, less than context_tokens {engine.context_tokens:,}; "
            f"set context_tokens to {found.tokens} or less, or kv_dtype to fp8_e4m3."
        )
    least = plan.model.window_tokens + chunk_of_rank(engine.shape)
    if plan.model.kind is CacheKind.WINDOW and 0 < found.window_tokens < least:
        yield (
            f"window_ratio {engine.shape.window_ratio:g} leaves {found.window_tokens:,} tokens for windows, and one "
            f"request needs {least:,}: a window of {plan.model.window_tokens:,} and a chunk; raise it."
        )
    most = most_fraction(plan.cluster.gpu, plan.model, engine.shape)
    if engine.fraction > most + _FRACTION_DIGIT:
        yield (
            f"memory_fraction {engine.fraction:.3f} leaves {found.slack / GIB:.1f} GiB for activations and graphs, and "
            f"SGLang keeps {reserve:.1f} for this chunk and batch; it is at most {most:.3f}, or more with smaller "
            "chunk_tokens, running_requests and graph_batch."
        )


def _host(plan: Plan, engine: PlannedEngine) -> Iterator[str]:
    if engine.hicache is None:
        return
    gpu = plan.cluster.gpu
    need = engine.hicache.size_gb * 10**9 * min(engine.shape.gpus, plan.cluster.per_node) / GIB
    usable = gpu.host_memory_gib - RESERVE_GIB
    share = usable * min(engine.shape.gpus, plan.cluster.per_node) / gpu.per_node
    if need > share:
        yield (
            f"HiCache of {engine.hicache.size_gb} GB a rank takes {need:.0f} GiB of its share of {share:.0f} GiB of "
            f"host memory; at most {int(share * GIB / 1e9 / min(engine.shape.gpus, plan.cluster.per_node))} GB fit."
        )
    if engine.hicache.size_gb * 10**9 < plan.memory(engine).pool:
        yield "HiCache's host pool is smaller than the GPU's, which SGLang refuses; raise size_gb."


def _together(plan: Plan) -> Iterator[str]:
    """Problems between engines: settings on which they must agree, and GPUs, ports and folders that they must not
    share.
    """
    prefills, decodes = plan.of("prefill"), plan.of("decode")
    if bool(prefills) != bool(decodes):
        yield "prefill and decode engines only serve together: add the other role, or make them aggregated."
    names = [engine.name for engine in plan.engines]
    if len(set(names)) < len(names):
        yield "two engines have the same name."
    if prefills and decodes:
        yield from _pairs(prefills[0], (*prefills[1:], *decodes))
        yield from _divisions(prefills[0], decodes)
        yield from _answers(plan, prefills[0], decodes)
    yield from _collisions(plan)
    yield from _store_disk(plan)
    if plan.model.kind is not CacheKind.UNKNOWN:
        yield from _host_memory(plan)


def _host_memory(plan: Plan) -> Iterator[str]:
    usable = plan.cluster.gpu.host_memory_gib - RESERVE_GIB
    for node in range(plan.cluster.nodes):
        here = [engine for engine in plan.engines if node in engine.all_nodes]
        pinned = sum(host_bytes(plan, engine) * engine.gpus_each_node for engine in here) / GIB
        if pinned > usable:
            names = ", ".join(engine.name for engine in here if host_bytes(plan, engine))
            yield (
                f"node {node}: host pools and parts of the shared store take {pinned:.0f} GiB, and {usable} GiB of "
                f"host memory are usable; lower size_gb of {names}."
            )


def _store_disk(plan: Plan) -> Iterator[str]:
    """Problems of the Mooncake store's folder, and of its share of each node's disk (`FileStorageConfig::ValidatePath`
    of Mooncake).
    """
    disk_gb, folder = plan.site.store_disk_gb, plan.site.storage_dir
    if disk_gb and not plan.has_store:
        yield f"store_disk_gb {disk_gb} is of the Mooncake store, which no engine has; set 0, or storage to mooncake."
    elif disk_gb < 0 or 0 < disk_gb < plan.cluster.per_node:
        yield f"store_disk_gb {disk_gb}: set 0, or at least 1 for each of a node's {plan.cluster.per_node} GPUs."
    if disk_gb and (not folder.startswith("/") or ".." in folder.split("/")):
        yield f"storage_dir {folder}: Mooncake takes an absolute path without '..'."


def _pairs(first: PlannedEngine, others: tuple[PlannedEngine, ...]) -> Iterator[str]:
    for other in others:
        for what, ours, theirs in (
            ("page_tokens", first.shape.page_tokens, other.shape.page_tokens),
            ("kv_dtype", first.shape.kv_type, other.shape.kv_type),
            ("context_tokens", first.context_tokens, other.context_tokens),
            ("speculation", _drafting(first), _drafting(other)),
        ):
            if ours != theirs:
                yield f"{first.name} and {other.name} exchange KV and need the same {what}: {ours} and {theirs}."


def _divisions(first: PlannedEngine, others: tuple[PlannedEngine, ...]) -> Iterator[str]:
    """Problems of decode engines that divide the KV in another way than prefill engines. SGLang needs a prefill engine
    that keeps the KV whole, or divides it as the decode engine does (`disaggregation/common/conn.py:531`).
    """
    for other in others:
        if first.shape.dcp not in {1, other.shape.dcp}:
            dcps = f"{first.name} has dcp {first.shape.dcp} and {other.name} {other.shape.dcp}"
            yield f"{dcps}; set that of prefill to 1."


def _answers(plan: Plan, first: PlannedEngine, decodes: tuple[PlannedEngine, ...]) -> Iterator[str]:
    """Problems of decode engines that write answers to the store in a form that prefill engines would not find."""
    for engine in decodes:
        if engine.storage == "mooncake" and not shares_answers(plan.model, first.shape, engine.shape):
            yield f"{engine.name} writes answers to the store that {first.name} would not find; set storage to none."


def _drafting(engine: PlannedEngine) -> str:
    found = engine.speculation
    return "none" if found is None else f"{found.algorithm} {found.path or 'built-in'} {found.steps}"


def _collisions(plan: Plan) -> Iterator[str]:
    """Problems of GPUs and ports that two engines of a node would both take."""
    taken: dict[tuple[int, str], list[str]] = defaultdict(list)
    for engine in plan.engines:
        each = max(1, engine.gpus_each_node)
        ports = engine.ports
        for node in engine.all_nodes:
            for gpu in range(engine.first_gpu, engine.first_gpu + each):
                taken[node, f"GPU {gpu}"].append(engine.name)
        for port in (ports.http, ports.bootstrap, ports.distributed, ports.kv_events, ports.kv_replay):
            taken[engine.node, f"port {port}"].append(engine.name)
    for (node, what), names in sorted(taken.items()):
        if len(names) > 1:
            yield f"{' and '.join(names)} both take {what} of node {node}."
