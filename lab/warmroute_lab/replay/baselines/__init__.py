"""Baselines: published and plain policies, each faithful to its source and named after it.

A baseline never reads what its source could not know. A module is imported when one of its policies is made, since a
run needs few modules, and imports take a good part of a short replay.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from warmroute_lab.replay.fleet import ReplayFleet
from warmroute_lab.replay.policy import Policy


def _of(module: str, name: str, **options: Any) -> Callable[[ReplayFleet], Policy]:
    def make(fleet: ReplayFleet) -> Policy:
        made: Policy = getattr(import_module(f"{__name__}.{module}"), name)(fleet, **options)
        return made

    return make


BASELINES: Final[dict[str, Callable[[ReplayFleet], Policy]]] = {
    "round_robin": _of("load", "RoundRobin"),
    "random": _of("load", "RandomChoice"),
    "session_hash": _of("load", "SessionHash"),
    "smg_event": _of("smg", "SmgEvent"),
    "smg_event+in_flight": _of("smg", "SmgEvent", in_flight=True),
    "llmd_affinity": _of("llmd", "LlmdAffinity"),
    "llmd_affinity+in_flight": _of("llmd", "LlmdAffinity", in_flight=True),
    "least_tokens": _of("load", "LeastTokens"),
    "least_requests": _of("load", "LeastRequests"),
    "p2c_tokens": _of("load", "PowerOfTwo"),
    "session_sticky": _of("load", "SessionSticky"),
    "prefix_hash": _of("hashing", "PrefixHash"),
    "chwbl_session": _of("hashing", "BoundedRing"),
    "chwbl_prefix": _of("hashing", "BoundedRing", by_prefix=True),
    "smg_prefix_hash": _of("hashing", "SmgPrefixHash"),
    "smg_approx": _of("smg", "SmgApprox"),
    "smg_approx+cli": _of("smg", "smg_approx_cli"),
    "dynamo_kv": _of("dynamo", "DynamoKv"),
    "dynamo_kv+scale16": _of("dynamo", "DynamoKv", prefill_load_scale=16.0),
    "preble_e2": _of("preble", "PrebleE2"),
    "lmetric": _of("load", "LMetric"),
    "dualmap_no_rebalance": _of("dualmap", "DualMap"),
    "skylb": _of("skylb", "SkyLb"),
    "thunderagent": _of("thunderagent", "ThunderAgent"),
}
