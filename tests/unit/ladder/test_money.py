"""What the ladder says of money: costs that a log states, models without rates, failed requests, rows that are off."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.subjects.entries import REPORTED, dispatched_entry, settle
from tests.unit.ladder.test_logs import FOLDER, PRICE, Capture, ladder

from warmroute.contract.money import CacheRates, Rates
from warmroute_cli.ladder.logs import LogTurns
from warmroute_cli.main import main
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.entry_steps import voiding
from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.ladder.of_entries import turn_of
from warmroute_proxy.ladder.sums import Ladder


def shown(capture: Capture, *words: object) -> tuple[dict[str, Any], str, str]:
    """JSON, the table, and the notes."""
    found = ladder(capture, *words)
    assert main(["ladder", *map(str, words)]) == 0
    out, err = capture.readouterr()
    return found, out, err


def row(model: str = "m", **more: Any) -> dict[str, Any]:
    return {
        "spend": 0.001, "prompt_tokens": 100, "completion_tokens": 0, "model": model,
        "metadata": {"usage_object": {"prompt_tokens_details": {"cached_tokens": 50}}}, **more,
    }  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Any:
    def written(*rows: dict[str, Any]) -> Path:
        file = tmp_path / "log.jsonl"
        file.write_text("".join(json.dumps(each) + "\n" for each in rows))
        return file

    return written


@pytest.mark.parametrize("name", ["litellm_spend.jsonl.gz", "otel_litellm.jsonl.gz"])
def test_a_cost_that_a_log_states_was_billed(name: str, capsys: Capture) -> None:
    priced, _, _ = shown(capsys, FOLDER / name, *PRICE)
    found, table, err = shown(capsys, FOLDER / name)
    assert found["is_billed"] is True
    assert found["price_nanousd"] == found["steps"][-1]["price_nanousd"] == priced["price_nanousd"] > 0
    assert "USD billed" in table
    assert "saved" not in table
    assert [step["price_nanousd"] for step in found["steps"][:-1]] == [None] * 7
    assert "8 turns have no rates" in err


def test_one_model_without_rates_is_named_and_hides_nothing(log: Any, capsys: Capture) -> None:
    found, table, err = shown(capsys, log(row("a"), row("b")), "--price", "a=10:5:0")
    assert found["is_billed"] is True
    assert found["price_nanousd"] == 2_000_000
    assert found["rated_rows"] == 1
    assert "1 turn has no rates (b)" in err
    assert "0.002 USD billed, 0 USD saved" in table


def test_what_was_billed_is_that_of_the_lines_that_say_it(log: Any, capsys: Capture) -> None:
    silent = {**row(), "spend": None, "metadata": {}}
    found, table, _ = shown(capsys, log(row(), silent), "--price", "10:5:0")
    assert found["is_billed"] is False
    assert (found["billed_rows"], found["billed_nanousd"]) == (1, 1_000_000)
    assert "of which 1 state the billed tokens: 0.001 USD billed, 0 USD saved" in table


def test_a_log_without_a_cost_and_rates_says_so(capsys: Capture) -> None:
    found, table, err = shown(capsys, FOLDER / "sglang_json.log.gz")
    assert found["is_billed"] is False
    assert "which does not state the billed tokens" in table
    assert "no rates" in err


def test_an_empty_log_does_not_say_that_nothing_was_billed(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "log").write_text("")
    found, table, _ = shown(capsys, tmp_path / "log", "--format", "sglang")
    assert found["is_billed"] is False
    assert "which does not state the billed tokens" in table


def test_one_line_without_a_prompt_hides_no_step_and_the_sums_add_up(log: Any, capsys: Capture) -> None:
    asked = [{"role": "user", "content": "x" * 640}]
    rows = [row(messages=asked), row(messages=asked), row(messages=asked), row()]
    found, table, _ = shown(capsys, log(*rows), "--price", "10:5:0")
    steps = {step["step"]: step for step in found["steps"]}
    assert steps["reachable"]["tokens"] is not None
    assert (steps["reachable"]["known_rows"], found["rows"]) == (3, 4)
    assert "known of 3 of 4 turns" in table
    tokens = found["prompt_tokens"]
    for step in found["steps"][1:]:
        tokens -= step["lost_tokens"]
        assert step["tokens"] in {tokens, None}
        assert step["tokens"] is not None or not step["lost_tokens"]


def test_failed_requests_are_counted_apart_with_what_they_cost(log: Any, capsys: Capture) -> None:
    found, _, err = shown(capsys, log(row(), row(status="failure", spend=0.25), row(status="failure", spend=0)), *PRICE)
    assert found["turns"] == 1
    assert "2 requests failed; their 0.25 USD are not in the ladder" in err
    assert "could not be read" not in err


def test_nothing_wins_back_what_a_prediction_did_not_lose() -> None:
    sums = Ladder()
    sums.add(turn_of(entry(predicted=0)))
    found = sums.as_dict({}, 1)
    assert any(cause["cause"] == "underpredicted" for step in found["steps"][1:] for cause in step["causes"])
    assert [win["remedy"] for win in found["would_win_back"]] == ["warm-up"]


def entry(predicted: int = 64, cache_rates: CacheRates | None = None, number: int = 1) -> Entry:
    """A settled entry: 100 tokens of prompt, 64 of them cached, and 36 cold."""
    rates = Rates(600_000, 100_000, 3_000_000, "book", cache_rates)
    tiers = None if cache_rates is None else {"device": 40, "host": 24}
    made = dispatched_entry(number, predicted, tenant="a", rates=rates)
    return settle(made, usage=merge_usage(REPORTED, tiers, None, 0))


def off(*rows: Entry) -> tuple[int, int]:
    sums = Ladder()
    for each in rows:
        sums.add(turn_of(each))
    return sums.all.off_rows, sums.all.off_nanousd


def test_a_ledger_that_does_not_recompute_exits_with_1(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [changed(entry(), 500), changed(entry(number=2), -500), entry(number=3)]
    source = LogTurns({"kind": "ledger"}, map(turn_of, rows), [])
    monkeypatch.setattr("warmroute_cli.ladder.ladder.source_of", lambda _: source)
    assert main(["ladder", str(tmp_path)]) == 1
    assert "the prices of 2 rows of the ledger do not follow from their rates, by 0.000001 USD" in (
        capsys.readouterr().err
    )


def changed(made: Entry, nanousd: int) -> Entry:
    return msgspec.structs.replace(made, price_nanousd=made.price_nanousd + nanousd)


TIERS = CacheRates(200_000, 300_000, 700_000, 800_000)


@pytest.mark.parametrize("cache_rates", [None, TIERS])
def test_sound_rows_are_not_off(cache_rates: CacheRates | None) -> None:
    made = entry(cache_rates=cache_rates)
    assert off(made, voiding(made, 3.0)) == (0, 0)


def test_two_rows_that_are_off_do_not_make_up_for_each_other() -> None:
    assert off(changed(entry(), 500), changed(entry(number=2), -500)) == (2, 1_000)


@pytest.mark.parametrize("cache_rates", [None, TIERS])
def test_a_row_that_takes_another_one_back_can_be_off(cache_rates: CacheRates | None) -> None:
    assert off(changed(voiding(entry(cache_rates=cache_rates), 3.0), 700)) == (1, 700)
