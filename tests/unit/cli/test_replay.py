"""`warmroute replay`: what a person and a script get from it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from warmroute_cli.main import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Twenty conversations of three turns."""
    path = tmp_path / "trace.jsonl"
    rows = []
    for turn in range(3):
        for chat in range(20):
            ids = [chat * 1000 + at for at in range(3 * (turn + 1))]
            times = {"timestamp": (turn * 20 + chat) * 500, "output_length": 20}
            rows.append({**times, "input_length": len(ids) * 512 - 100, "hash_ids": ids})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def figures(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_a_table_and_json(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    code = main(["replay", str(trace), "--policy", "warmroute", "round_robin", "--workers", "3", "--json", str(out)])
    assert code == 0
    warm, turns = figures(out)
    assert (warm["policy"], turns["policy"]) == ("warmroute", "round_robin")
    assert warm["requests"] == turns["requests"] == 60
    assert warm["hit"] > turns["hit"]
    printed = capsys.readouterr().out
    assert re.search(rf"^warmroute +1x +{warm['hit']:.4f} ", printed, re.MULTILINE)
    assert "queueing model" in printed


def test_a_trace_twice_is_played_twice(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["replay", str(trace), str(trace), "--json", str(out)]) == 0
    assert figures(out)[0]["requests"] == 120


def test_a_sweep_gives_what_single_runs_give_and_a_page(trace: Path, tmp_path: Path) -> None:
    swept, single, page = tmp_path / "swept.json", tmp_path / "single.json", tmp_path / "page.html"
    runs = ["replay", str(trace), "--policy", "warmroute", "random", "--speed-up", "1", "4"]
    assert main([*runs, "--sweep", "--json", str(swept), "--html", str(page)]) == 0
    assert main([*runs, "--json", str(single)]) == 0

    def without_cpu(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if key != "cpu_s"} for row in rows]

    assert without_cpu(figures(swept)) == without_cpu(figures(single))
    text = page.read_text()
    assert text.count("<svg") == 3 + 2 + 2  # against load, frontiers at two loads, workers over time of two policies
    assert not re.search(r"(src|href)=|url\(|@import", text)  # needs nothing else
    assert len(json.loads(re.search(r'id="results">(.*?)</script>', text).group(1))) == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "magic"], "no policy magic; there are warmroute, "),
        (["--kv-tokens", "4k"], "does not fit 4000 KV tokens"),
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["--json", "no/folder/figures.json"], "no/folder/figures.json: No such file"),
    ],
)
def test_what_cannot_be_done_is_said(
    trace: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["replay", str(trace), *options]) == 2
    printed, error = capsys.readouterr()
    assert said in error
    assert not printed  # nothing was played


def test_all_policies_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--policies"]) == 0
    assert {"warmroute", "round_robin", "smg_event", "llmd_affinity"} <= set(capsys.readouterr().out.split())
