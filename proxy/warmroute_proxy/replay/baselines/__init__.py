"""Baselines: published and plain policies, each faithful to its source and named so. One file a family."""

from collections.abc import Callable
from typing import Final

from warmroute_proxy.replay.baselines.blind import RandomChoice, RoundRobin, SessionHash
from warmroute_proxy.replay.baselines.dualmap import DualMap
from warmroute_proxy.replay.baselines.dynamo import DynamoKv
from warmroute_proxy.replay.baselines.hashing import BoundedRing, PrefixHash, SmgPrefixHash
from warmroute_proxy.replay.baselines.llmd import LlmdAffinity
from warmroute_proxy.replay.baselines.lmetric import LMetric
from warmroute_proxy.replay.baselines.load import LeastRequests, LeastTokens, PowerOfTwo, SessionSticky
from warmroute_proxy.replay.baselines.preble import PrebleE2
from warmroute_proxy.replay.baselines.skylb import SkyLb
from warmroute_proxy.replay.baselines.smg_event import SmgEvent
from warmroute_proxy.replay.baselines.smg_tree import CLI, SmgApprox
from warmroute_proxy.replay.fleet import Fleet
from warmroute_proxy.replay.policy import Policy

BASELINES: Final[dict[str, Callable[[Fleet], Policy]]] = {
    "round_robin": RoundRobin,
    "random": RandomChoice,
    "session_hash": SessionHash,
    "smg_event": SmgEvent,
    "smg_event+in_flight": lambda fleet: SmgEvent(fleet, in_flight=True),
    "llmd_affinity": LlmdAffinity,
    "llmd_affinity+in_flight": lambda fleet: LlmdAffinity(fleet, in_flight=True),
    "least_tokens": LeastTokens,
    "least_requests": LeastRequests,
    "p2c_tokens": PowerOfTwo,
    "session_sticky": SessionSticky,
    "prefix_hash": PrefixHash,
    "chwbl_session": BoundedRing,
    "chwbl_prefix": lambda fleet: BoundedRing(fleet, by_prefix=True),
    "smg_prefix_hash": SmgPrefixHash,
    "smg_approx": SmgApprox,
    "smg_approx+cli": lambda fleet: SmgApprox(fleet, CLI),
    "dynamo_kv": DynamoKv,
    "dynamo_kv+scale16": lambda fleet: DynamoKv(fleet, prefill_load_scale=16.0),
    "preble_e2": PrebleE2,
    "lmetric": LMetric,
    "dualmap_no_rebalance": DualMap,
    "skylb": SkyLb,
}
