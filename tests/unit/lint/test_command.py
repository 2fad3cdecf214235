"""`warmroute lint`: what it prints, what it hides, when it fails."""

import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from warmroute_cli.main import main

SAMPLES = str(resources.files("warmroute_lab") / "samples")
SECRET = "canary"
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("a", "b")]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences stay in one line."""
    monkeypatch.setenv("COLUMNS", "200")


def body(day: str, tools: list[dict[str, Any]], *texts: str) -> dict[str, Any]:
    system = {"role": "system", "content": f"You are {SECRET}.\nToday is {day}."}
    turns = [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(texts)]
    return {"model": "kimi-k2.5", "tools": tools, "messages": [system, *turns]}


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    """Four turns: the second appends, the third has another date, the fourth other tools."""
    bodies = [
        body("2026-11-20", TOOLS, SECRET * 300),
        body("2026-11-20", TOOLS, SECRET * 300, "ok", "go on"),
        body("2026-11-21", TOOLS, SECRET * 300, "ok", "go on", "ok", "<script>alert(1)</script>"),
        body("2026-11-21", TOOLS[::-1], SECRET * 300, "ok", "go on", "ok", "<script>alert(1)</script>", "ok", "end"),
    ]
    path = tmp_path / "calls.jsonl"
    path.write_text("\n".join(map(json.dumps, bodies)))
    return path


def test_causes_tokens_and_money(transcript: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(transcript)]) == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines()[1:3]]
    assert [row[:3] for row in rows] == [["calls", "tool-order", "1"], ["calls", "date", "1"]]
    assert all(400 < int(row[3].replace(",", "")) < 600 for row in rows)
    assert float(rows[0][4]) == pytest.approx(int(rows[0][3]) * 0.5 / 1e6, abs=1e-4)
    assert rows[0][5:] == ["#4", "tools[0]", "'b'"]
    assert "4 turns of 1 session," in said
    assert "To change: send tools in one order" in said


def test_what_was_said_is_masked_unless_asked_for(
    transcript: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    for option in ([], ["--json"]):
        assert main(["lint", str(transcript), "--html", str(page), *option]) == 0
        said = capsys.readouterr().out + page.read_text()
        assert SECRET not in said
        assert "2026-11-21" not in said
        assert "xxxxx xx 9999-99-99." in said
    main(["lint", str(transcript), "--show-text", "--html", str(page)])
    said = capsys.readouterr().out
    assert "- Today is 2026-11-20." in said
    assert "+ Today is 2026-11-21." in said
    assert "Today is 2026-11-21." in page.read_text()


def test_json_has_every_turn(transcript: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["lint", "--json", str(transcript)])
    found = json.loads(capsys.readouterr().out)
    [session] = found["sessions"]
    assert [turn["cause"] for turn in session["turns"]] == [None, None, "date", "tool-order"]
    assert [turn["line"] for turn in session["turns"]] == [None, None, 2, None]
    assert sum(turn["tokens_lost"] for turn in session["turns"]) == sum(row["tokens_lost"] for row in found["causes"])


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--fail-under", "0.2"], 0, ""),
        (["--fail-under", "0.85"], 1, "cached is under 85.0%"),
        (["--fail-on", "nonce,model"], 0, ""),
        (["--fail-on", "date,tool-order"], 1, "date in 1 turn"),
    ],
)
def test_a_check_fails_with_1(
    transcript: Path, options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", str(transcript), *options]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fail-on", "dates"], "'dates' is not a cause; causes: cache-marks"),
        (["--fail-under", "85"], "'85' is not a number from 0 to 1"),
    ],
)
def test_a_wrong_option_is_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["lint", "calls.jsonl", *options])
    assert raised.value.code == 2
    assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(tmp_path / "none")]) == 2
    assert main(["lint", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "No such file" in said
    assert "no file in it ends with .json" in said


def test_the_samples_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", SAMPLES, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    causes = {(row["cause"], row["turns"], row["first"]["request"]) for row in found["causes"]}
    assert causes == {("history-pruned", 1, 17), ("system", 1, 12), ("system", 1, 5), ("history-edited", 4, 2)}
    assert found["hit_ratio"] == pytest.approx(0.884, abs=0.001)


class Page(HTMLParser):
    """The tags of a page, and how many turns it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.bars = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.bars += ("class", "turn") in attrs


def test_the_page_has_a_bar_for_each_turn_and_loads_nothing(
    transcript: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.html"
    main(["lint", str(transcript), "--html", str(path), "--show-text"])
    page = Page()
    page.feed(path.read_text())
    assert page.bars == 4
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert not re.search(r"https?://", path.read_text())


def test_a_compaction_has_what_it_cost_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["Read the files.", *["The file says this. " * 400, "Go on."] * 6]
    summary = "This session is continued from a previous conversation. Summary: " + "We read files. " * 100
    bodies = [body("2026-11-20", TOOLS, *texts[:end]) for end in (1, 5, 9, 13)]
    bodies.append(body("2026-11-20", TOOLS, summary))
    path = tmp_path / "calls.jsonl"
    path.write_text("\n".join(map(json.dumps, bodies)))
    assert main(["lint", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"calls #5 is a compaction: [\d,]+ tokens \(0\.\d+ USD\) were computed again, and each turn", text)
    main(["lint", "--json", str(path)])
    turn = json.loads(capsys.readouterr().out)["sessions"][0]["turns"][-1]
    assert turn["compacted_tokens"] > 10_000
    assert turn["saved_usd_a_turn"] == pytest.approx(turn["compacted_tokens"] * 0.1 / 1e6)


def test_a_turn_whose_history_the_server_keeps_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "calls.jsonl"
    asks = [{"model": "m", "instructions": "Be brief.", "input": f"Open on 2026-11-2{day}?"} for day in range(3)]
    path.write_text("\n".join(json.dumps({**ask, "previous_response_id": "resp_1"}) for ask in asks))
    assert main(["lint", "--json", str(path)]) == 0
    [session] = json.loads(capsys.readouterr().out)["sessions"]
    assert [turn["cause"] for turn in session["turns"]] == [None] * 3
