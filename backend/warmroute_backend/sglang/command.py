"""SGLang's command line on a CPU: the arguments and the environment of one server. No I/O.

The aggregated server has HiCache in three tiers (device, host, files) and KV events. In a pair of prefill and decode
servers, only prefill sends KV events, since decode has no prefix cache. KV goes from prefill to decode by NIXL, or by
Mooncake over TCP. The speculative server is a single server with an EAGLE-3 draft model and without HiCache.
"""

import json
from pathlib import Path
from typing import Literal

from warmroute_backend.ports import Ports
from warmroute_backend.sglang.installation import Installation

Transfer = Literal["nixl", "mooncake_tcp"]
Role = Literal["aggregated", "prefill", "decode", "speculative"]

HOST = "127.0.0.1"
MODEL_NAME = "tiny"
PAGE_TOKENS = 16
CONTEXT_TOKENS = 16_384
"""Enough for a recorded turn of a coding agent, which has up to 11,300 tokens in the tiny model's tokenizer."""

POOL_TOKENS = 32_768
HOST_POOL_RATIO = 2
"""The host pool's size over the device pool's size. HiCache uses the host pool, and decode for requests that it has to
put off."""

RUNNING_REQUESTS = 8
QUEUED_REQUESTS = 8
THREADS = 1
"""Threads of torch. With more threads, tiny operations wait for each other: on two busy cores an answer takes twenty
times as long.
"""

STORE_DISK_BYTES = 4 * 2**30
STORE_STAGING_BYTES = 256 * 2**20
STORE_BUCKET_KEYS = 32
"""Blocks that go to disk together. Mooncake's default is 500, more than a short prompt has."""

LMCACHE_GIB = 1
"""Memory in GiB that LMCache's daemon takes at its start."""

DECODE_OFFLOAD_STRIDE = 64
"""Tokens of an answer after which decode writes its KV to the store."""

BOOTSTRAP_TIMEOUT_S = 10
WAITING_TIMEOUT_S = 15
"""How long prefill waits for decode, and decode for the KV, on a machine as fast as the reference (`speed`). SGLang's
default of 300 s is longer than a turn may take.
"""
MAX_TIMEOUT_S = 240
"""The longest wait on any machine, below SGLang's default of 300 s."""


def arguments(
    role: Role, ports: Ports, found: Installation, *, tiers: bool = True, transfer: Transfer = "nixl"
) -> list[str]:
    """The command of a server. `tiers`: whether a single server has HiCache; `transfer`: what moves KV from prefill to
    decode.
    """
    command = [str(found.python), str(found.launcher), "--model-path", str(found.model)]
    command += ["--served-model-name", MODEL_NAME, "--host", HOST, "--port", str(ports.http)]
    command += ["--nccl-port", str(ports.distributed), *_cpu(), *_limits()]
    command += ["--enable-cache-report", "--enable-metrics", "--kv-events-config", kv_events(ports)]
    if role == "aggregated":
        return command + (hicache() if tiers else [])
    return command + (_drafts(found) if role == "speculative" else _disaggregation(role, ports, transfer))


def environment(
    storage_dir: Path, temporary_dir: Path | None, parent_pid: int | None, slowness: float
) -> dict[str, str]:
    """The environment variables of a server in addition to the inherited ones. `temporary_dir`: the folder of its
    sockets, if given. `parent_pid`: the process with which the server ends, if given. `slowness`: the factor for its
    time limits.
    """
    found = {
        "OMP_NUM_THREADS": str(THREADS),
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # as if unset: bytecode is beside the sources
        "PYTHONPYCACHEPREFIX": "",
        "TORCHDYNAMO_DISABLE": "1",  # else a C++ compiler runs for 10 s at each start with a draft
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(storage_dir),
        "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES": "1",
        "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": _stretched(BOOTSTRAP_TIMEOUT_S, slowness),
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": _stretched(WAITING_TIMEOUT_S, slowness),
    }
    if temporary_dir is not None:
        found["TMPDIR"] = str(temporary_dir)
    if parent_pid is not None:
        found["WARMROUTE_PARENT_PID"] = str(parent_pid)
    return found


def _stretched(limit_s: int, slowness: float) -> str:
    return str(min(MAX_TIMEOUT_S, round(limit_s * slowness)))


def _cpu() -> list[str]:
    """Flags for a CPU. Without `--sleep-on-idle`, an idle scheduler keeps a whole core busy."""
    command = ["--device", "cpu", "--dtype", "bfloat16", "--attention-backend", "torch_native", "--sleep-on-idle"]
    command += ["--sampling-backend", "pytorch", "--grammar-backend", "none"]
    return [*command, "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]


def _limits() -> list[str]:
    command = ["--context-length", str(CONTEXT_TOKENS), "--max-total-tokens", str(POOL_TOKENS)]
    command += ["--page-size", str(PAGE_TOKENS), "--max-running-requests", str(RUNNING_REQUESTS)]
    command += ["--max-queued-requests", str(QUEUED_REQUESTS)]
    return [*command, "--hicache-ratio", str(HOST_POOL_RATIO)]


def kv_events(ports: Ports) -> str:
    """The value of `--kv-events-config` for a server of this machine."""
    events = {
        "publisher": "zmq",
        "topic": "kv-events",
        "endpoint": f"tcp://{HOST}:{ports.kv_events}",
        "bind": True,
        "replay_endpoint": f"tcp://{HOST}:{ports.kv_replay}",
    }
    return json.dumps(events)


def hicache(storage: Literal["file", "mooncake"] = "file") -> list[str]:
    """Flags of HiCache with a host tier and a storage tier. All KV in the pool is copied to these tiers at once, and a
    request waits until its KV is fetched from them.
    """
    command = ["--enable-hierarchical-cache"]
    command += ["--hicache-write-policy", "write_through", "--hicache-io-backend", "direct"]
    command += ["--hicache-mem-layout", "page_first_direct", "--hicache-storage-backend", storage]
    return [*command, "--hicache-storage-prefetch-policy", "wait_complete"]


def lmcache(config: Path) -> list[str]:
    """Flags of an engine that uses LMCache's daemon in place of HiCache."""
    return ["--enable-lmcache", "--lmcache-config-file", str(config)]


def lmcache_daemon(program: str, port: int, http_port: int) -> list[str]:
    """The command of LMCache's daemon. Without CUDA the engine copies KV to the daemon (`auto`)."""
    command = [program, "server", "--host", HOST, "--port", str(port), "--http-host", HOST]
    command += ["--http-port", str(http_port), "--l1-size-gb", str(LMCACHE_GIB), "--eviction-policy", "LRU"]
    return [*command, "--supported-transfer-mode", "auto"]


def offload() -> list[str]:
    """Flags of a decode engine that writes its answers to the store, so that the next turn's prefill finds them
    (`plan.argv`).
    """
    command = ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
    command += ["--disaggregation-decode-enable-offload-kvcache", "--hicache-io-backend", "direct"]
    return [*command, "--hicache-mem-layout", "page_first_direct", "--hicache-storage-backend", "mooncake"]


def store_environment(config: Path, *, has_disk: bool) -> dict[str, str]:
    """The variables of an engine with the Mooncake store over TCP. The store's disk is limited as in `plan.argv`."""
    found = {
        "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": str(config),
        "MOONCAKE_LOCAL_HOSTNAME": HOST,
        "MC_FORCE_TCP": "1",
        "SGLANG_HICACHE_DECODE_OFFLOAD_STRIDE": str(DECODE_OFFLOAD_STRIDE),
    }
    if has_disk:
        limits = ("TOTAL_SIZE_LIMIT_BYTES", "BUCKET_MAX_TOTAL_SIZE", "BUCKET_MAX_PHYSICAL_BYTES")
        found |= {f"MOONCAKE_OFFLOAD_{name}": str(STORE_DISK_BYTES) for name in limits}
        found |= {"MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "lru"}
        found |= {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(STORE_STAGING_BYTES)}
        found |= {"MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": str(STORE_BUCKET_KEYS)}
    return found


def _disaggregation(role: Role, ports: Ports, transfer: Transfer) -> list[str]:
    command = ["--disaggregation-mode", role, "--disaggregation-transfer-backend", transfer]
    return [*command, "--disaggregation-bootstrap-port", str(ports.bootstrap)]


def _drafts(found: Installation) -> list[str]:
    """Flags for chains of three drafts. They choose the attention backend that supports drafts, whose kernels are
    replaced by Python here.
    """
    command = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(found.model / "draft")]
    command += ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]
    return [*command, "--attention-backend", "intel_amx"]
