"""Grants a credit for tokens that were cached at home (where the previous turn was served) but not used by placement.

The credit does not change the turn's price, which follows from the reported counts. A turn gets a credit only if:

- the client names the session, and the previous turn is known and was served by the same proxy
- by the recorded decision, a worker that computed the previous turn could have been used, and its queue was empty
- the tokens have the loss class `moved`, and the engine reported its counts
- the turn had one attempt and one answer

A credit covers at most the prompt tokens of the previous turn. If several turns continue one turn (for example copies
that a client sends at once), only one of them gets a credit.

Limit: the newest `MAX_GRANTED` credits are remembered, divided by tenant (`warmroute.contract.shares`). The oldest
credit of the tenant that has most is forgotten first.
"""

from typing import Final

from warmroute.contract.money import Rates, nano_from_pico
from warmroute.contract.shares import Division
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.homes import repeats
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

MAX_GRANTED: Final = 20_000
_COUNTED: Final = frozenset({"prompt_tokens", "cached_tokens"})


class MovedTurn(Frozen, frozen=True):
    """A turn, and how many of its tokens have the loss class `moved`. `answers`: the number for all its prompts."""

    routing: RoutingRequest
    decision: Decision
    usage: Usage
    tokens: int
    attempts: int
    answers: int


class Credits:
    def __init__(self, max_granted: int = MAX_GRANTED) -> None:
        self._max_granted = max_granted
        self._granted: dict[tuple[int, int], str] = {}  # lineage and tip (last hash) of the previous turn -> tenant
        self._division: Division[tuple[int, int], str] = Division(lambda _, tenant: tenant)

    def grant(self, turn: MovedTurn, before: SettledTurn) -> int:
        """The tokens of the turn's credit; 0 if no credit is due, or another turn that continues `before` already got
        one.
        """
        key = turn.routing.lineage, before.tip
        if key in self._granted or not (_is_due(turn, before) and _could_stay(turn.decision, before)):
            return 0
        tokens = min(turn.tokens, before.prompt_tokens or 0)
        if tokens > 0:
            self._granted[key] = turn.routing.tenant
            if 2 * len(self._granted) > self._max_granted:
                self._division.stored(key, self._granted)
                if len(self._granted) > self._max_granted:
                    first = self._division.next_to_go()
                    del self._granted[first]
                    self._division.discard(first)
        return tokens


def credit_nanousd(tokens: int, rates: Rates) -> int:
    """What `tokens` cost more if they are computed than if they are cached."""
    return nano_from_pico(tokens * (rates.input - rates.cached))


def _is_due(turn: MovedTurn, before: SettledTurn) -> bool:
    routing, usage = turn.routing, turn.usage
    return (
        not routing.derived
        and routing.turn == before.turn + 1
        and repeats(routing.chain, before)
        and before.salt_epoch == routing.salt_epoch
        and not usage.misreported_tokens
        and _COUNTED.isdisjoint(usage.estimated)
        and turn.attempts == 1
        and turn.answers == 1
    )


def _could_stay(decision: Decision, before: SettledTurn) -> bool:
    """Whether the turn went elsewhere although a worker of the previous turn was a candidate with an empty queue."""
    homes = [candidate for candidate in decision.reasons if candidate.id in before.workers]
    return decision.cache_worker not in before.workers and any(home.queue_s <= 0.0 for home in homes)
