"""Sessions of several tenants in a replay: whose they are, and what a flood does to a small tenant."""

from warmroute_lab.replay.agents import Agents, agents_trace
from warmroute_lab.replay.setup import WITH_WORKING_SET, Setup, run
from warmroute_lab.replay.tenants import tenants_of

TRACE = agents_trace(
    Agents(
        sessions=60, starts_within_s=300.0, shared_tokens=1024, own_mean=8000.0, least_turns=2, most_turns=10,
        limit_tokens=120_000,
    ),
    "tight",
)  # fmt: skip


def test_sessions_are_drawn_by_the_shares_of_their_tenants() -> None:
    drawn = tenants_of(2000, (4, 1, 1))
    assert [round(drawn.count(n) / 2000, 1) for n in range(3)] == [0.7, 0.2, 0.2]
    assert tenants_of(50, (4, 1)) == tenants_of(50, (4, 1))


def test_a_small_tenant_begins_sooner_than_one_that_floods() -> None:
    found = run(TRACE, Setup(2, kv_tokens=60_000, tenant_shares=(9, 1)), WITH_WORKING_SET)
    flood, small = found.by_tenant
    assert flood["sessions"] + small["sessions"] == TRACE.sessions
    assert small["new_p90_s"] < flood["new_p90_s"] / 2
    assert run(TRACE, Setup(2, kv_tokens=160_000), WITH_WORKING_SET).by_tenant == []
