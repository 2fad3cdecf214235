"""Leaves out an engine's token counts that cannot be true (`core.accounting.plausible`)."""

from typing import Any, Final, NamedTuple, Protocol

import msgspec

from warmroute_proxy.core.accounting.plausible import COMPLETION, PROMPT, Allowed, doubted, without
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.dialects.chunk_view import ONE_TOKEN_BYTES
from warmroute_proxy.server.engines.sse import UsageTracker
from warmroute_proxy.server.request.answer import Answer
from warmroute_proxy.server.request.dispatch import DispatchFields

_OTHER_NAMES: Final = {
    PROMPT: (
        "prompt_tokens_details",
        "input_tokens",
        "input_tokens_details",
        "cached_tokens",
        "prompt_cache_hit_tokens",
    ),
    COMPLETION: ("completion_tokens_details", "reasoning_tokens", "output_tokens", "output_tokens_details"),
}
"""For each count: the other members of a usage object that are left out, too, if the count cannot be true."""


class Asked(DispatchFields, Protocol):
    """The fields of a request by which its token counts are bounded."""

    @property
    def routing(self) -> RoutingRequest: ...
    @property
    def opaque(self) -> bool: ...
    @property
    def most_tokens(self) -> int: ...
    @property
    def demanded_tokens(self) -> int: ...


class Believed(NamedTuple):
    """The counts of a turn, the usage object to show, and the names of the counts that cannot be true."""

    usage: Usage
    reported: dict[str, Any] | bytes | None
    doubted: tuple[str, ...]


def believed(
    usage: Usage,
    reported: dict[str, Any] | bytes | None,
    asked: Asked,
    decision: Decision,
    answer: Answer | None,
    scanner: UsageTracker,
    more_bytes: int,
) -> Believed:
    """Check the counts of `usage`. `more_bytes`: bytes of the prompt besides those that the client sent."""
    prompt_bytes = asked.routing.chain.total_bytes
    answer_bytes = scanner.tokens_seen * ONE_TOKEN_BYTES if answer is None else answer.output_bytes()
    allowed = Allowed(
        prompt_bytes + more_bytes, asked.opaque, asked.prompts, asked.choices, asked.most_tokens,
        asked.demanded_tokens, answer_bytes,
    )  # fmt: skip
    names = doubted(usage, allowed)
    if not names:
        return Believed(usage, reported, names)
    seen = scanner.tokens_seen
    if answer is not None:
        seen = -(-answer.text_bytes() * decision.prompt_tokens_est // (prompt_bytes or 1))
    shown = msgspec.json.decode(reported) if isinstance(reported, bytes) else reported
    if isinstance(shown, dict):
        left_out = {other for name in names for other in _OTHER_NAMES[name]}
        shown = {name: value for name, value in shown.items() if name not in left_out}
    return Believed(without(usage, names, min(seen, asked.most_tokens)), shown, names)
