"""The command line and the environment of each process of a plan.

Flags have their full names: SGLang 0.5.23 accepts abbreviations, but some that recipes use have become ambiguous.
Every setting is given, since another version may change a default.
"""

import json
from collections.abc import Mapping
from typing import Final

from warmroute_backend.costs import Role
from warmroute_backend.plan.deployment import Plan, PlannedEngine
from warmroute_backend.plan.memory import EngineShape, dispatched_tokens
from warmroute_backend.plan.model import CacheKind, Model
from warmroute_backend.plan.models import names_of
from warmroute_backend.plan.speed import overlaps
from warmroute_backend.plan.tiers import STAGING_BYTES, offload_gb, rank_disk_bytes

LAUNCH: Final = ("python3", "-m", "sglang.launch_server")
CONFIG_FOLDER: Final = "/etc/warmroute"
ENGINE_INFO_PORT: Final = 6789
HTTP_PORT: Final = 30000
LMCACHE_CONFIG: Final = "lmcache.yaml"
"""The configuration of all engines that use LMCache: on each node, its daemon has the same local address."""

PD_TIMEOUT_S: Final = 120
"""The limit of the bootstrap and of the wait for KV. SGLang's 300 s are too long: a stuck pair must fail while its
client still waits."""

LEAST_FREE_DISK: Final = "64Gi"
"""The free space that SGLang keeps on the file tier's disk, by evicting the oldest files. Without this bound the tier
would fill the disk.
"""

KEEP_ALIVE_S: Final = 120
"""How long SGLang keeps an idle connection. After its default of 5 s, it may close one while a proxy is sending."""

PARSERS: Final[Mapping[str, tuple[str, str]]] = {
    "kimi-k2": ("kimi_k2", "kimi_k2"),
    "deepseek-r1": ("deepseek-r1", "deepseekv3"),
    "deepseek-v3.1": ("deepseek-v3", "deepseekv31"),
    "deepseek-v4": ("deepseek-v4", "deepseekv4"),
    "deepseek-v3.2": ("deepseek-v3", "deepseekv32"),
    "glm-4.6": ("glm45", "glm"),
    "glm-4.7": ("glm45", "glm47"),
    "glm-5": ("glm45", "glm47"),
    "gpt-oss": ("gpt-oss", "gpt-oss"),
    "qwen3-coder": ("", "qwen3_coder"),
    "qwen3-235b": ("qwen3", "qwen25"),
    "qwen3-30b": ("qwen3", "qwen25"),
    "qwen3-8b": ("qwen3", "qwen25"),
    "qwen3-32b": ("qwen3", "qwen25"),
    "glm-5.2": ("glm45", "glm47"),
    "minimax-m2": ("minimax-append-think", "minimax-m2"),
    "llama-3.3": ("", "llama3"),
    "llama-4": ("", "pythonic"),
}
"""The beginning of a model's name -> its parsers for reasoning and for tool calls (SGLang's cookbook)."""

DEEPEP_MODES: Final[Mapping[Role, str]] = {"aggregated": "auto", "prefill": "normal", "decode": "low_latency"}

Flags = list[str]


def argv(plan: Plan, engine: PlannedEngine, node_rank: int = 0) -> list[str]:
    """The command of one process. An engine has one process on each of its nodes."""
    command = [*LAUNCH, "--model-path", plan.site.model_path or plan.model.path]
    command += ["--served-model-name", plan.model_name, "--host", "0.0.0.0"]
    command += ["--port", str(engine.ports.http)]
    command += [*_parsers(plan.model), *_parallel(plan, engine, node_rank), *_memory(plan.model, engine)]
    command += [*_kernels(plan, engine), *_reports(engine)]
    return [*command, *_tiers(plan, engine), *_drafts(engine), *_disaggregation(plan, engine)]


def mooncake_file(engine: PlannedEngine) -> str:
    """The file name of the Mooncake store's configuration for an engine. Each engine has a separate file: the segment
    of host memory depends on the engine's attention groups and stages, and two engines with one folder on disk would
    overwrite each other's files (`mooncake_store.py:548`).
    """
    return f"mooncake-{engine.name}.json"


def environment(plan: Plan, engine: PlannedEngine) -> dict[str, str]:
    """The variables of an engine's processes. The site's variables come last, and win."""
    found = {"SGLANG_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S)}
    if plan.is_split:
        found["SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"] = str(PD_TIMEOUT_S)
        found["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"] = str(PD_TIMEOUT_S)
        if plan.inside_node:
            found["SGLANG_MOONCAKE_CUSTOM_MEM_POOL"] = "INTRA_NODE_NVLINK"
            found["MC_INTRANODE_NVLINK"] = "true"
    if engine.shape.all_to_all == "deepep" and engine.role != "prefill":
        found["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] = str(dispatched_tokens(engine.shape))
    if engine.storage == "file":
        found["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = plan.site.storage_dir
        found["SGLANG_HICACHE_FILE_BACKEND_MIN_FREE_SPACE"] = LEAST_FREE_DISK
    if engine.storage == "mooncake":
        found["SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"] = f"{CONFIG_FOLDER}/{mooncake_file(engine)}"
        found["MOONCAKE_LOCAL_HOSTNAME"] = plan.site.host(engine.node)
        found |= _store_disk(plan)
    return found | dict(plan.site.environment)


def _store_disk(plan: Plan) -> dict[str, str]:
    """Variables that limit what each rank keeps on disk, both as the store counts bytes and as the file system counts
    blocks (Mooncake, docs/source/deployment/ssd/ssd-offload.md). Without limits the store fills nine tenths of the
    disk.
    """
    if not plan.site.store_disk_gb:
        return {}
    limit = str(rank_disk_bytes(plan))
    return {
        "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": limit,
        "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": limit,
        "MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES": limit,
        "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "lru",
        "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(STAGING_BYTES),
    }


def _parsers(model: Model) -> Flags:
    names = names_of(model) or (model.name.lower(),)
    command: Flags = ["--trust-remote-code"] if all(name.startswith("kimi") for name in names) else []
    found = {next((pair for prefix, pair in PARSERS.items() if name.startswith(prefix)), None) for name in names}
    if len(found) == 1 and (pair := found.pop()) is not None:
        reasoning, tools = pair
        command += ["--reasoning-parser", reasoning] if reasoning else []
        command += ["--tool-call-parser", tools]
    return command


def _parallel(plan: Plan, engine: PlannedEngine, node_rank: int) -> Flags:
    shape = engine.shape
    command = ["--tp-size", str(shape.tp), "--attn-dp-size", str(shape.attention_dp), "--ep-size", str(engine.ep)]
    command += ["--dcp-size", str(shape.dcp)] if shape.dcp > 1 else []
    command += ["--pp-size", str(shape.pp)] if shape.pp > 1 else []
    command += _experts(plan.model, shape) if shape.all_to_all == "deepep" else []
    command += ["--base-gpu-id", str(engine.first_gpu)]
    command += ["--engine-info-bootstrap-port", str(ENGINE_INFO_PORT + engine.ports.http - HTTP_PORT)]
    if engine.nodes > 1:
        command += ["--nnodes", str(engine.nodes), "--node-rank", str(node_rank)]
        return [*command, "--dist-init-addr", f"{plan.site.host(engine.node)}:{engine.ports.distributed}"]
    return [*command, "--dist-init-addr", f"127.0.0.1:{engine.ports.distributed}"]


def _experts(model: Model, shape: EngineShape) -> Flags:
    """Flags of DeepEP (sgl-project/sglang#6017): the kernels for the engine's role, and second copies of the experts
    that are used most.
    """
    command = ["--moe-a2a-backend", "deepep", "--deepep-mode", DEEPEP_MODES[shape.role]]
    command += ["--moe-dense-tp-size", "1"]
    command += ["--enable-dp-lm-head"] if shape.attention_dp > 1 else []
    if shape.redundant_experts:
        command += ["--ep-num-redundant-experts", str(shape.redundant_experts), "--enable-eplb"]
        command += ["--ep-dispatch-algorithm", "dynamic"]
    return [*command, "--enable-two-batch-overlap"] if overlaps(model, shape) else command


def _memory(model: Model, engine: PlannedEngine) -> Flags:
    shape = engine.shape
    command = ["--context-length", str(engine.context_tokens), "--page-size", str(shape.page_tokens)]
    command += ["--mem-fraction-static", f"{engine.fraction:.3f}", "--chunked-prefill-size", str(shape.chunk_tokens)]
    command += ["--max-running-requests", str(shape.running_requests)]
    command += ["--cuda-graph-max-bs-decode", str(shape.graph_batch), "--kv-cache-dtype", shape.kv_type]
    if model.kind in {CacheKind.WINDOW, CacheKind.COMPRESSED}:
        command += ["--swa-full-tokens-ratio", f"{shape.window_ratio:g}"]
    return command


def _kernels(plan: Plan, engine: PlannedEngine) -> Flags:
    """Flags that choose attention kernels: for KV of 4 bits, and for sparse attention, whose kernels decide how wide a
    row of the cache is (`overrides.py:713-726`)."""
    gpu = plan.cluster.gpu
    if engine.shape.kv_type == "nvfp4":
        return ["--attention-backend", "trtllm_mha"]  # it supports 4-bit rows and their scales
    if plan.model.kind is not CacheKind.SPARSE or gpu.vendor != "nvidia":
        return []
    if engine.shape.kv_type == "fp8_e4m3":
        prefill = decode = "trtllm" if gpu.is_blackwell else "flashmla_kv"
    else:
        prefill, decode = "flashmla_sparse", "trtllm" if gpu.is_blackwell else "fa3"
    return ["--dsa-prefill-backend", prefill, "--dsa-decode-backend", decode]


def _reports(engine: PlannedEngine) -> Flags:
    """Flags for what the proxy reads: cached tokens, counters, KV events. A decode engine has no prefix cache, so it
    sends no KV events.
    """
    command = ["--enable-cache-report", "--enable-metrics"]
    if engine.role == "decode":
        return command
    events = {
        "publisher": "zmq",
        "topic": "kv-events",
        "endpoint": f"tcp://*:{engine.ports.kv_events}",
        "replay_endpoint": f"tcp://*:{engine.ports.kv_replay}",
    }
    return [*command, "--kv-events-config", json.dumps(events)]


def _tiers(plan: Plan, engine: PlannedEngine) -> Flags:
    if engine.lmcache:
        return ["--enable-lmcache", "--lmcache-config-file", f"{CONFIG_FOLDER}/{LMCACHE_CONFIG}"]
    command: Flags = []
    if engine.hicache is not None:
        found = engine.hicache
        command += ["--enable-hierarchical-cache", *_host_size(plan, engine, found.size_gb)]
        command += ["--hicache-write-policy", found.write_policy, "--hicache-mem-layout", found.layout]
        command += ["--hicache-io-backend", found.io_backend]
    if engine.storage != "none":
        command += ["--hicache-storage-backend", engine.storage, "--hicache-storage-prefetch-policy", "timeout"]
    return command


def _host_size(plan: Plan, engine: PlannedEngine, size_gb: int) -> Flags:
    """The flag for the size of the host pool. For DeepSeek V4, SGLang supports only a ratio and no `--hicache-size`
    (`hybrid_pool_assembler.py:659`).
    """
    if plan.model.kind is not CacheKind.COMPRESSED:
        return ["--hicache-size", str(size_gb)]
    hundredths = size_gb * 10**9 * 100 // max(1, plan.memory(engine).pool)
    return ["--hicache-ratio", f"{hundredths / 100:g}"]


def _drafts(engine: PlannedEngine) -> Flags:
    found = engine.speculation
    if found is None:
        return []
    command = ["--speculative-algorithm", found.algorithm]
    if found.path is not None:
        command += ["--speculative-draft-model-path", found.path]
    command += ["--speculative-num-steps", str(found.steps), "--speculative-eagle-topk", str(found.topk)]
    return [*command, "--speculative-num-draft-tokens", str(found.draft_tokens)]


def _disaggregation(plan: Plan, engine: PlannedEngine) -> Flags:
    if engine.role == "aggregated":
        return []
    command = ["--disaggregation-mode", engine.role, "--disaggregation-transfer-backend", "mooncake"]
    command += ["--disaggregation-bootstrap-port", str(engine.ports.bootstrap)]
    if plan.site.ib_devices and not plan.inside_node:
        command += ["--disaggregation-ib-device", plan.site.ib_devices]
    if engine.role == "decode":
        # The other mode, `host_pool`, reserves a host pool for retracted requests, and excludes the store's offload.
        command += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
        if engine.storage == "mooncake":
            # Without a size, the host pool is twice the GPU's (`kv_cache_builder.resolve_decode_retraction_backup`).
            command += ["--disaggregation-decode-enable-offload-kvcache", "--hicache-size", str(offload_gb(plan))]
    return command
