"""Why prompt tokens of a turn were not cached: the turn before it, and what its caches were expected to hold.

`core.accounting.losses` gives the classes; here stands what it compares.
"""

from msgspec.structs import replace

from warmroute_proxy.core.accounting.losses import NOTHING_SEEN, IndexEstimates, LastTurn, Seen, classify
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.cache.prompt_memory import KnownPrompt
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.load.load import WorkerLoad
from warmroute_proxy.core.placement.homes import last_prompt_tokens, repeats
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.server.intake.prefix_breaks import Looked, turn_before
from warmroute_proxy.server.ledger.earlier_turns import EarlierTurn
from warmroute_proxy.server.request.attempt import Attempt


def losses_of(
    before: SettledTurn | None,
    routing: RoutingRequest,
    usage: Usage,
    attempt: Attempt,
    *,
    here: str,
    earlier: EarlierTurn | None = None,
    looked: Looked | KnownPrompt | None = None,
    seen: Seen = NOTHING_SEEN,
) -> dict[str, int]:
    """The loss classes of a turn in the region `here`. `looked` may have the turn whose prefix this one has changed.
    Else `before` is what the router knew before this turn is settled, and where it knew nothing, `earlier` is what the
    ledger knows from before the proxy's start. `seen`: of the caches, once that was looked at; estimates are then by
    this prompt's own bytes per token.

    Another proxy may have served the turn that changed the prefix. So a prompt that begins with the whole prompt of
    `before` has changed nothing, whatever `looked` found in an older one.
    """
    decision = attempt.decision
    known, other_region = decision.known_tokens, decision.other_region_tokens
    last_turn = turn_before(looked, decision, here)
    is_repeated = before is not None and repeats(routing.chain, before)
    is_rewritten = last_turn is not None and last_turn.rewritten and not is_repeated
    if before is not None and (before.salt_epoch != routing.salt_epoch or not is_rewritten):
        tokens, is_here = last_prompt_tokens(before, routing, usage.prompt_tokens), before.region == here
        if is_repeated:  # so it was sent before, whatever the index has forgotten
            known, other_region = max(known, tokens), other_region if is_here else max(other_region, tokens)
        last_turn = LastTurn(
            tokens, before.completion_tokens or 0, decision.cache_worker in before.workers,
            before.salt_epoch != routing.salt_epoch, is_here, False, is_repeated,
        )  # fmt: skip
    elif before is None and earlier is not None and routing.turn > earlier.turn and not is_rewritten:
        known = max(known, min(earlier.prompt_tokens, usage.prompt_tokens))
        at_home = decision.cache_worker in earlier.workers
        last_turn = LastTurn(earlier.prompt_tokens, earlier.completion_tokens, at_home, False, earlier.region == here)
    predicted, moved = decision.predicted_cached_tokens, decision.other_worker_tokens
    expected = IndexEstimates(known, predicted, moved, other_region, decision.restarted_tokens, seen)
    if before is None and seen is not NOTHING_SEEN and "prompt_tokens" not in usage.estimated:
        expected = expected.scaled(usage.prompt_tokens, decision.prompt_tokens_est)
    return classify(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        page_size=attempt.engine.info.page_tokens,
        estimates=expected,
        last_turn=last_turn,
        disaggregated=decision.prefill is not None,
        misreported=usage.misreported_tokens > 0,
        cached_reported="cached_tokens" not in usage.estimated,
    )


def with_restart(seen: Seen, load: WorkerLoad, earlier: EarlierTurn | None) -> Seen:
    """The same, with a restart while the proxy was away: the engine has computed less than the earlier prompt since."""
    computed = load.prefill_rate.uncached_total
    if earlier is not None and computed is not None and computed < earlier.prompt_tokens:
        return replace(seen, evicted_here=True, evicted=True)
    return seen
