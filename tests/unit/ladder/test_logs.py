"""The ladder of logs that other programs have really written (tests/recordings/ladder), two sessions of four turns.

LiteLLM 1.108.7 wrote its spend rows and spans in front of an embedded engine; SGLang 0.5.23 and vLLM 0.32 on a CPU
wrote their logs, and vLLM its spans, with models of random weights.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from warmroute_cli.main import main

FOLDER = Path(__file__).parents[2] / "recordings/ladder"
PRICE = ("--price", "0.6:0.1:3")
TURNS = 8

Capture = pytest.CaptureFixture[str]


def ladder(capture: Capture, *words: object) -> dict[str, Any]:
    assert main(["ladder", *map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capture.readouterr().out)
    return found


def lines_of(name: str) -> list[bytes]:
    return gzip.decompress((FOLDER / name).read_bytes()).splitlines(keepends=True)


def levels(found: dict[str, Any]) -> dict[str, int | None]:
    return {step["step"]: step["tokens"] for step in found["steps"]}


def test_litellms_rows_have_what_it_billed(capsys: Capture) -> None:
    found = ladder(capsys, FOLDER / "litellm_spend.jsonl.gz", *PRICE, "--by", "session")
    rows = [json.loads(line) for line in lines_of("litellm_spend.jsonl.gz")]
    assert found["turns"] == TURNS
    assert found["price_nanousd"] == sum(round(row["spend"] * 1e9) for row in rows)
    steps = levels(found)
    assert steps["billed"] == steps["reported"] == 5_056
    assert steps["prompt"] == sum(row["prompt_tokens"] for row in rows)
    assert steps["reachable"] is not None
    assert steps["reachable"] >= steps["reported"]
    assert steps["delivered"] is None
    assert {group["key"] for group in found["groups"]} == {"alpha", "beta"}


def test_litellms_rows_name_the_harness(capsys: Capture) -> None:
    found = ladder(capsys, FOLDER / "litellm_spend.jsonl.gz", "--by", "harness")
    assert [group["key"] for group in found["groups"]] == ["opencode"]


def test_litellms_spans_have_lost_the_cached_tokens_and_not_the_cost(capsys: Capture) -> None:
    rows = ladder(capsys, FOLDER / "litellm_spend.jsonl.gz", *PRICE)
    spans = ladder(capsys, FOLDER / "otel_litellm.jsonl.gz", *PRICE)
    assert spans["price_nanousd"] == rows["price_nanousd"]
    assert levels(spans)["reported"] is None
    assert levels(spans)["billed"] == 5_056


def test_vllms_spans_have_no_cached_tokens_at_all(capsys: Capture) -> None:
    found = ladder(capsys, FOLDER / "otel_vllm.jsonl.gz", *PRICE)
    assert found["turns"] == TURNS
    assert found["is_billed"] is False
    assert [step for step, tokens in levels(found).items() if tokens is not None] == ["prompt"]


@pytest.mark.parametrize("name", ["sglang_json.log.gz", "sglang_text.log.gz"])
def test_sglang_delivers_all_that_was_reachable(name: str, capsys: Capture) -> None:
    found = ladder(capsys, FOLDER / name, *PRICE, "--kv-tokens", "100k", "--by", "session")
    steps = levels(found)
    assert found["turns"] == TURNS + 1  # with its own first request
    assert steps["reachable"] == steps["kept"] == steps["delivered"] == 11_648
    assert {group["key"]: group["turns"] for group in found["groups"]} == {"alpha": 4, "beta": 4, "": 1}


def test_a_small_cache_keeps_less(capsys: Capture) -> None:
    found = ladder(capsys, FOLDER / "sglang_json.log.gz", *PRICE, "--kv-tokens", "2k")
    steps = levels(found)
    assert steps["kept"] is not None
    assert steps["kept"] < 11_648


def test_vllms_log_has_what_was_reachable_and_no_cached_tokens(capsys: Capture) -> None:
    found = ladder(capsys, FOLDER / "vllm.log.gz", *PRICE)
    assert found["turns"] == TURNS
    assert levels(found)["reachable"] == 11_632
    assert levels(found)["delivered"] is None
    assert "73.2%" in found["notes"][0]


def test_two_workers_show_what_placement_lost(tmp_path: Path, capsys: Capture) -> None:
    lines = [line for line in lines_of("sglang_json.log.gz") if b"request.finished" in line]
    for number in range(2):
        (tmp_path / f"worker{number}.log").write_bytes(b"".join(lines[number::2]))
    found = ladder(capsys, tmp_path / "worker0.log", tmp_path / "worker1.log", *PRICE, "--kv-tokens", "100k")
    steps = levels(found)
    assert steps["chosen"] is not None
    assert steps["kept"] is not None
    assert steps["chosen"] < steps["kept"]
    causes = {cause["cause"] for step in found["steps"] if step["step"] == "chosen" for cause in step["causes"]}
    assert causes == {"moved"}


def test_a_file_that_is_no_log_is_named(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing\n")
    assert main(["ladder", str(file)]) == 2
    assert "notes.txt has no known log format" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        b'{"spend": 1e400, "prompt_tokens": 5}',
        b'{"spend": "x", "prompt_tokens": -5}',
        b'{"spend": 1, "prompt_tokens": 5, "metadata": "[[[[", "messages": "{", "request_tags": "1"}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [{"key": "gen_ai.usage.input_tokens"}]}]}]}]}',
        b'{"resourceSpans": 3}',
        b'{"event": "request.finished", "obj": [], "out": {"meta_info": {"prompt_tokens": "x"}}}',
        b"Finish: obj=GenerateReqInput(input_ids=[1, 2]), out={'meta_info': {'prompt_tokens': 9999999999999999999}}",
        b"Request x details: prompt: '', prompt_token_ids: [1, 2, prompt_embeds",
        b"Request x details: prompt: '', prompt_token_ids: [,], prompt_embeds",
        b"[" * 10_000,
    ],
)
def test_odd_lines_are_passed_over(line: bytes, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "log"
    file.write_bytes(line + b"\n")
    for name in ("litellm", "otel", "sglang", "vllm"):
        assert main(["ladder", str(file), "--format", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["price_nanousd"] in {0, 10**9}
