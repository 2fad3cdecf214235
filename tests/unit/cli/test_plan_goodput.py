"""`warmroute plan --goodput`: the highest rate at which a plan reaches its targets."""

import json
from dataclasses import replace

import pytest
from msgspec import structs

from warmroute_backend.plan.choose import make_plan
from warmroute_backend.plan.deployment import Traffic
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.request import PlanRequest
from warmroute_cli.main import main
from warmroute_cli.plan.costs import CLOSE, by_goodput, faster, section_of_goodput
from warmroute_cli.plan.inputs import average_trace
from warmroute_cli.plan.search import PlayedPlan, Search
from warmroute_cli.plan.sizing import simulate
from warmroute_cli.plan.targets import Targets

pytestmark = pytest.mark.full

TRAFFIC = Traffic(20_000, 200, 4.0, 0.9)
ASKED = PlanRequest(known_model("gpt-oss-120b"), parse_cluster("2xH100"), split=(0, 0))
TARGETS = Targets(ttft_p90_s=1.0, token_p90_s=0.02)


def found_of(traffic: Traffic, tp: int) -> PlayedPlan:
    """One plan under its traffic."""
    asked = replace(ASKED, traffic=traffic, tp=tp)
    plan = make_plan(asked)
    sizing = simulate(plan, asked, average_trace(traffic))
    return PlayedPlan(asked, plan, sizing, tuple(TARGETS.missed(sizing)))


@pytest.mark.parametrize("requests_per_s", [2.0, 16.0], ids=["below it", "above it"])
def test_the_rate_reaches_the_targets_and_a_higher_one_does_not(requests_per_s: float) -> None:
    traffic = replace(TRAFFIC, requests_per_s=requests_per_s)
    trace = average_trace(traffic)
    found = found_of(traffic, tp=2)
    (first,) = by_goodput(Search([found]), traffic, trace, TARGETS)
    assert first.division == found.sizing.division
    assert first.beyond

    def missed(rate: float) -> list[str]:
        return list(TARGETS.missed(simulate(found.plan, found.request, faster(trace, traffic, rate / requests_per_s))))

    assert missed(first.requests_per_s) == []
    assert missed(first.requests_per_s * CLOSE * 1.01)


def test_the_plan_with_the_highest_one_comes_first() -> None:
    search = Search([found_of(TRAFFIC, tp=1), found_of(TRAFFIC, tp=2)])
    found = by_goodput(search, TRAFFIC, average_trace(TRAFFIC), TARGETS)
    assert found == sorted(found, key=lambda each: -each.requests_per_s)
    assert search.best.sizing.division == found[0].division
    heading, first, *_ = section_of_goodput(found, TARGETS).splitlines()
    assert heading == "Goodput: the most requests/s within its targets"
    assert f"{found[0].requests_per_s:.3g} requests/s" in first


def test_a_trace_is_played_faster_by_its_sessions_alone() -> None:
    trace = average_trace(TRAFFIC)
    first, second, *_ = trace.requests
    follower = structs.replace(second, at_s=7.0, after=first.number)
    own = replace(trace, name="own", requests=[structs.replace(first, at_s=10.0), follower])
    assert [each.at_s for each in faster(own, TRAFFIC, 2.0).requests] == [5.0, 7.0]


@pytest.mark.nightly
def test_the_command_takes_that_plan(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["plan", "--model", "gpt-oss-120b", "--gpus", "2xH100", "--input", "20000", "--output", "200"]
    assert main([*options, "--goodput", "--ttft-p90", "1s", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["goodput"][0]["division"] == document["sizing"][0]["division"]
