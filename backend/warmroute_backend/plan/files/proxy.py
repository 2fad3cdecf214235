"""What fits a plan's engines: the proxy's TOML, and the configuration of the Mooncake store.

The operator sets prices and tenants: until then the model is free, and no key opens the one tenant.
"""

import json
from typing import Any, Final

from warmroute_backend.plan.argv import mooncake_file
from warmroute_backend.plan.deployment import Engine, Plan
from warmroute_backend.plan.tiers import engine_segment_bytes

REGION: Final = "here"
MASTER: Final = "mooncake-master"
MASTER_PORT: Final = 50051
STATE_DIR: Final = "/var/lib/warmroute"
_HEAD: Final = """# The proxy of this plan. Set prices and tenants (`warmroute key`), then:
# warmroute proxy --config proxy.toml --check
[proxy]
region = "here"
host = "0.0.0.0"
port = 8000
admin_port = 8001
state_dir = "state"

[secret]
file = "secret"                 # made with `openssl rand -hex 32 > secret`

[[region]]
name = "here"
url = ""
"""


def proxy_config(plan: Plan, *, in_pods: bool = False, in_unit: bool = False) -> str:
    """The proxy's TOML; `in_pods`: with the names that engines have in Kubernetes; `in_unit`: with the folder that the
    unit may write.
    """
    head = _HEAD.replace('state_dir = "state"', f'state_dir = "{STATE_DIR}"') if in_unit else _HEAD
    return "\n".join([head, *tables_of(plan, in_pods=in_pods), *tenants_to_replace()])


def tenants_to_replace() -> list[str]:
    """A placeholder tenant: no key matches its digest."""
    return ["[[tenant]]", 'name = "replace-me"', f'key_sha256 = ["{"0" * 64}"]', ""]


def tables_of(plan: Plan, *, in_pods: bool = False) -> list[str]:
    """The lines of the proxy's TOML that follow from a plan alone: its engines and its model."""
    lines = []
    for number, engine in enumerate(plan.engines):
        host = pod_host(plan, engine, number) if in_pods else plan.site.host(engine.node)
        ports = plan.of(engine.role)[0].ports if in_pods else engine.ports
        lines += ["[[engine]]", f"id = {_text(engine.name)}", f"url = {_text(f'http://{host}:{ports.http}')}"]
        lines += [f'region = "{REGION}"', f'role = "{engine.role}"']
        if engine.role == "prefill":
            lines += [f"bootstrap_host = {_text(host)}", f"bootstrap_port = {ports.bootstrap}"]
        if engine.storage == "mooncake":
            lines.append('store = "mooncake"')
        lines.append("")
    lines += ["[[model]]", f"name = {_text(plan.model_name)}"]
    return [
        *lines,
        *_rates(plan),
        f"context_tokens = {plan.engines[0].context_tokens}",
        f"vocabulary_tokens = {plan.model.vocabulary}",
        "",
    ]


def _rates(plan: Plan) -> list[str]:
    if plan.price is None:
        return ["free = true  # until it has prices"]
    comment = f"  # {plan.price.why}" if plan.price.why else ""
    return [
        f"input = {_text(plan.price.input)}{comment}",
        f"cached = {_text(plan.price.cached)}",
        f"output = {_text(plan.price.output)}",
    ]


def pod_host(plan: Plan, engine: Engine, number: int) -> str:
    """The name of an engine's leader: LeaderWorkerSet makes a headless service of the set's name, in which pod
    `<set>-<group>` has its name (`SubdomainShared`, kubernetes-sigs/lws, api/leaderworkerset/v1)."""
    first = next(at for at, each in enumerate(plan.engines) if each.role == engine.role)
    return f"{engine.role}-{number - first}.{engine.role}.{plan.site.namespace}.svc"


def mooncake_configs(plan: Plan, *, in_pods: bool = False) -> dict[str, dict[str, Any]]:
    """File name -> what `SGLANG_HICACHE_MOONCAKE_CONFIG_PATH` names. The host's name comes from
    `MOONCAKE_LOCAL_HOSTNAME`, so one file serves all nodes, and all engines with the same attention groups.
    """
    stored = [engine for engine in plan.engines if engine.storage == "mooncake"]
    master = f"{MASTER}.{plan.site.namespace}.svc" if in_pods else plan.site.host(0)
    return {mooncake_file(engine): _mooncake(plan, engine, master) for engine in stored}


def _mooncake(plan: Plan, engine: Engine, master: str) -> dict[str, Any]:
    return {
        "master_server_address": f"{master}:{MASTER_PORT}",
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "rdma",
        "device_name": plan.site.ib_devices,
        "global_segment_size": engine_segment_bytes(plan, engine),
        "check_server": True,
    }


def _text(value: str) -> str:
    return json.dumps(value)
