"""What a turn's end is made of: why tokens were not cached, and the chunk that says it to a client that streams."""

from typing import Any

import msgspec

from warmroute_proxy.core.accounting.losses import IndexEstimates, LastTurn, classify
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.server.engines.sse import Scanner
from warmroute_proxy.server.request.attempt import Attempt


def losses_of(last: SettledTurn | None, facts: Facts, usage: Usage, attempt: Attempt) -> dict[str, int]:
    """The loss classes of a turn. `last` is what the router says before it is told of this turn's end."""
    decision = attempt.decision
    return classify(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        page_size=attempt.engine.info.page_tokens,
        estimates=IndexEstimates(
            decision.known_tokens, decision.predicted_cached_tokens, decision.best_elsewhere_tokens
        ),
        last_turn=LastTurn(
            last.prompt_tokens or 0,
            last.completion_tokens or 0,
            decision.cache_worker in last.workers,
            last.salt_epoch != facts.salt_epoch,
        )
        if last is not None
        else None,
        disaggregated=decision.prefill is not None,
        misreported=usage.misreported_tokens > 0,
        cached_reported="cached_tokens" not in usage.estimated,
    )


def usage_event(scanner: Scanner, settled: msgspec.Raw, keep_sglext: bool) -> bytes:
    """The usage chunk: the engine's own, with the settled usage in the place of its own."""
    event: dict[str, Any] = dict(scanner.usage_event or {"object": "chat.completion.chunk", "choices": []})
    if not keep_sglext:
        event.pop("sglext", None)
    event["usage"] = settled
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
