"""`warmroute top`: rates of the last minute, and a screen that fits whatever is shown on it."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_cli.api import Api, ApiError
from warmroute_cli.top.rates import Counters, Rates, Window, counters_of, rows_of
from warmroute_cli.top.reading import EngineRow, FleetReading, Loss, read
from warmroute_cli.top.screen import HELP, SORTS, Choice, lines, pressed
from warmroute_cli.top.top import _once

METRICS = """
# HELP warmroute_turns_total Settled turns by outcome.
warmroute_turns_total{outcome="completed"} 46
warmroute_turns_total{outcome="client_left"} 2
warmroute_prompt_tokens_total 1000
warmroute_cached_tokens_total{tier="device"} 700
warmroute_cached_tokens_total{tier="host"} 50
warmroute_list_nanousd_total 1.5e+09
warmroute_price_nanousd_total 500000000
warmroute_worker_kv_usage_ratio{worker="east-a0",role="aggregated",tier="device"} 0.25
"""


def engine(number: int, running: int = 0, state: str = "up") -> EngineRow:
    return EngineRow("east", f"east-a{number}", "aggregated", state, running, 10 * number, 0.5, 0.1, {"device": 0.25})


LOSS = Loss(1.0, "east", "prefix_changed", 2_459, "wr-6b0783cf418407a588987dc1", "fix the build (5d41aa)")
READING = FleetReading(
    ("east", "west"), tuple(engine(number) for number in range(3)), 2, 1.5, Counters(turns=4), (LOSS,)
)
NONE = Rates(Counters(), 0.0)


FRESH = Choice()


def screen(reading: FleetReading = READING, rates: Rates = NONE, choice: Choice = FRESH) -> str:
    return "\n".join(line.text for line in lines(reading, rates, choice, "12:00:00", (80, 24)))


def test_counters_are_read_from_the_metrics_of_all_regions() -> None:
    found = counters_of([*rows_of(METRICS), *rows_of(METRICS)])
    assert found == Counters(96, 2000, 1400, 100, 0, 3e9, 1e9)
    assert found.hit_ratio == 0.75


def test_a_loss_stands_with_its_receipt_and_the_name_of_its_session() -> None:
    line = "prefix_changed     2,459 wr-6b0783cf418407a588987dc1 fix the build (5d41aa)     east"
    assert line[:80].rstrip() in screen().splitlines()


def test_rates_are_those_of_the_last_minute() -> None:
    window = Window()
    assert window.add(0.0, Counters(turns=10)).a_minute(10.0) is None
    assert window.add(30.0, Counters(turns=20)) == Rates(Counters(turns=10), 30.0)
    for at in range(40, 131, 10):
        rates = window.add(float(at), Counters(turns=20 + at))
    assert rates == Rates(Counters(turns=60), 60.0)
    assert rates.a_minute(rates.gained.turns) == 60


def test_a_proxy_that_restarts_begins_anew_and_loses_no_money() -> None:
    window = Window()
    window.add(0.0, Counters(turns=10, list_nanousd=5e9))
    assert window.add(10.0, Counters(turns=1)) == Rates(Counters(), 0.0)
    assert window.add(20.0, Counters(turns=3)) == Rates(Counters(turns=2), 10.0)


def test_the_screen_says_what_is_saved_and_lost() -> None:
    gained = Counters(turns=6, prompt_tokens=100, device=80, list_nanousd=3e9, price_nanousd=1e9)
    said = screen(rates=Rates(gained, 30.0))
    assert "hit ratio 80.0% now" in said
    assert "saved 4.000000 USD/min" in said
    assert "turns 12.0/min" in said
    assert "queue 2 (oldest 1.5 s)" in said


def test_keys_sort_scroll_pause_and_help() -> None:
    many = READING._replace(engines=tuple(engine(number, running=number % 7) for number in range(30)))
    assert "1 to 15 of 30" in screen(many)
    down = pressed(Choice(), "down", 30)
    assert "2 to 16 of 30" in screen(many, choice=down)
    assert pressed(down, "up", 30) == pressed(Choice(), "up", 30) == Choice()
    by_run = pressed(Choice(), "right", 30)
    assert (by_run.sort, pressed(by_run, "left", 30)) == ("run", Choice())
    assert screen(many, choice=by_run).index("east-a6 ") < screen(many, choice=by_run).index("east-a12 ")
    assert "RUN*" in screen(many, choice=by_run)
    assert screen(many, choice=pressed(by_run, "r", 30)).split("\n")[6].split()[3] == "0"
    assert "paused" in screen(choice=pressed(Choice(), " ", 3))
    assert HELP[0] in screen(choice=pressed(Choice(), "?", 3))
    assert pressed(pressed(Choice(), "?", 3), "?", 3) == pressed(Choice(), "x", 3) == Choice()


class Answers(Api):
    """An admin listener that answers from a table; what is not there is a 404, and everything where it is away."""

    def __init__(self, table: Mapping[str, Any], away: bool = False) -> None:
        super().__init__("http://admin", "")
        self._table, self._away = table, away

    def ask(self, path: str, *_given: Any, **_options: Any) -> Any:
        if self._away or path not in self._table:
            raise ApiError("it does not answer", 0 if self._away else 404)
        return self._table[path]

    text = ask


WORKER = {
    "engine": "e0", "role": "aggregated", "running": 3, "prefill_tokens": 7, "resident_tokens": 25, "queue_s": 0.5,
}  # fmt: skip
TABLE = {
    "/metrics": METRICS.replace("east-a0", "e0"),
    "/admin/engines": {"engines": [{"id": "e0", "state": "draining"}]},
    "/admin/workers": {"workers": {"e0": {**WORKER, "token_limit": 100}, "e1": WORKER}},
    "/admin/admission": {"queue": {"requests": 4, "oldest_s": 2.5}},
}
TURN = {
    "id": "wr-1", "settled_at": 5.0, "region": "east", "session": "5d41aa0123456789", "name": "fix it",
    "loss": {"new": 9, "evicted": 8},
}  # fmt: skip


def test_regions_are_read_together_and_one_that_is_away_is_named() -> None:
    view = {"/admin/view/receipts": {"data": [TURN]}}
    found = read({"east": Answers({**TABLE, **view}), "west": Answers({}, away=True), "old": Answers(TABLE)})
    assert found.problems == ("west: it does not answer",)
    assert [(row.region, row.id, row.state, row.kv_share) for row in found.engines[:2]] == [
        ("east", "e0", "draining", 0.25),
        ("east", "e1", "draining", None),
    ]
    assert found.engines[0].tiers == {"device": 0.25}
    assert (len(found.engines), found.queued, found.oldest_s, found.counters.turns) == (4, 8, 2.5, 96)
    assert found.losses == (Loss(5.0, "east", "evicted", 8, "wr-1", "fix it (5d41aa)"),)


class AwayAt(Answers):
    """A proxy that does not answer some of the readings."""

    def __init__(self, *readings: int) -> None:
        super().__init__(TABLE)
        self._readings, self._reading = readings, 0

    def ask(self, path: str, *given: Any, **options: Any) -> Any:
        self._reading += path == "/metrics"
        self._away = self._reading in self._readings
        return super().ask(path, *given, **options)

    text = ask


@pytest.mark.parametrize(("away_at", "status"), [((), 0), ((1,), 1), ((2,), 1)])
def test_rates_are_not_known_where_a_region_was_away_in_one_of_two_readings(
    away_at: tuple[int, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _once({"east": Answers(TABLE), "west": AwayAt(*away_at)}, 0.001) == status
    printed = capsys.readouterr().out
    assert ("turns -/min" in printed) is ("paid - USD/min" in printed) is bool(status)
    assert ("west: it does not answer" in printed) is bool(status)


def test_a_region_that_is_too_busy_for_its_losses_keeps_its_other_numbers() -> None:
    class Busy(Answers):
        def ask(self, path: str, *given: Any, **options: Any) -> Any:
            if path == "/admin/view/receipts":
                raise ApiError("too many usage queries at once", 503)
            return super().ask(path, *given, **options)

    found = read({"east": Busy(TABLE)})
    assert (found.problems, found.without_losses, found.counters.turns, len(found.engines)) == ((), ("east",), 48, 2)
    assert "not known of east" in screen(found)


def test_a_region_that_does_not_answer_is_named() -> None:
    assert "! west: does not answer" in screen(READING._replace(problems=("west: does not answer",)))


names = st.text(max_size=60)
engines = st.builds(
    EngineRow, names, names, names, names, st.integers(0, 10**6), st.integers(0, 10**9),
    st.none() | st.floats(0, 1), st.floats(0, 10**4),
    st.dictionaries(st.sampled_from(["device", "host"]), st.floats(0, 1)),
)  # fmt: skip
losses = st.builds(Loss, st.floats(0, 4e9), names, names, st.integers(0, 10**9), names, names)
amounts = st.floats(0, 1e15)
readings = st.builds(
    FleetReading, st.lists(names, max_size=9).map(tuple), st.lists(engines, max_size=40).map(tuple),
    st.integers(0, 10**9), st.floats(0, 1e6), st.builds(Counters, *[amounts] * 7),
    st.lists(losses, max_size=9).map(tuple), st.lists(names, max_size=3).map(tuple),
)  # fmt: skip
choices = st.builds(
    Choice, st.sampled_from(list(SORTS)), st.booleans(), st.integers(0, 50), st.booleans(), st.booleans()
)


@given(readings, choices, st.integers(1, 200), st.integers(1, 60))
def test_nothing_is_wider_or_longer_than_the_terminal_and_nothing_steers_it(
    reading: FleetReading, choice: Choice, columns: int, height: int
) -> None:
    made = lines(reading, Rates(reading.counters, 30.0), choice, "12:00:00", (columns, height))
    assert len(made) <= height
    assert all(len(line.text) <= columns and line.text.isprintable() and line.text.isascii() for line in made)
