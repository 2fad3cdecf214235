"""The two decisions that moved a warm session on a nearly idle fleet, from what was recorded of their terms."""

from typing import NamedTuple

import pytest

from warmroute_proxy.core.cache.index import PrefixIndex
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.cache.tiers import NOTHING_HELD
from warmroute_proxy.core.load.ahead import Ahead
from warmroute_proxy.core.placement.costs import Group
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.fleet_state import Fleet
from warmroute_proxy.core.placement.placement import Weighed, candidates

OUTPUT_TOKENS = 1_000


class Recorded(NamedTuple):
    """The terms of a candidate, seconds, and its tokens that were not cached there."""

    id: str
    compute_s: float
    decode_s: float
    reuse_s: float
    churn_s: float
    uncached_tokens: int

    @property
    def cost_s(self) -> float:
        return self.compute_s + self.decode_s + self.reuse_s + self.churn_s


SUB_AGENTS = (
    Recorded("home", 0.004, 0.172, 0.0, 0.164, 80),
    Recorded("other", 0.592, 0.002, -0.506, 0.0, 10_960),
)
"""Claude Code with parallel sub-agents: 0.340 s at home, of it churn 0.164, and 0.088 s elsewhere, by compute 0.592 and
reuse -0.506; 10,880 tokens were moved. How the rest of each cost is divided was not recorded.
"""

ALONE = (
    Recorded("home", 0.007, 0.0, 0.0, 0.098, 140),
    Recorded("other", 0.471, 0.0, -0.412, 0.0, 9_420),
)
"""Codex alone: 9,280 tokens were moved while nothing was ahead at home. Of this one only the tokens were recorded: the
terms are those of the same prices.
"""


def weighed(recorded: tuple[Recorded, ...]) -> tuple[Weighed, Fleet]:
    """A decision with these terms. Churn per inserted token is 1 s, so `inserted` is what gives the recorded churn."""
    fleet = Fleet("east", PrefixIndex())
    for each in recorded:
        fleet.add_worker(Worker(each.id, each.id, 0, "aggregated"), serves_traffic=False)
    choices = fleet.choices("m")
    groups, ahead = [], []
    for number, each in enumerate(recorded):
        idle_s = each.compute_s + each.reuse_s
        groups.append(
            Group((number,), idle_s, each.compute_s, 0.0, 0.0, each.reuse_s, 0.0, each.uncached_tokens, 0, NOTHING_HELD)
        )
        inserted = each.churn_s / each.uncached_tokens
        ahead.append(Ahead(False, each.decode_s / OUTPUT_TOKENS, inserted, 0.0, 0.0, 0.0, None))
    return Weighed(choices.cache_workers, groups, ahead, 1.0, [], OUTPUT_TOKENS, "", 0.0), fleet


SLOW = (SUB_AGENTS[0]._replace(decode_s=0.7), SUB_AGENTS[1])
"""A home whose own time is longer."""


@pytest.mark.parametrize(
    ("recorded", "goes"),
    [(SUB_AGENTS, "home"), (ALONE, "home"), (SLOW, "other")],
    ids=["sub-agents", "alone", "slow home"],
)
def test_a_warm_session_stays_where_a_recorded_decision_has_moved_it(recorded: tuple[Recorded, ...], goes: str) -> None:
    made, fleet = weighed(recorded)
    costs = {each.id: each.cost_s for each in candidates(made, 0)}
    assert costs == pytest.approx({each.id: each.cost_s for each in recorded})
    cheapest = made.cheapest()
    assert [made.cache_workers[number].id for number in cheapest] == ["other"]  # which was taken
    before = SettledTurn(("home",), "east", 4_000, 1_000, 10, 0, 1, 0, 1)
    chosen = made.or_home(cheapest[0], cheapest, fleet.choices("m"), before, None)
    assert made.cache_workers[chosen].id == goes
