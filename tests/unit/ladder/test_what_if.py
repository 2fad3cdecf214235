"""The same trace with other settings: the causes add up to the difference, to the nanodollar."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ladder.test_logs import Capture, ladder
from tests.unit.replay.test_loaders import call, weka

from warmroute_cli.main import main

SESSIONS = 12
TURNS = 6


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Agent sessions of growing prompts, as `warmroute replay` takes them."""
    file = tmp_path / "sessions.jsonl"
    lines = []
    for _ in range(SESSIONS):
        turns: list[list[Any]] = []
        for at in range(TURNS):
            tokens = 4_096 + at * 2_048
            shared = (4_096 + (at - 1) * 2_048) // 512 if at else 0
            turns.append([0.0, tokens, 64, tokens // 512, shared, at - 1 if at else None, 5.0, 1.0])
        lines.append(json.dumps({"block": 512, "tool_tokens": 1_024, "system_tokens": 1_024, "turns": turns}))
    file.write_text("\n".join(lines))
    return file


def test_the_causes_of_each_difference_add_up(trace: Path, capsys: Capture) -> None:
    found = ladder(
        capsys, trace, "--price", "0.6:0.1:3", "--as-it-is", "policy=round_robin,workers=4,kv-tokens=60k",
        "--what-if", "policy=warmroute", "--what-if", "kv-tokens=200k", "--what-if", "workers=1,price=0.7:0.05:3",
        "--what-if", "price=0.6:0.05:3",
    )  # fmt: skip
    assert len(found["what_if"]) == 4
    for case in found["what_if"]:
        assert case["more_nanousd"] == sum(cause["nanousd"] for cause in case["causes"])
        assert case["price_nanousd"] == found["price_nanousd"] + case["more_nanousd"]
    affine, larger, _, cheaper = found["what_if"]
    assert affine["price_nanousd"] < found["price_nanousd"]
    assert larger["price_nanousd"] <= found["price_nanousd"]
    assert [cause["cause"] for cause in cheaper["causes"]] == ["prices"]


def test_a_rotation_loses_what_moved_and_one_worker_nothing(trace: Path, capsys: Capture) -> None:
    def moved(setting: str) -> int:
        found = ladder(capsys, trace, "--as-it-is", setting, "--price", "0.6:0.1:3")
        step = next(step for step in found["steps"] if step["step"] == "chosen")
        return sum(cause["tokens"] for cause in step["causes"] if cause["cause"] == "moved")

    assert moved("policy=round_robin,workers=4") > 0
    assert moved("policy=round_robin,workers=1") == 0


def test_steps_do_not_rise_but_for_what_is_named(trace: Path, capsys: Capture) -> None:
    found = ladder(capsys, trace, "--as-it-is", "policy=round_robin,workers=3,kv-tokens=20k", "--price", "0.6:0.1:3")
    for step in found["steps"][1:]:
        negative = [cause["cause"] for cause in step["causes"] if cause["tokens"] < 0]
        assert set(negative) <= ({"unexplained"} if step["step"] == "delivered" else set())
        assert step["lost_tokens"] == sum(cause["tokens"] for cause in step["causes"])


def test_answers_that_decode_workers_alone_have_are_not_evicted(tmp_path: Path, capsys: Capture) -> None:
    trace = tmp_path / "answers.jsonl"
    turns: list[list[Any]] = [
        [0.0, 4_096 * at, 2_048, 8 * at + 4, 8 * at - 4 if at > 1 else 0, at - 2, 5.0, 1.0] for at in (1, 2, 3)
    ]
    turns[0][5] = None
    trace.write_text(json.dumps({"block": 512, "tool_tokens": 1_024, "system_tokens": 1_024, "turns": turns}))

    def lost(workers: str) -> dict[str, int]:
        found = ladder(capsys, trace, "--as-it-is", f"workers={workers},kv-tokens=100M")
        return {cause["cause"]: cause["tokens"] for step in found["steps"][1:] for cause in step["causes"]}

    assert lost("2:2")["not_kept"] > 0
    assert "evicted" not in lost("2:2")
    assert "not_kept" not in lost("2")


def test_the_last_page_of_a_prompt_that_is_sent_again_is_not_evicted(tmp_path: Path, capsys: Capture) -> None:
    trace = tmp_path / "again.jsonl"
    turns: list[list[Any]] = [[0.0, 4_096, 64, 8, 0, None, 5.0, 1.0], [0.0, 4_096, 64, 8, 8, 0, 5.0, 1.0]]
    trace.write_text(json.dumps({"block": 512, "tool_tokens": 1_024, "system_tokens": 1_024, "turns": turns}))
    found = ladder(capsys, trace, "--as-it-is", "workers=1")
    tokens = {step["step"]: step["tokens"] for step in found["steps"]}
    assert tokens["reachable"] == tokens["kept"] == tokens["delivered"] == 4_096 - 512


@pytest.mark.parametrize("tiers", ["20k:200k", "20k:40k:2M"])
def test_what_lower_tiers_hold_is_kept(trace: Path, capsys: Capture, tiers: str) -> None:
    found = ladder(capsys, trace, "--as-it-is", f"policy=round_robin,workers=3,kv-tokens={tiers}")
    tokens = {step["step"]: step["tokens"] for step in found["steps"]}
    assert tokens["delivered"] > 0
    assert tokens["kept"] >= tokens["chosen"] >= tokens["delivered"]
    assert not [cause for step in found["steps"][1:] for cause in step["causes"] if cause["tokens"] < 0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--what-if", "speed=3"], "is not one of policy="),
        (["--what-if", "policy=best"], "no policy best"),
        (["--what-if", "price=1:2"], "is not INPUT:CACHED:OUTPUT"),
        (["--what-if", "workers=0"], "workers"),
        (["--as-it-is", "speed=3"], "ladder: --as-it-is 'speed=3': "),
        (["--price", "kimi-k2.5=0.6:0.1:3"], "leave out MODEL="),
    ],
)
def test_a_wrong_setting_is_said(words: list[str], says: str, trace: Path, capsys: Capture) -> None:
    assert main(["ladder", str(trace), *words]) == 2
    assert says in capsys.readouterr().err


def test_all_traces_of_replay_are_known_by_their_content(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "weka.json"
    file.write_text(json.dumps(weka([call(0.0, 640, list(range(10)))]), indent=1))
    assert ladder(capsys, file)["turns"] == 1


@pytest.mark.parametrize("words", [["--since", "7d"], ["--config", "proxy.toml"], ["--by", "tenant"]])
def test_options_that_a_trace_cannot_follow_are_refused(words: list[str], trace: Path, capsys: Capture) -> None:
    assert main(["ladder", str(trace), *words]) == 2
    assert words[0] in capsys.readouterr().err


def test_the_first_simulation_has_the_policy_of_replay(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "replay.json"
    assert main(["replay", str(trace), "--json", str(file)]) == 0
    assert main(["ladder", str(trace)]) == 0
    assert f"as it is: policy={json.loads(file.read_text())[0]['policy']},workers=" in capsys.readouterr().out


def test_a_trace_without_rates_does_not_say_what_was_billed(trace: Path, capsys: Capture) -> None:
    assert main(["ladder", str(trace), "--what-if", "policy=round_robin"]) == 0
    out = capsys.readouterr().out
    assert "which does not state the billed tokens" in out
    assert "0 USD" not in out.replace("(0 USD)", "")
    assert ladder(capsys, trace)["is_billed"] is False


def test_a_ledger_cannot_be_played_again(tmp_path: Path, capsys: Capture) -> None:
    assert main(["ladder", str(tmp_path), "--what-if", "policy=warmroute"]) == 2
    assert "needs a proxy's record" in capsys.readouterr().err
