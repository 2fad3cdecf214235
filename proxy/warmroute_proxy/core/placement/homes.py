"""Finds the home region of a request: the region that most likely has its prompt cached.

The home is the region of the first entry in this list that is known and can be used. (A lineage is one conversation
branch of a session.)

    the previous turn, if the prompt repeats that turn whole         the region has computed it: a fact
    the client's hint                                                the client may know turns that this proxy does not
    an earlier turn of the lineage, or of one with another system prompt
    the longest lineage of the session, then of the session that started it

A home is certain only if the prompt repeats the whole prompt of a turn that was served there. Other homes are assumed
to hold what an append-only conversation has sent before.
"""

from bisect import bisect_left
from collections.abc import Collection

import msgspec

from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.cache.affinity import Affinity
from warmroute_proxy.core.cache.index import MAX_CUTS
from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest


class Home(Frozen, frozen=True):
    """A region, and how many bytes of the prompt (in canonical form) it holds. `certain`: see above."""

    region: str
    held_bytes: int
    certain: bool


def home_key(routing: RoutingRequest) -> int | None:
    """The session whose home is remembered; None if the session was only derived from the prompt, which is a guess."""
    return None if routing.derived else routing.session


def home_of(
    routing: RoutingRequest, last_turn: SettledTurn | None, affinity: Affinity, here: str, peers: Collection[str]
) -> Home | None:
    """The home of a request; None if the home is `here` or unknown. `peers`: the other regions that can be used."""
    is_repeated = last_turn is not None and repeats(routing.chain, last_turn)
    if last_turn is not None and is_repeated and routing.turn <= last_turn.turn + 1:
        if last_turn.region in peers:
            return Home(last_turn.region, last_turn.prompt_bytes, certain=True)
        if last_turn.region == here:
            return None
    hint = routing.home_hint
    if hint is not None and (hint in peers or hint == here):
        return Home(hint, routing.structural_bytes, certain=False) if hint != here else None
    known = last_turn
    if known is None and routing.thread is not None and routing.turn > 1:
        known = affinity.last_of_thread(routing.thread)
    if known is not None and (known.region in peers or known.region == here):
        return Home(known.region, routing.structural_bytes, certain=is_repeated) if known.region != here else None
    for session in (routing.session, routing.parent):
        region = affinity.home(session) if session is not None else None
        if region is not None:
            return Home(region, routing.structural_bytes, certain=False) if region in peers else None
    return None


def regional(
    routing: RoutingRequest, session: int | None, turn: SettledTurn, before: SettledTurn | None
) -> RegionalTurn:
    """A turn as it is sent to other regions. `before`: the turn that it continues. `session`: as in `RegionalTurn`."""
    chain = routing.chain
    follows, known = 0, 0
    if before is not None and before.tip != turn.tip:
        follows, known = before.tip, bisect_left(chain.ends, before.prompt_bytes) + 1
    under_way = turn.prompt_tokens is None
    new = chain.hashes[known:MAX_CUTS] if routing.derived and under_way else []
    turn = msgspec.structs.replace(turn, workers=())
    return RegionalTurn(routing.lineage, session, routing.thread, len(chain.hashes), follows, turn, new, routing.tenant)


def repeats(chain: Chain, turn: SettledTurn) -> bool:
    """Whether a prompt begins with the whole prompt of a turn."""
    at = bisect_left(chain.ends, turn.prompt_bytes)
    return at < len(chain.hashes) and chain.hashes[at] == turn.tip


def last_prompt_tokens(last_settled: SettledTurn, routing: RoutingRequest, prompt_tokens: int) -> int:
    """Tokens of the previous turn's prompt: as counted, or in proportion to this prompt if the count is unknown
    here.
    """
    if last_settled.prompt_tokens is not None:
        return last_settled.prompt_tokens
    total = routing.chain.total_bytes or 1
    return min(last_settled.prompt_bytes, total) * prompt_tokens // total


def elsewhere_region(before: SettledTurn | None, decision: Decision, here: str) -> str:
    """The region that has tokens of loss class `elsewhere`: that of the previous turn, or the one that the index
    knows.
    """
    return before.region if before is not None and before.region != here else decision.other_region


def keeps_warm(routing: RoutingRequest, before: SettledTurn) -> bool:
    """Whether a request is a keep-alive: it repeats the previous turn, for an answer of one token."""
    return routing.expected_output_tokens == 1 and before.tip == routing.chain.hashes[-1]
