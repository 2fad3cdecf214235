"""What clients write into their prompts stays a prompt in the ladder of SGLang's log: no turn, no count, no end."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from warmroute_cli.main import main
from warmroute_proxy.ladder.of_reports import Report
from warmroute_proxy.ladder.readers.sglang import SGLang

pytestmark = pytest.mark.full

FORGED = "Finish: obj=X(input_ids=[1]), out={'prompt_tokens': 900000, 'cached_tokens': 0}"


def finish(text: str, tokens: int = 7, **more: object) -> str:
    """A line as SGLang writes it."""
    named = "".join(f", {name}={value!r}" for name, value in more.items())
    out = {"text": "x", "output_ids": [1], "meta_info": {"prompt_tokens": tokens, "cached_tokens": 1}}
    return f"[2026-11-26 15:13:19] Finish: obj=GenerateReqInput(rid='a', text={text!r}{named}), out={out}\n"


def read(*lines: str) -> tuple[list[Report], int]:
    reader = SGLang("a")
    found = list(reader.reports(line.encode() for line in lines))
    return found, reader.skipped


def test_ids_in_a_prompt_are_no_ids() -> None:
    (report,), skipped = read(finish("input_ids=[,]"))
    assert report.units == ["input_ids=[,]"]
    assert skipped == 0


def test_ids_that_are_none_are_counted_and_the_log_goes_on() -> None:
    found, skipped = read(finish("a").replace("text='a'", "text=None, input_ids=[,]"), finish("b"))
    assert [report.units for report in found] == [["b"]]
    assert skipped == 1


@pytest.mark.parametrize(
    "line",
    [
        f"[2026-11-26 15:13:19] Receive: obj=GenerateReqInput(rid='a', text={FORGED!r})\n",
        f"[2026-11-26 15:13:19] INFO prompt: {FORGED}\n",
        f"[2026-11-26 15:13:19 [x] {FORGED}\n",
        json.dumps({"event": "request.received", "obj": {"text": f"request.finished {FORGED}"}}) + "\n",
    ],
)
def test_a_prompt_is_no_turn(line: str) -> None:
    assert read(line) == ([], 0)


@pytest.mark.parametrize("text", [FORGED, f'"{FORGED}', ", out={'prompt_tokens': 900000", "request.finished", "\\"])
def test_a_prompt_has_no_counts(text: str) -> None:
    (report,), skipped = read(finish(text))
    assert (report.prompt_tokens, report.delivered, skipped) == (7, 1, 0)


def test_an_answer_has_no_counts() -> None:
    line = finish("a").replace("'text': 'x'", f"'text': {FORGED!r}")
    (report,), _ = read(line)
    assert report.prompt_tokens == 7


@pytest.mark.parametrize("text", ["don't stop", 'he said "don\'t"', "plain", 'a "quoted" word'])
def test_a_prompt_is_read_in_both_quotes(text: str) -> None:
    (report,), _ = read(finish(text))
    assert report.units == [text]


def test_a_prompt_that_the_log_has_cut_is_none() -> None:
    (report,), _ = read(finish("ab").replace("text='ab'", "text='a' ... 'b'"))
    assert report.units is None


def test_the_session_is_that_of_the_headers() -> None:
    (report,), _ = read(finish("'x-smg-routing-key': 'b'", headers={"x-smg-routing-key": "alpha==", "b": "c"}))
    assert report.keys["session"] == "alpha=="


@pytest.mark.parametrize("text", ["a" * 15_000_000, "\\'" * 7_000_000])
def test_a_long_text_takes_memory_of_its_own_size(text: str) -> None:
    line = finish(text[:100]).replace(repr(text[:100]), f"'{text}'").encode()
    reader = SGLang("a")
    tracemalloc.start()
    try:
        (report,) = reader.reports([line])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.prompt_tokens == 7
    assert most < 12 * len(line)


def test_a_text_that_is_not_closed_is_passed_over() -> None:
    assert read("Finish: obj=X(text='" + "\\'" * 1_000_000) == ([], 1)


def test_the_log_of_a_hostile_client_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    file.write_text(finish("input_ids=[,]") + finish("don't") + finish(FORGED))
    assert main(["ladder", str(file), "--price", "0.6:0.1:3", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["turns"], found["prompt_tokens"]) == (3, 21)
