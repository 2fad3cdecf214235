"""The sentences that explain the choices of `choose`, with the numbers that decided them."""

from typing import Final

from warmroute_backend.plan.argv import DEEPEP_MODES
from warmroute_backend.plan.deployment import Choice, Plan, PlannedEngine
from warmroute_backend.plan.layout import LARGE_GPU_MIB, MOST_RUNNING, default_kv_type, page_tokens, request_tokens
from warmroute_backend.plan.memory import requests_held, reserve_mib
from warmroute_backend.plan.model import CacheKind
from warmroute_backend.plan.request import AGGREGATED, PlanRequest
from warmroute_backend.plan.speculation import LARGEST_BATCH, PUBLISHED_STEPS
from warmroute_backend.plan.speed import overlaps

_ROLES: Final = ("aggregated", "prefill", "decode")
_COMPARED: Final = "the traffic, played on the divisions of these GPUs in the table below, is served best by it."


def of_engines(plan: Plan, request: PlanRequest) -> list[Choice]:
    """The choices that all engines have in common, then those of each role."""
    found = [_split(plan, request), _kv_type(plan, request), _page(plan)]
    for role in _ROLES:
        engines = plan.of(role)
        if engines:
            found += _engine(plan, request, engines)
    if plan.is_split:
        found.append(_transfer(plan))
    return found


def _split(plan: Plan, request: PlanRequest) -> Choice:
    if not plan.is_split:
        count = len(plan.engines)
        if request.compared:
            because = _COMPARED
        elif request.split == AGGREGATED:
            because = "it was asked for."
        elif count == 1:
            because = "one engine of all GPUs is the fastest for one reader, and leaves no GPU for a second role."
        else:
            because = "each engine computes prompts and answers: no KV is moved, and every GPU helps with every peak."
        return Choice("division", f"{count} aggregated", because)
    prefills, decodes = len(plan.of("prefill")), len(plan.of("decode"))
    value = f"{prefills} prefill + {decodes} decode, {'inside a node' if plan.inside_node else 'over nodes'}"
    if request.compared:
        because = _COMPARED
    elif request.split is not None:
        because = "it was asked for."
    else:
        because = (
            "long prompts then do not delay the tokens of running answers; the ratio is that of GPU seconds for "
            "prompts and for answers."
        )
    return Choice("division", value, because)


def _kv_type(plan: Plan, request: PlanRequest) -> Choice:
    value = plan.engines[0].shape.kv_type
    default = default_kv_type(plan.cluster.gpu, plan.model)
    if request.kv_type is not None:
        because = "it was asked for."
    elif plan.model.kind is CacheKind.COMPRESSED:
        because = "SGLang calls DeepSeek V4's own format by this name; its rows have 585 bytes."
    elif value == default == "fp8_e4m3":
        because = "it is SGLang's default for sparse attention on Blackwell."
    else:
        because = "it is the model's own type, and SGLang's default here; --kv-dtype fp8_e4m3 would halve the bytes."
    return Choice("KV type", value, because)


def _page(plan: Plan) -> Choice:
    why = (
        "sparse and compressed attention have no other size."
        if plan.model.kind in {CacheKind.SPARSE, CacheKind.COMPRESSED}
        else "host memory is copied by pages, and with SGLang's 1 a KV event would be sent for each token."
    )
    return Choice("page", f"{page_tokens(plan.model)} tokens", why)


def _engine(plan: Plan, request: PlanRequest, engines: tuple[PlannedEngine, ...]) -> list[Choice]:
    engine = engines[0]
    role = engine.role
    return [
        _parallel(plan, request, engine),
        _experts(plan, engine),
        _fraction(plan, request, engine),
        _chunk(plan, engine),
        *_windows(plan, request, engine),
        Choice(
            f"{role}: running requests",
            str(engine.shape.running_requests),
            f"{engine.shape.running_requests // engine.ranks} in a rank: at most {MOST_RUNNING[request.objective]} for "
            f"{request.objective}, and no more than the pool holds without a draft. CUDA graphs are captured up to it.",
        ),
    ]


def _parallel(plan: Plan, request: PlanRequest, engine: PlannedEngine) -> Choice:
    shape, model = engine.shape, plan.model
    stages = f"{shape.pp} stages, " * (shape.pp > 1)
    value = f"TP {shape.tp}, {stages}{shape.attention_dp} attention group{'s' * (shape.attention_dp > 1)}"
    if shape.pp > 1:
        because = (
            f"each of {shape.pp} stages has a part of the layers: all-reduces stay inside {shape.tp} GPUs, and chunks "
            "of a prompt are computed in all stages at once. SGLang then has no drafts and no overlapped scheduling."
        )
    elif shape.all_to_all == "deepep":
        because = (
            "each GPU keeps its own requests and whole experts. Dense layers, shared experts and the head are on "
            "every GPU, so nothing but the tokens of experts crosses nodes."
        )
    elif engine.nodes > 1:
        because = f"the weights need the GPUs of {engine.nodes} nodes."
    elif shape.attention_dp > 1:
        because = (
            f"each GPU keeps its own requests: {plan.memory(engine).tokens * engine.ranks:,} tokens instead of the "
            "same KV on every GPU, for attention weights on each."
            if model.is_latent
            else f"{model.kv_heads} KV heads would be repeated on {shape.tp} GPUs."
        )
    elif request.objective == "latency":
        because = "every GPU works on every token, which is fastest for one reader."
        if model.is_latent and shape.tp > 1:
            because += " The KV of latent attention is then the same on all GPUs: its capacity is that of one."
    else:
        because = "it is the smallest engine with enough memory left for KV."
    if shape.dcp > 1:
        value += f", KV divided among {shape.dcp} GPUs"
        because += (
            f" Each GPU holds 1/{shape.dcp} of a sequence's KV. Prefixes are then cached in pages of "
            f"{shape.page_tokens * shape.dcp} tokens, there are no drafts, and SGLang's kernels for it were not "
            f"measured on {plan.cluster.gpu.name}."
        )
    return Choice(f"{engine.role}: parallelism", value, because)


def _experts(plan: Plan, engine: PlannedEngine) -> Choice:
    topic = f"{engine.role}: expert parallelism"
    if not plan.model.experts:
        return Choice(topic, "EP 1", "the model has no experts.")
    if engine.shape.all_to_all == "deepep":
        copies = engine.shape.redundant_experts
        because = f"DeepEP carries tokens to their experts, in its {DEEPEP_MODES[engine.role]} mode. "
        because += f"{copies} more copies go to the most loaded experts. " if copies else ""
        because += (
            "One half of a batch is computed while the other is exchanged."
            if overlaps(plan.model, engine.shape)
            else "Computing and exchange take turns."
        )
        return Choice(topic, f"EP {engine.ep} by DeepEP, {copies} redundant experts", because)
    if engine.ep == 1:
        because = "each expert is divided among the GPUs, so none of them is a hot spot."
    elif engine.ep == engine.shape.tp and engine.shape.attention_dp > 1:
        because = "each GPU computes whole experts, which multiply larger matrices at high load."
    else:
        because = (
            f"an expert of {plan.model.expert_width} columns on {engine.shape.tp} GPUs is not a multiple of the 128 "
            "that fp8 weights share a scale for."
        )
    return Choice(topic, f"EP {engine.ep}", because)


def _fraction(plan: Plan, request: PlanRequest, engine: PlannedEngine) -> Choice:
    reserve = reserve_mib(plan.cluster.gpu, plan.model, engine.shape) / 1024
    if request.fraction is not None:
        because = f"it was asked for; SGLang would keep {reserve:.1f} GiB for activations and graphs."
    elif engine.shape.all_to_all == "deepep":
        because = f"LMSYS's recipe of DeepEP leaves {reserve:.1f} GiB; SGLang's rule counts the tokens of all groups."
    else:
        because = (
            f"SGLang's rule keeps {reserve:.1f} GiB for activations and graphs of this chunk and batch"
            f"{', and more for the vision tower' * (plan.model.is_multimodal and engine.role != 'decode')}."
        )
    return Choice(f"{engine.role}: memory fraction", f"{engine.fraction:.3f}", because)


def _chunk(plan: Plan, engine: PlannedEngine) -> Choice:
    shape = engine.shape
    if shape.attention_dp > 1:
        because = (
            f"SGLang divides it among {shape.attention_dp} groups, {shape.chunk_tokens // shape.attention_dp} each."
        )
    else:
        size = "160 GiB or more" if plan.cluster.gpu.memory_mib >= LARGE_GPU_MIB else "less than 160 GiB"
        because = f"it is SGLang's default for GPUs of {size}: a running answer waits for at most one chunk."
    return Choice(f"{engine.role}: chunk", f"{shape.chunk_tokens} tokens", because)


def _windows(plan: Plan, request: PlanRequest, engine: PlannedEngine) -> list[Choice]:
    if plan.model.kind is not CacheKind.WINDOW:
        return []
    found, tokens = plan.memory(engine), request_tokens(plan.traffic)
    because = (
        f"layers that see {plan.model.window_tokens:,} tokens have a pool of {found.window_tokens:,}: a chunk, and the "
        f"windows of {requests_held(found, plan.model, engine.shape, tokens)} requests of {tokens:,} tokens."
    )
    if request.window_ratio is None:
        because += " With SGLang's 0.8 the other pool would be smaller."
    return [Choice(f"{engine.role}: window ratio", f"{engine.shape.window_ratio:g}", because)]


def _transfer(plan: Plan) -> Choice:
    if plan.inside_node:
        return Choice(
            "transfer",
            "Mooncake over NVLink",
            "both sides are on one node; SGLang and Mooncake need a pool for it each.",
        )
    gpu = plan.cluster.gpu
    return Choice(
        "transfer",
        f"Mooncake over {gpu.nics} network cards of {gpu.nic_gbit_s:g} Gbit/s a node",
        "each GPU sends by the card beside it; name the cards with --ib-device, since discovery falls back to TCP.",
    )


def _paying(batch: int) -> str:
    return "at every batch that a pool holds" if batch >= LARGEST_BATCH else f"up to {batch} sequences in a rank"


def of_drafts(plan: Plan, request: PlanRequest) -> list[Choice]:
    found = plan.engines[-1].speculation
    if found is None:
        if request.lmcache:
            because = "LMCache cannot be used with it."
        elif request.has_stages or request.divides_kv:
            because = "plans with pipeline stages or divided KV have no drafts."
        elif request.speculation is False:
            because = "it was not wanted."
        elif request.objective == "throughput":
            because = "no draft model is known, or at this batch verifying costs more than accepted tokens bring."
        else:
            because = "no draft model of this model is known."
        return [Choice("speculation", "none", because)]
    value = f"{found.algorithm} {found.steps} steps, top-k {found.topk}, {found.draft_tokens} draft tokens"
    value += f", {found.path}" if found.path else ", built-in layer"
    return [
        Choice(
            "speculation",
            value,
            f"{found.accept_length:g} tokens a step are accepted ({found.source}"
            f"{', computed from its length at three steps' * (found.steps != PUBLISHED_STEPS)}), so by the roofline it "
            f"pays {_paying(found.largest_batch)}; watch sglang:spec_accept_length.",
        )
    ]
