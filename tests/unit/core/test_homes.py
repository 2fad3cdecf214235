"""Which region is the home of a request, for routers of two regions that announce their turns to each other."""

from dataclasses import dataclass, field
from typing import Any

from tests.subjects.routing import routing_of

from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

REGIONS = ("east", "west")
BLOCK = 4000
SESSION = 7


def chain(name: int, blocks: int) -> Chain:
    return Chain([name * 1000 + n for n in range(blocks)], [BLOCK * (n + 1) for n in range(blocks)])


def routing(lineage: int = 1, blocks: int = 5, turn: int = 1, **changed: Any) -> RoutingRequest:
    """A turn of a lineage. Each adds a block, and a client has sent all but the last before."""
    fields: dict[str, Any] = {
        "chain": chain(lineage, blocks),
        "lineage": lineage,
        "session": SESSION,
        "structural_bytes": (blocks - 1) * BLOCK if turn > 1 else 0,
        "turn": turn,
        "expected_output_tokens": 10,
    }
    return routing_of(**{**fields, **changed})


def _router(region: str) -> Router:
    others = [Peer(other, 0.03) for other in REGIONS if other != region]
    return Router(region, [Worker(f"{region}-{n}", f"{region}-{n}", 0, "aggregated") for n in range(2)], others)


@dataclass
class Regions:
    routers: dict[str, Router] = field(default_factory=lambda: {region: _router(region) for region in REGIONS})
    announced: bool = True

    def serve(self, ingress: str, request: RoutingRequest, now_s: float = 0.0) -> str:
        """Serve a request that enters there; the region that has served it."""
        region = self.routers[ingress].place(request, now_s).region
        self.serve_at(region, request, now_s)
        return region

    def serve_at(self, region: str, request: RoutingRequest, now_s: float = 0.0) -> None:
        router = self.routers[region]
        here = request.stay()
        ticket = router.dispatched(here, router.place(here, now_s), now_s)
        turn = router.regional_turn(ticket, here)
        tokens = here.chain.total_bytes // 4
        router.settled(ticket, here, now_s + 1, tokens, 0, 10)
        if self.announced:
            for other in REGIONS:
                if other != region:
                    self.routers[other].observe_turn(turn, now_s)


def test_a_turn_goes_where_its_lineage_was_served_wherever_it_comes_in() -> None:
    regions = Regions()
    regions.serve_at("west", routing())
    for turn, ingress in ((2, "east"), (3, "west"), (4, "east")):
        assert regions.serve(ingress, routing(blocks=4 + turn, turn=turn)) == "west"


def test_a_side_lineage_that_is_served_elsewhere_takes_nobody_with_it() -> None:
    regions = Regions()
    regions.serve_at("west", routing(blocks=8))
    regions.serve_at("east", routing(2, blocks=2))
    for ingress in REGIONS:
        assert regions.routers[ingress].place(routing(blocks=9, turn=2), 5.0).region == "west"
        assert regions.routers[ingress].place(routing(2, blocks=3, turn=2), 5.0).region == "east"


def test_a_new_lineage_begins_at_its_sessions_home_or_at_its_parents() -> None:
    regions = Regions()
    regions.serve_at("west", routing(blocks=8))
    assert regions.serve("east", routing(2)) == "west"
    assert regions.serve("east", routing(3, session=99, parent=SESSION)) == "west"
    assert regions.serve("east", routing(4, session=98)) == "east"


def test_a_hint_that_a_side_lineage_has_moved_does_not_move_the_main_one() -> None:
    """As clients send it that keep one home for a session."""
    regions = Regions()
    regions.serve_at("west", routing(blocks=8))
    assert regions.serve("east", routing(blocks=9, turn=2, home_hint="east")) == "west"


def test_a_hint_counts_where_it_may_know_of_turns_that_this_proxy_does_not() -> None:
    regions = Regions()
    regions.serve_at("west", routing(blocks=5))
    request = routing(blocks=9, turn=5, home_hint="east")
    assert regions.routers["west"].place(request, 5.0).region == "east"


def test_a_fork_and_a_compaction_stay_where_their_lineage_is() -> None:
    regions = Regions()
    regions.serve_at("west", routing(blocks=8))
    regions.serve_at("west", routing(blocks=12, turn=5))
    fork = Chain([*range(1000, 1007), 9], [BLOCK * (n + 1) for n in range(8)])
    compacted = Chain([1000, 5], [BLOCK, 2 * BLOCK])
    assert regions.serve("east", routing(turn=3, chain=fork, structural_bytes=7 * BLOCK)) == "west"
    assert regions.serve("east", routing(turn=2, chain=compacted, structural_bytes=BLOCK)) == "west"


def test_a_conversation_that_was_rewritten_is_found_by_its_prefix() -> None:
    regions = Regions()
    regions.serve_at("west", routing(derived=True, blocks=8))
    rewritten = Chain([*range(1000, 1006), 9], [BLOCK * (n + 1) for n in range(7)])
    request = routing(2, session=55, derived=True, chain=rewritten, structural_bytes=0, turn=3)
    assert regions.routers["east"].place(request, 5.0).region == "west"


def test_what_another_region_has_is_named_and_is_not_another_workers() -> None:
    regions = Regions()
    regions.serve_at("west", routing(derived=True, blocks=8))
    request = routing(derived=True, blocks=9, turn=2, may_forward=False)
    decision = regions.routers["east"].place(request, 5.0)
    assert (decision.other_region, decision.other_region_tokens) == ("west", 8 * BLOCK // 4)
    assert decision.other_worker_tokens == 0


def test_a_home_that_cannot_be_used_is_none() -> None:
    regions = Regions()
    regions.serve_at("west", routing(blocks=8))
    regions.routers["east"].set_peer_up("west", False)
    assert regions.serve("east", routing(blocks=9, turn=2)) == "east"
