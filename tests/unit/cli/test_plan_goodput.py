"""`warmroute plan --goodput`: the highest rate at which a plan reaches its targets."""

import json
from dataclasses import replace

import pytest
from msgspec import structs

from warmroute_backend.plan.deployment import Traffic
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.request import PlanRequest
from warmroute_cli.main import main
from warmroute_cli.plan.goodput import CLOSE, by_goodput, faster
from warmroute_cli.plan.search import search
from warmroute_cli.plan.sizing import simulate
from warmroute_cli.plan.targets import Targets
from warmroute_cli.plan.traffic import average_trace

TRAFFIC = Traffic(20_000, 200, 4.0, 0.9)
TARGETS = Targets(ttft_p90_s=1.0, token_p90_s=0.02)


@pytest.mark.parametrize("requests_per_s", [2.0, 16.0], ids=["below it", "above it"])
def test_the_rate_reaches_the_targets_and_a_higher_one_does_not(requests_per_s: float) -> None:
    traffic = replace(TRAFFIC, requests_per_s=requests_per_s)
    trace = average_trace(traffic)
    asked = PlanRequest(known_model("gpt-oss-120b"), parse_cluster("2xH100"), traffic=traffic, split=(0, 0), tp=2)
    found = search(asked, trace, TARGETS)
    first, *others = by_goodput(found, traffic, trace, TARGETS)
    assert all(each.requests_per_s <= first.requests_per_s for each in others)
    assert first.division == found.best.sizing.division
    assert first.beyond

    def missed(rate: float) -> list[str]:
        played = faster(trace, traffic, rate / requests_per_s)
        return list(TARGETS.missed(simulate(found.best.plan, found.best.request, played)))

    assert missed(first.requests_per_s) == []
    assert missed(first.requests_per_s * CLOSE * 1.01)


def test_a_trace_is_played_faster_by_its_sessions_alone() -> None:
    trace = average_trace(TRAFFIC)
    first, second, *_ = trace.requests
    follower = structs.replace(second, at_s=7.0, after=first.number)
    own = replace(trace, name="own", requests=[structs.replace(first, at_s=10.0), follower])
    assert [each.at_s for each in faster(own, TRAFFIC, 2.0).requests] == [5.0, 7.0]


def test_the_page_and_the_document_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["plan", "--model", "gpt-oss-120b", "--gpus", "1xH100", "--input", "20000", "--output", "200"]
    options += ["--pd", "off", "--goodput", "--ttft-p90", "1s", "--gpu-hour", "2.5"]
    assert main(options) == 0
    page = capsys.readouterr().out
    assert "Goodput: the most requests/s within its targets" in page
    assert main([*options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["goodput"]
    assert found[0]["requests_per_s"] > 0
    assert found[0]["division"] in page


def test_it_is_about_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "gpt-oss-120b", "--gpus", "8xH100", "--goodput"]) == 2
    assert "--goodput is about traffic" in capsys.readouterr().err
