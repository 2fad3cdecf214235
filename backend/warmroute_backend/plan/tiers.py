"""The cache tiers below the GPU's pool: HiCache in host memory with a store behind it, or LMCache in their place.

SGLang itself keeps 10 GiB of host memory free (`HICACHE_HOST_MEMORY_RESERVE_BYTES`). A fifth of the rest is for the
system, the page cache of the checkpoint and the processes. The remainder is divided among the node's GPUs, since each
rank pins a separate pool, even if several ranks hold the same KV (as with MLA).
"""

from dataclasses import replace
from typing import Final

from warmroute_backend.plan.deployment import Choice, HiCache, Plan, PlannedEngine
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import GIB, Cluster
from warmroute_backend.plan.memory import EngineShape
from warmroute_backend.plan.model import CacheKind, Model
from warmroute_backend.plan.request import PlanRequest
from warmroute_backend.plan.words import Storage

RESERVE_GIB: Final = 10
SYSTEM_SHARE: Final = 0.2
GB: Final = 10**9
STORE_SHARE: Final = 0.25
"""The share of a rank's host memory that the shared store gets; the rank's HiCache pool gets the rest."""
LEAST_RATIO: Final = 1.2
"""The least ratio of the host's pool to the GPU's pool: a smaller host pool has little that the GPU does not have."""

STAGING_BYTES: Final = 1280 << 20
"""Host memory through which a rank's KV goes to the store's disk and back (Mooncake's default,
mooncake-store/include/storage_backend.h).
"""

LMCACHE_RULE: Final = "sglang/srt/arg_groups/kv_cache_hook.py:433-470"
LMCACHE_NODES_RULE: Final = "lmcache/integration/sglang/unified_lmcache_mp_connector.py, submit_lookup"


def host_budget_gb(plan: Plan) -> int:
    """Host memory for the tiers of each rank on a node, in 1e9 bytes."""
    gpu = plan.cluster.gpu
    usable = (gpu.host_memory_gib - RESERVE_GIB) * (1 - SYSTEM_SHARE) * GIB
    return int((usable / gpu.per_node - _staging_bytes(plan)) / GB)


def _staging_bytes(plan: Plan) -> int:
    return STAGING_BYTES if plan.site.store_disk_gb else 0


def host_tokens(plan: Plan, engine: PlannedEngine) -> int:
    if engine.hicache is None:
        return 0
    page = engine.shape.page_tokens
    return int(engine.hicache.size_gb * GB / plan.memory(engine).cell) // page * page


def rank_segment_bytes(plan: Plan) -> int:
    return int(host_budget_gb(plan) * GB * STORE_SHARE)


def rank_disk_bytes(plan: Plan) -> int:
    """The part of a node's disk that each rank may fill for the shared store: the disk space divided by the node's
    GPUs.
    """
    return plan.site.store_disk_gb * GB // plan.cluster.per_node


def engine_segment_bytes(plan: Plan, engine: PlannedEngine) -> int:
    """`global_segment_size` of an engine: the host memory that it gives to the Mooncake store.

    SGLang divides the size by the ranks of one attention group in all stages, and not by all ranks of the engine
    (`cache_controller._generate_storage_config`, `mooncake_store.py:446`). Each rank gives one such part.
    """
    return rank_segment_bytes(plan) * engine.shape.attention_tp * engine.shape.pp


def offload_gb(plan: Plan) -> int:
    """The host pool of a decode rank, through which it writes answers to the shared store, in 1e9 bytes."""
    return int(host_budget_gb(plan) * (1 - STORE_SHARE))


def rank_l1_bytes(plan: Plan) -> int:
    """Memory of LMCache's daemon for each GPU of a node."""
    return host_budget_gb(plan) * GB


def host_bytes(plan: Plan, engine: PlannedEngine) -> int:
    """Host memory for each rank of an engine: its pool and its part of the shared store, or its part of LMCache's
    daemon.
    """
    if engine.lmcache:
        return rank_l1_bytes(plan)
    stores = engine.storage == "mooncake"
    offloaded = offload_gb(plan) * GB if stores and engine.role == "decode" else 0
    pool = engine.hicache.size_gb * GB if engine.hicache is not None else offloaded
    return pool + (rank_segment_bytes(plan) + _staging_bytes(plan) if stores else 0)


def store_tokens(plan: Plan) -> int:
    """Tokens that the shared store holds. Latent KV is stored once; of other KV, each GPU's part is stored. KV in the
    store's memory is also on its disk, so the larger of both counts.
    """
    engines = [engine for engine in plan.engines if engine.storage == "mooncake"]
    if not engines:
        return 0
    ranks = sum(engine.shape.gpus for engine in engines)
    parts = (1 if plan.model.is_latent else engines[0].shape.attention_tp) * engines[0].shape.pp
    each = max(rank_segment_bytes(plan), rank_disk_bytes(plan))
    return int(each * ranks / (plan.memory(engines[0]).cell * parts))


def shares_answers(model: Model, prefill: EngineShape, decode: EngineShape) -> bool:
    """Whether prefill engines find the answers that a decode engine writes to the shared store. SGLang does not offload
    window pools or DeepSeek V4's pools (`decode_kvcache_offload_manager.py:114`). A key in the store names the stage,
    the division of the KV and the rank of heads (`mooncake_store.py:462-645`), so prefill and decode must agree on
    these."""
    same = (prefill.pp, prefill.dcp) == (decode.pp, decode.dcp)
    same &= model.is_latent or prefill.attention_tp == decode.attention_tp
    return same and model.kind not in {CacheKind.WINDOW, CacheKind.COMPRESSED}


def refuse_lmcache(engine: PlannedEngine) -> str | None:
    """Why LMCache cannot run in this engine; None if it can."""
    against = [
        (engine.hicache is not None, "HiCache"),
        (engine.speculation is not None, "speculative decoding"),
        (engine.shape.attention_dp > 1, "attention groups (DP attention)"),
        (engine.role != "aggregated", "prefill/decode disaggregation"),
    ]
    found = [what for is_so, what in against if is_so]
    if found:
        return f"SGLang runs LMCache without {', '.join(found)} only ({LMCACHE_RULE})"
    if engine.nodes > 1:
        return f"its first rank asks its own node's LMCache alone, which lacks other nodes' KV ({LMCACHE_NODES_RULE})"
    return None


NVFP4_RULE: Final = "sglang/srt/arg_groups/kv_cache_hook.py, handle_kv4_compatibility"


def refuse_nvfp4(plan: Plan, engine: PlannedEngine) -> str | None:
    """Why an engine cannot keep KV of 4 bits; None if it can. Only Blackwell has the kernels, and only for models with
    heads of keys and values. Lower tiers and transfers do not support the layout."""
    if engine.shape.kv_type != "nvfp4":
        return None
    against = [
        (not plan.cluster.gpu.is_blackwell, "on Blackwell"),
        (plan.model.kind is not CacheKind.HEADS, "for heads of keys and values that all see everything"),
        (engine.role != "aggregated", "without prefill/decode disaggregation"),
        (engine.hicache is not None or engine.lmcache, "without HiCache and LMCache"),
    ]
    found = [what for is_so, what in against if is_so]
    return f"KV of nvfp4 is planned {', '.join(found)} only ({NVFP4_RULE})" if found else None


def add_tiers(plan: Plan, request: PlanRequest) -> tuple[Plan, list[Choice]]:
    """The plan with host memory and storage, and the choices with their reasons. Raises PlanError if LMCache is
    requested and cannot run.
    """
    for engine in plan.engines:
        if (problem := refuse_nvfp4(plan, replace(engine, lmcache=request.lmcache))) is not None:
            raise PlanError(f"{engine.name}: {problem}.", ["--kv-dtype fp8_e4m3", "--pd off"])
    if request.lmcache:
        for engine in plan.engines:
            if (problem := refuse_lmcache(engine)) is not None:
                raise PlanError(
                    f"{engine.name}: {problem}.",
                    ["--pd off --speculation off --attention-dp 1 with --lmcache", "HiCache, without --lmcache"],
                )
        because = (
            "a daemon on each node keeps the KV of all its engines, and outlives them; KV that ranks have in common "
            "(latent attention) is there once."
        )
        size = f"LMCache, {rank_l1_bytes(plan) * plan.cluster.per_node // GIB} GiB a node"
        return plan, [Choice("host memory", size, because)]
    size_gb = host_budget_gb(plan)
    if (request.storage or default_storage(plan.cluster)) == "mooncake":
        size_gb = offload_gb(plan)
    keeping = [engine for engine in plan.engines if engine.role != "decode"]
    pools = {engine.name: plan.memory(engine).pool for engine in keeping}
    keeps = request.hicache is not False and request.kv_type != "nvfp4"
    useful = keeps and all(size_gb * GB >= LEAST_RATIO * pool for pool in pools.values())
    if request.hicache and request.kv_type == "nvfp4":
        raise PlanError(f"HiCache does not keep KV of nvfp4 ({NVFP4_RULE}).", ["--hicache off"])
    if request.hicache and not useful:
        largest = max(pools.values()) / GB
        raise PlanError(
            f"HiCache: {size_gb} GB of host memory a GPU are less than {LEAST_RATIO} times {largest:.0f} GB."
        )
    storage = _storage(request, plan, with_hicache=useful)
    engines = [
        replace(
            engine,
            hicache=HiCache(size_gb) if useful and engine.role != "decode" else None,
            storage=storage
            if engine.role != "decode"
            or (storage == "mooncake" and shares_answers(plan.model, keeping[0].shape, engine.shape))
            else "none",
        )
        for engine in plan.engines
    ]
    plan = replace(plan, engines=tuple(engines))
    return plan, [_hicache_choice(plan, request, size_gb, useful=useful), _storage_choice(plan, storage)]


def _storage(request: PlanRequest, plan: Plan, *, with_hicache: bool) -> Storage:
    if not with_hicache and request.storage not in {None, "none"}:
        raise PlanError(f"--storage {request.storage} is a tier behind HiCache, which this plan does not have.")
    storage = (request.storage or default_storage(plan.cluster)) if with_hicache else "none"
    if plan.site.store_disk_gb and storage != "mooncake":
        raise PlanError("--store-disk-gb is of the Mooncake store, which this plan does not have.", _MOONCAKE)
    return storage


_MOONCAKE: Final = ["--storage mooncake, with HiCache"]


def default_storage(cluster: Cluster) -> Storage:
    """The storage behind HiCache, if none was requested."""
    return "mooncake" if cluster.nodes > 1 else "none"


def _hicache_choice(plan: Plan, request: PlanRequest, size_gb: int, *, useful: bool) -> Choice:
    gpu = plan.cluster.gpu
    if not useful:
        why = "it was not wanted" if request.hicache is False else "host memory is too small beside the GPUs' pools"
        why = "it does not keep KV of nvfp4" if request.kv_type == "nvfp4" else why
        return Choice("host memory", "none", f"HiCache is off: {why}.")
    engine = next(engine for engine in plan.engines if engine.hicache is not None)
    ratio = host_tokens(plan, engine) / max(1, plan.memory(engine).tokens)
    return Choice(
        "host memory",
        f"HiCache {size_gb} GB a rank, write_through, page_first, kernel",
        f"{gpu.host_memory_gib} GiB less {RESERVE_GIB} GiB and a fifth for the system leave each of {gpu.per_node} "
        f"ranks {ratio:.1f} times the tokens of its GPU; written through, so evicted blocks are there already.",
    )


def _storage_choice(plan: Plan, storage: Storage) -> Choice:
    if storage == "mooncake":
        because = (
            "engines on several nodes find each other's prefixes, and answers that decode engines write there "
            "are cached prompts of the next turn."
            if any(engine.storage == storage for engine in plan.of("decode"))
            else "engines find each other's prefixes in one store."
        )
    elif storage == "file":
        because = "a prefix survives a restart of the engine on its own node's disk."
    else:
        because = "one node has no other engine to share with; add --storage file or mooncake to keep more."
    disk_gb = plan.site.store_disk_gb
    if disk_gb:
        because += f" {rank_disk_bytes(plan) // GB:,} GB of a node's disk a GPU keep what its memory evicts."
    return Choice("storage", f"{storage}, and {disk_gb:,} GB of each node's disk" if disk_gb else storage, because)
