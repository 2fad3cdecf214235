"""The ready-made comparisons keep their shape, at a size that a test can afford."""

from dataclasses import replace

import pytest

from warmroute_lab.replay.made_up import MADE_UP, made_up
from warmroute_lab.replay.results import Result
from warmroute_lab.replay.scenarios import pd, regions
from warmroute_lab.replay.scenarios.scenario import Scenario
from warmroute_lab.replay.setup import run

pytestmark = pytest.mark.full


def played(scenario: Scenario, *wanted: str, load: float = 1.0) -> dict[str, Result]:
    """Results of runs, by their label's beginning."""
    found = {}
    for each in scenario.runs:
        for name in wanted:
            if each.label.startswith(name) and each.speed_up == load:
                found[name] = run(scenario.trace, each.setup, each.policy, each.speed_up)
    assert set(found) == set(wanted)
    return found


@pytest.mark.nightly
@pytest.mark.timeout(180)  # it computes for 8 s
def test_the_header_takes_the_hit_ratio_from_60_to_80_and_to_the_bound() -> None:
    """A replica in each region, for a sixth of the agents in half the time."""
    scenario = regions.scenario(replace(regions.AGENTS, sessions=180, starts_within_s=1600.0), replicas=1)
    none, third, everybody = played(
        scenario, *(f"warmroute inside, header from {share}" for share in ("0%", "34%", "100%"))
    ).values()
    assert none.hit == pytest.approx(0.65, abs=0.08)
    assert third.hit == pytest.approx(0.83, abs=0.06)
    assert everybody.hit > 0.98 * scenario.trace.ceiling()
    assert none.ttft_p90_s > third.ttft_p90_s > everybody.ttft_p90_s
    total = len(scenario.trace.requests)
    assert everybody.requests == total - total // 4, "the first quarter of the arrivals is left out"


@pytest.mark.nightly
def test_a_split_fleet_keeps_the_time_per_token_and_an_aggregated_one_the_first_token() -> None:
    calls = replace(pd.CALLS, sessions=pd.CALLS.sessions // 3, within_s=pd.CALLS.within_s / 3)
    scenario = pd.scenario(calls)
    together, split, short_of_prefill = played(scenario, "8 aggregated", "6:2", "4:4", load=4.0).values()
    assert together.tpot_p90_s > 0.07
    assert 0.02 < split.tpot_p90_s < 0.6 * together.tpot_p90_s
    assert 0.02 < short_of_prefill.tpot_p90_s < 0.03
    assert together.ttft_p90_s < split.ttft_p90_s < short_of_prefill.ttft_p90_s / 4


@pytest.mark.parametrize("name", [name for name in MADE_UP if "fork" not in name or name.startswith("fork-8")])
def test_the_seed_decides_a_made_up_trace(name: str) -> None:
    first, again, other = (
        [(each.at_s, each.after, each.input_tokens, each.output_tokens, each.blocks) for each in trace.requests]
        for trace in (made_up(name), made_up(name), made_up(name, 2))
    )
    assert first == again
    assert first != other
