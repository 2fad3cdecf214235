"""Plans that tests look at, by name: one of each kind of deployment."""

from typing import Any, Final

from warmroute_backend.plan.choose import make_plan
from warmroute_backend.plan.deployment import Plan, Site, Traffic
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.request import PlanRequest

TRAFFIC: Final = Traffic(60_000, 400, 1.0, 0.9)
FABRIC: Final = (("NCCL_IB_HCA", "^mlx5_3"), ("NAME", 'a "quoted" % $value'))

CABLED: Final = Site(ib_devices="mlx5_0", environment=FABRIC)


def request(model: str, gpus: str, **options: Any) -> PlanRequest:
    return PlanRequest(known_model(model), parse_cluster(gpus), **options)


def plan(model: str, gpus: str, **options: Any) -> Plan:
    return make_plan(request(model, gpus, **options))


KINDS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "aggregated": ("kimi-k2.5", "8xH200", {"traffic": TRAFFIC}),
    "attention groups": ("deepseek-v3.2", "8xB200", {"objective": "throughput"}),
    "inside a node": ("gpt-oss-120b", "8xH100", {"split": (4, 4)}),
    "over nodes": ("deepseek-r1", "4x8xH200", {"split": (8, 24), "site": CABLED}),
    "an engine of two nodes": ("kimi-k2-instruct", "2x8xH200", {"objective": "throughput"}),
    "eight small engines": ("gpt-oss-120b", "8xH200", {"objective": "throughput"}),
    "LMCache": ("glm-4.6", "8xH200", {"lmcache": True}),
    "divided KV": ("kimi-k2.5", "8xH200", {"dcp": 8, "traffic": TRAFFIC}),
    "wide experts": (
        "deepseek-r1",
        "13x8xH100",
        {"split": (32, 72), "all_to_all": "deepep", "objective": "throughput", "context_tokens": 4500, "site": CABLED},
    ),
    "pipeline stages": ("kimi-k2-instruct", "2x8xH200", {"pp": 2, "split": (0, 0)}),
    "store on disks": (
        "deepseek-r1",
        "2x8xH200",
        {"split": (8, 8), "site": Site(ib_devices="mlx5_0", store_disk_gb=8000)},
    ),
    "files": ("qwen3-coder-480b", "8xB200", {"storage": "file"}),
}


def kind(name: str) -> Plan:
    model, gpus, options = KINDS[name]
    return plan(model, gpus, **options)
