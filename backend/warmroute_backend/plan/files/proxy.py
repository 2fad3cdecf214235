"""The proxy's TOML for a plan's engines, and the configuration of the Mooncake store.

The operator has to set prices and tenants. Until then the model is free, and the only tenant is a placeholder that no
API key opens.
"""

from typing import Any, Final

import tomli_w

from warmroute_backend.plan.argv import mooncake_file
from warmroute_backend.plan.deployment import Plan, PlannedEngine
from warmroute_backend.plan.lmcache import store_name
from warmroute_backend.plan.tables import table, value
from warmroute_backend.plan.tiers import engine_segment_bytes

REGION: Final = "here"
MASTER: Final = "mooncake-master"
STORE: Final = "mooncake"
"""The store's folder below the storage folder."""
STATE_DIR: Final = "/var/lib/warmroute"
_HEAD: Final = f"""# The proxy of this plan. Set prices and tenants (`warmroute key`), then:
# warmroute proxy --config proxy.toml --check
[proxy]
region = "{REGION}"
host = "0.0.0.0"
port = 8000
admin_port = 8001
state_dir = %s

[secret]
file = "secret"                 # made with `openssl rand -hex 32 > secret`

[[region]]
name = "{REGION}"
url = ""
"""


def proxy_config(plan: Plan, *, in_pods: bool = False, in_unit: bool = False) -> str:
    """The proxy's TOML. `in_pods`: whether engines have their names in Kubernetes; `in_unit`: whether the proxy writes
    to the folder that its systemd unit allows.
    """
    head = _HEAD % value(STATE_DIR if in_unit else "state")
    return "\n".join([head, *tables_of(plan, in_pods=in_pods), tenant_to_replace()])


def tenant_to_replace() -> str:
    """A placeholder tenant: no key matches its digest."""
    return table("[[tenant]]", {"name": "replace-me", "key_sha256": ["0" * 64]})


def tables_of(plan: Plan, *, in_pods: bool = False) -> list[str]:
    """The tables of the proxy's TOML that follow from a plan alone: its engines and its model."""
    found = []
    for number, engine in enumerate(plan.engines):
        host = pod_host(plan, engine, number) if in_pods else plan.site.host(engine.node)
        ports = plan.of(engine.role)[0].ports if in_pods else engine.ports
        values: dict[str, str | int] = {
            "id": engine.name,
            "url": f"http://{host}:{ports.http}",
            "region": REGION,
            "role": engine.role,
        }
        if engine.role == "prefill":
            values |= {"bootstrap_host": host, "bootstrap_port": ports.bootstrap}
        if engine.storage == "mooncake":
            values["store"] = "mooncake"
        elif not in_pods and (shared := store_name(plan, engine)) is not None:
            values["store"] = shared
        found.append(table("[[engine]]", values))
    shape = {"context_tokens": plan.engines[0].context_tokens, "vocabulary_tokens": plan.model.vocabulary}
    return [*found, table("[[model]]", {"name": plan.model_name}) + _rates(plan) + tomli_w.dumps(shape)]


def _rates(plan: Plan) -> str:
    price = plan.price
    if price is None:
        return "free = true  # until it has prices\n"
    comment = f"# {value(price.why)[1:-1]}\n" if price.why else ""
    rates = {"input": price.input, "cached": price.cached, "output": price.output}
    return f"{comment}{tomli_w.dumps(rates)}"


def pod_host(plan: Plan, engine: PlannedEngine, number: int) -> str:
    """The host name of an engine's leader. A LeaderWorkerSet has a headless service with the set's name, in which a
    leader is called `<set>-<group>` (`SubdomainShared`, kubernetes-sigs/lws, api/leaderworkerset/v1)."""
    first = next(at for at, each in enumerate(plan.engines) if each.role == engine.role)
    return f"{engine.role}-{number - first}.{engine.role}.{plan.site.namespace}.svc"


def mooncake_configs(plan: Plan, *, in_pods: bool = False) -> dict[str, dict[str, Any]]:
    """The configurations of the Mooncake store that engines read: file name -> members of the JSON file that
    `SGLANG_HICACHE_MOONCAKE_CONFIG_PATH` names. The host's name comes from `MOONCAKE_LOCAL_HOSTNAME`, so one file
    serves all nodes of an engine. In Kubernetes all pods of a role have the file of the role's first engine.

    `check_server` is not set: if it is, an engine gives its segment of memory to the store only after the master has
    another segment (`mooncake_store.py`, SGLang 0.5.23).
    """
    stored = [engine for engine in plan.engines if engine.storage == "mooncake"]
    if in_pods:
        stored = [engine for engine in stored if engine is plan.of(engine.role)[0]]
    master = f"{MASTER}.{plan.site.namespace}.svc" if in_pods else plan.site.host(0)
    return {mooncake_file(engine): _mooncake(plan, engine, master) for engine in stored}


def _mooncake(plan: Plan, engine: PlannedEngine, master: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "master_server_address": f"{master}:{plan.site.store_port}",
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "rdma",
        "device_name": plan.site.ib_devices,
        "global_segment_size": engine_segment_bytes(plan, engine),
    }
    if plan.site.store_disk_gb:
        found |= {"enable_ssd_offload": True, "ssd_offload_path": f"{plan.site.storage_dir}/{STORE}/{engine.name}"}
    return found


def master_command(plan: Plan, program: str = "mooncake_master") -> list[str]:
    """The Mooncake master's command line. If the store has a disk, KV in its memory is written to disk at once."""
    command = [program, f"--rpc_port={plan.site.store_port}", f"--metrics_port={plan.site.store_metrics_port}"]
    command.append("--eviction_high_watermark_ratio=0.95")
    return [*command, "--enable_offload=true"] if plan.site.store_disk_gb else command
