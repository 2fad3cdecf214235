"""A request as placement knows it, for tests of the core."""

from typing import Any

from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest


def routing_of(chain: Chain, **changed: Any) -> RoutingRequest:
    """The first turn of session 1, of this prompt; `changed`: fields that are others."""
    fields: dict[str, Any] = {
        "model": "m",
        "lineage": 1,
        "session": 1,
        "derived": False,
        "parent": None,
        "chain": chain,
        "structural_bytes": 0,
        "turn": 1,
        "expected_output_tokens": 300,
        "home_hint": None,
        "allowed_regions": None,
        "may_forward": True,
    }
    return RoutingRequest(**{**fields, **changed})
