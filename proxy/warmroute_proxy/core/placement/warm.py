"""A known conversation stays if it is warm.

The last three terms of a cost (`others`, `reuse`, `churn`) are what a placement costs all other requests. They decide
where a new conversation settles, and where a shared prefix gets its next copy. They do not move a conversation that is
warm: it would pay for that copy. So a turn of a known conversation goes home while its home has capacity, unless the
cheapest place is cheaper by the turn's own terms too (network, queue, compute, load, decode, transfer).

Home is the worker of this region that computed the previous turn, or the region that did. A conversation is known by
its previous turn. A derived session is a guess, and several conversations can share it: there the prompt must repeat
the previous turn whole, and a first turn is always new.
"""

from collections.abc import Sequence
from typing import Final

from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.load.ahead import Ahead, waits_s
from warmroute_proxy.core.placement.choices import Choices
from warmroute_proxy.core.placement.costs import Group, PeerCost
from warmroute_proxy.core.placement.homes import Home, repeats
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

NOWHERE: Final = -1


def is_known(routing: RoutingRequest, last_turn: SettledTurn | None) -> bool:
    """Whether a request is the next turn of a conversation whose previous turn is known."""
    if last_turn is None:
        return False
    return not routing.derived or (routing.turn > 1 and repeats(routing.chain, last_turn))


def home_number(choices: Choices, last_turn: SettledTurn, home: Home | None) -> int:
    """The number of the home, among cache workers and then peers; `NOWHERE` if it cannot be used."""
    if last_turn.region == choices.region:
        for number, worker in enumerate(choices.cache_workers):
            if worker.id in last_turn.workers:
                return number
        return NOWHERE
    if home is None or not home.certain:
        return NOWHERE
    for number, peer in enumerate(choices.peers, len(choices.cache_workers)):
        if peer.region == home.region:
            return number
    return NOWHERE


def has_capacity(choices: Choices, number: int) -> bool:
    """Whether a worker would run another request now. A peer region has no bound that is known here."""
    if number >= len(choices.loads):
        return True
    load = choices.loads[number]
    return load.has_slots() and load.prefills.tokens < load.capacity.prefill


def own_s(
    number: int,
    groups: Sequence[Group],
    ahead: Sequence[Ahead],
    peers: Sequence[PeerCost],
    output_tokens: int,
    now_s: float,
) -> float:
    """Return the terms of a cost that are the request's own time."""
    if number >= len(ahead):
        there = peers[number - len(ahead)].candidate
        return there.network_s + there.queue_s + there.compute_s
    queue_s, slowdown_s = waits_s(ahead[number], now_s)
    found_s = queue_s + slowdown_s * output_tokens
    for group in groups:
        if number in group.numbers:
            return found_s + group.compute_s + group.load_s + group.transfer_s
    return found_s
