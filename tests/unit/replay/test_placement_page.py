"""What the pages of placement play, and the plots that they show."""

from xml.etree import ElementTree as ET

import pytest
from bench.placement.forks import FORKS
from bench.placement.parts import PARTS
from bench.placement.rows import ROWS

from warmroute_cli.replay.replay_options import MADE_UP, SCENARIOS
from warmroute_lab.replay import made_up
from warmroute_lab.replay.plot import Series, svg


def test_every_trace_and_scenario_of_the_command_is_on_the_page() -> None:
    assert set(MADE_UP) == set(made_up.MADE_UP)
    forks = {f"{name}{suffix}" for name in FORKS for suffix in ("", "-cold")}
    rows = {word for row in ROWS for word in row.words}
    assert {*MADE_UP, *SCENARIOS} <= rows | {part.what[-1] for part in PARTS} | forks


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
