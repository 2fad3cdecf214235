"""The rule of docs/benchmarks/placement.md, and the plots that it shows."""

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from scripts.placement.parts import PARTS
from scripts.placement.rule import verdicts

from warmroute_cli.replay.arguments import MADE_UP, SCENARIOS
from warmroute_proxy.replay import made_up
from warmroute_proxy.replay.plot import Series, svg

PART = next(part for part in PARTS if part.name == "toolagent")


def figures(ours: tuple[float, float], **others: tuple[float, float]) -> dict[str, Any]:
    """Rows of one part, equal at each load: hit ratio and p90 of each policy."""
    rows = [
        {"policy": policy, "speed_up": load, "hit": hit, "ttft_p90_s": p90_s}
        for policy, (hit, p90_s) in {"warmroute": ours, "warmroute+events": (1.0, 0.0), **others}.items()
        for load in PART.loads
    ]
    return {"rows": {PART.name: rows}}


OTHERS = {"herds": (0.60, 4.0), "balances": (0.585, 2.0), "ignores": (0.10, 1.0)}


@pytest.mark.parametrize(
    ("ours", "hit_holds", "p90_holds"),
    [((0.596, 2.09), True, True), ((0.594, 2.09), False, True), ((0.596, 2.11), True, False), ((0.2, 9), False, False)],
)
def test_the_rule_is_held_against_the_best_hit_and_the_best_tail_near_it(
    ours: tuple[float, float], hit_holds: bool, p90_holds: bool
) -> None:
    found = verdicts(figures(ours, **OTHERS))
    assert [each.speed_up for each in found] == list(PART.loads)
    for each in found:
        assert (each.best["policy"], each.yardstick["policy"]) == ("herds", "balances")
        assert (each.hit_holds, each.p90_holds) == (hit_holds, p90_holds)


def test_every_trace_and_scenario_of_the_command_is_on_the_page() -> None:
    assert set(MADE_UP) == set(made_up.MADE_UP)
    assert {*MADE_UP, *SCENARIOS} <= {part.what[-1] for part in PARTS}


def test_a_plot_is_an_image_by_itself_and_keeps_the_order_of_its_points() -> None:
    drawn = svg("t < u", [Series("a&b", [(0.1, 0.5), (0.2, 50), (0.3, 5)], "#000", dots=True)], "x", "y", log_y=True)
    places = [
        (float(each.get("cx", "")), float(each.get("cy", "")))
        for each in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}circle")
    ]
    (x1, low), (x2, high), (x3, middle) = places
    assert x1 < x2 < x3
    assert low > middle > high
    assert (low - middle) == pytest.approx(middle - high, abs=0.2), "a decade is as long as the next"
    assert svg("nothing", [], "x", "y") == ""
