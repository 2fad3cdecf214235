"""Values for the chart `deploy/helm/warmroute`: proxies in front of the engines that the manifests start."""

from typing import Any

from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.files.kubernetes import APP, STOP_S
from warmroute_backend.plan.files.proxy import REGION, tables_of, tenant_to_replace


def chart_values(plan: Plan) -> dict[str, Any]:
    """What the chart has to know of a plan; a pod of a proxy has as long to end as one of an engine."""
    return {
        "region": REGION,
        "longestStreamSeconds": STOP_S,
        "config": "\n".join([*tables_of(plan, in_pods=True), tenant_to_replace()]),
        "monitoring": {"engineSelector": {APP: "sglang"}},
    }
