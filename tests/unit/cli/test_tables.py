"""Tables of usage and receipts, at any width."""

import io
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_cli.api import ApiError
from warmroute_cli.asking import since_parameter
from warmroute_cli.receipts import receipts_table
from warmroute_cli.tables import Column, Row, at_work, fitted
from warmroute_cli.usage import usage_table

SUMS = {
    "turns": 1_234, "prompt_tokens": 123_456_789, "cached_tokens": 98_765_432, "completion_tokens": 1_234_567,
    "price_nanousd": 12_345_678_912, "saved_nanousd": 45_678_912_345, "hit_ratio": 0.8,
    "losses": {"cold": 20_000_000, "new": 4_691_357, "prefix_changed": 11_111, "page_rounding": 9_876},
}  # fmt: skip
USAGE: dict[str, Any] = {"by": "model", **SUMS, "groups": [{"key": "kimi-k2.5", **SUMS}, {"key": "", **SUMS}]}
NUMBERS = ("123,456,789", "98,765,432", "80.0%", "1,234,567", "12.345678912", "cold 20,000,000", "page_rounding 9,876")


def turn(**changed: Any) -> dict[str, Any]:
    found = {
        "id": "wr-33405eadd37df1c3d2c29c45", "settled_at": 1_763_860_000.0, "model": "kimi-k2.5-with-a-long-name",
        "session": "00aa11bb22cc33dd", "region": "east", "turn": 12, "prompt_tokens": 1_234_567,
        "cached_tokens": 1_200_000, "completion_tokens": 4_321, "price_nanousd": 123_456_789, "outcome": "completed",
    }  # fmt: skip
    return found | changed


@given(st.integers(20, 200))
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(most: int) -> None:
    lines = usage_table(USAGE, most)
    assert max(map(len, lines)) <= max(most, len("not cached: cold 20,000,000,") + 2)
    text = re.sub(r"\s+", " ", " ".join(lines))
    for number in NUMBERS:
        assert text.count(number) >= 3, number
    lines = receipts_table([turn(), turn(outcome="engine_error")], most)
    assert max(map(len, lines)) <= max(most, len("  session client 11-23 02:13 (00aa11)"))
    text = " ".join(lines)
    for number in ("wr-33405eadd37df1c3d2c29c45", "1,234,567", "1,200,000", "0.123456789"):
        assert text.count(number) == 2
    assert text.count("engine_error") == 1


def test_at_80_columns_what_matters_is_in_one_table() -> None:
    lines = receipts_table([turn(outcome="client_left"), turn()], 80)
    assert lines[0].split() == ["receipt", "ended", "turn", "prompt", "cached", "cost", "USD"]
    assert lines[2].strip() == "outcome: client_left"
    assert "Left out here: session, agent, answer, model, region." in "\n".join(lines)
    usage = usage_table(USAGE, 80)
    assert "not cached: cold 20,000,000, new 4,691,357, prefix_changed 11,111," in "\n".join(usage)


def test_a_wide_terminal_has_all_columns() -> None:
    lines = receipts_table([turn()], 170)
    assert lines[0].split()[-4:] == ["agent", "answer", "model", "region"]
    assert "client 11-23" in lines[1]
    assert "(00aa11)  main" in lines[1]
    assert usage_table(USAGE, 170)[0].endswith("not cached")


NOW = datetime(2026, 11, 25, 14, 30).astimezone()


@pytest.mark.parametrize(
    ("text", "day"),
    [("today", 25), ("yesterday", 24), ("wednesday", 25), ("Monday", 23), ("mon", 23), ("thu", 19), ("sunday", 22)],
)
def test_days_begin_at_the_local_midnight(text: str, day: int) -> None:
    assert since_parameter(text, NOW) == str(int(datetime(2026, 11, day).timestamp()))  # noqa: DTZ001


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "now", "begins"),
    [
        ("today", "2026-10-25 15:00", "2026-10-25T00:00:00+02:00"),
        ("today", "2026-03-29 15:00", "2026-03-29T00:00:00+01:00"),
        ("monday", "2026-10-28 09:00", "2026-10-26T00:00:00+01:00"),
        ("yesterday", "2026-10-26 09:00", "2026-10-25T00:00:00+02:00"),
    ],
)
@pytest.mark.usefixtures("in_berlin")
def test_a_day_begins_at_midnight_when_the_clocks_change(text: str, now: str, begins: str) -> None:
    found = float(since_parameter(text, datetime.fromisoformat(now).astimezone()))
    assert datetime.fromtimestamp(found).astimezone().isoformat() == begins


@pytest.mark.parametrize("text", ["30m", "1h", "7d", "2026-11-23", "1763860000.5"])
def test_other_times_are_left_to_the_proxy(text: str) -> None:
    assert since_parameter(text, NOW) == text


@pytest.mark.parametrize("text", ["tomorrow", "noon", "mo", "sundays", "3x"])
def test_a_time_that_cannot_be_read_is_refused_with_all_that_can(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        since_parameter(text, NOW)
    said = str(refused.value)
    assert all(form in said for form in (repr(text), "1h", "7d", "2026-11-23", "unix", "today", "yesterday", "monday"))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("ends", "told"), [(False, "warmroute plan: at work ...\n"), (True, "")])
def test_a_command_says_that_it_is_at_work_where_it_takes_long(ends: bool, told: str) -> None:
    out, waited = _Terminal(), threading.Event()

    def wait(_ended: threading.Event, seconds: float) -> bool:
        assert seconds == 2.0
        waited.set()
        return ends

    with at_work("warmroute plan", out, wait):
        waited.wait()
    assert out.getvalue() == told


def test_nothing_is_said_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with at_work("warmroute plan", out, lambda _ended, _seconds: False):
        pass
    assert out.getvalue() == ""


def test_a_session_that_has_a_name_is_shown_by_it() -> None:
    groups = [{"key": "0123456789abcdef", **SUMS}, {"key": "fedcba9876543210", **SUMS}]
    text = "\n".join(
        usage_table({**USAGE, "by": "session", "groups": groups}, 170, {"0123456789abcdef": "fix tests (012345)"})
    )
    assert "fix tests (012345)" in text
    assert "client (fedcba9876543210)" in text


def test_control_characters_are_shown_as_escapes() -> None:
    rows = [Row(["a\x1b[2J\nb", "1"], ["c\rd"])]
    (_, line) = fitted([Column("name\t"), Column("n", is_number=True)], rows, "why", 80)
    assert line == "a\\x1b[2J\\nb  1  c\\rd"
