"""All files of a plan (path below the output folder -> text), and the values of the chart `deploy/helm/warmroute`."""

import json
from typing import Any

from warmroute_backend.plan.argv import LMCACHE_CONFIG, argv, environment
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.files.kubernetes import APP, STOP_S, manifests
from warmroute_backend.plan.files.proxy import REGION, mooncake_configs, proxy_config, tables_of, tenant_to_replace
from warmroute_backend.plan.files.units import units
from warmroute_backend.plan.lmcache import DAEMON, ENVIRONMENT, config_text, daemon_command
from warmroute_backend.plan.plan_file import written


def chart_values(plan: Plan) -> dict[str, Any]:
    """The chart's values for a plan. A proxy's pod has as much time to end as an engine's pod."""
    return {
        "region": REGION,
        "longestStreamSeconds": STOP_S,
        "config": "\n".join([*tables_of(plan, in_pods=True), tenant_to_replace()]),
        "monitoring": {"engineSelector": {APP: "sglang"}},
    }


def processes(plan: Plan) -> list[dict[str, Any]]:
    """Name, host, environment and command line of each process: first LMCache's daemons, then the engines."""
    command = daemon_command(plan, plan.cluster.per_node)
    variables = dict(ENVIRONMENT)
    daemons: list[dict[str, Any]] = [
        {"name": f"{DAEMON}-node{node}", "host": plan.site.host(node), "environment": variables, "argv": command}
        for node in sorted({engine.node for engine in plan.engines if engine.lmcache})
    ]
    return daemons + [
        {
            "name": engine.name if engine.nodes == 1 else f"{engine.name}-node{rank}",
            "host": plan.site.host(engine.node + rank),
            "environment": environment(plan, engine),
            "argv": argv(plan, engine, rank),
        }
        for engine in plan.engines
        for rank in range(engine.nodes)
    ]


def deployment_files(plan: Plan, model: str, page: str) -> dict[str, str]:
    """The files of a plan. `model`: the model's name on the command line; `page`: the readable page."""
    found = {"plan.toml": written(plan, model), "plan.txt": page, "proxy.toml": proxy_config(plan)}
    found |= {f"processes/{process['name']}.json": _json(process) for process in processes(plan)}
    found |= {f"systemd/{name}": text for name, text in units(plan).items()}
    found["systemd/proxy.toml"] = proxy_config(plan, in_unit=True)
    found |= {f"kubernetes/{name}.json": _json(manifest) for name, manifest in manifests(plan).items()}
    found["helm/values.json"] = _json(chart_values(plan))
    found["kubernetes/proxy.toml"] = proxy_config(plan, in_pods=True)
    found |= {LMCACHE_CONFIG: config_text(plan)} if plan.has_lmcache else {}
    return found | {name: _json(config) for name, config in mooncake_configs(plan).items()}


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
