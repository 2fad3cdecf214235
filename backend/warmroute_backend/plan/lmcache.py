"""LMCache in place of HiCache: a daemon on each node for all engines of the node, and the engines' configuration.

The daemon (`lmcache server`) keeps the KV in its host memory, and runs on when engines end. Engines read the daemon's
address from a file (`sglang/srt/mem_cache/storage/lmcache/README.md`, SGLang 0.5.23; LMCache 0.5.6). When a daemon
ends, its engines must end, too: SGLang polls a lookup without a limit, so each request would wait forever, while
`/ready` and `/health` still answer 200.
"""

from typing import Final

from warmroute_backend.plan.deployment import Plan, PlannedEngine
from warmroute_backend.plan.hardware import GIB
from warmroute_backend.plan.model import CacheKind
from warmroute_backend.plan.tiers import rank_l1_bytes

DAEMON: Final = "lmcache"
LOCAL: Final = "127.0.0.1"
HEALTH: Final = "/healthcheck"
ENVIRONMENT: Final = (("LMCACHE_TRACK_USAGE", "false"), ("LMCACHE_DISABLE_BANNER", "1"))
"""Variables of the daemon. LMCache sends usage figures to its makers unless it is told not to
(`lmcache/usage_telemetry/identity.py`)."""


def config_text(plan: Plan) -> str:
    """The text of the file that `--lmcache-config-file` names."""
    return f"mp_host: {LOCAL}\nmp_port: {plan.site.lmcache_port}\n"


def daemon_command(plan: Plan, gpus: int, program: str = "lmcache") -> list[str]:
    """The command of the daemon for `gpus` GPUs. The daemon has a thread for each rank that moves KV. Window pools are
    kept apart, as SGLang demands (`unified_lmcache_mp_connector.py`). Both ports are local, because the HTTP port is an
    admin port without a key.
    """
    command = [program, "server", "--host", LOCAL, "--port", str(plan.site.lmcache_port)]
    command += ["--http-host", LOCAL, "--http-port", str(plan.site.lmcache_http_port)]
    command += ["--l1-size-gb", str(l1_gib(plan, gpus)), "--eviction-policy", "LRU", "--max-gpu-workers", str(gpus)]
    return [*command, "--separate-object-groups"] if plan.model.kind is CacheKind.WINDOW else command


def l1_gib(plan: Plan, gpus: int) -> int:
    """Host memory of the daemon for `gpus` GPUs, in GiB, LMCache's unit."""
    return rank_l1_bytes(plan) * gpus // GIB


def store_name(plan: Plan, engine: PlannedEngine) -> str | None:
    """The daemon's name as a store in the proxy's configuration, if engines share the daemon; None if the daemon serves
    this engine alone.
    """
    beside = [each for each in plan.engines if each.lmcache and each.node == engine.node]
    return f"{DAEMON}-node{engine.node}" if engine.lmcache and len(beside) > 1 else None
