"""What the ladder makes of the files that it is given: names, long lines, traces of several programs, limits."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ladder.test_logs import Capture, ladder

from warmroute_cli.ladder import logs
from warmroute_cli.main import main
from warmroute_proxy.ladder import prefixes
from warmroute_proxy.ladder.prefixes import Prefixes
from warmroute_proxy.ladder.readers import otel
from warmroute_proxy.ladder.readers.otel import Otel

ROW = b'{"spend": 1, "prompt_tokens": 5, "model": "m"}'
PROMPT = list(range(64))


def finished(second: int) -> str:
    return f"[2026-11-26 15:13:{second:02d}] Finish: obj=X(input_ids={PROMPT}), out={{'prompt_tokens': 64}}\n"


def test_workers_of_one_file_name_are_two(tmp_path: Path, capsys: Capture) -> None:
    files = [tmp_path / worker / "sglang.log" for worker in ("a", "b")]
    for second, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(finished(second))
    found = ladder(capsys, *files, "--kv-tokens", "1k")
    steps = {step["step"]: step["tokens"] for step in found["steps"]}
    assert (steps["kept"], steps["chosen"]) == (48, 0)


def test_a_file_that_is_given_twice_counts_once(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text(finished(1))
    monkeypatch.chdir(tmp_path)
    assert ladder(capsys, "log", tmp_path / "log")["turns"] == 1


@pytest.mark.parametrize("size", [101, 150, 202, 1_000])
def test_the_rest_of_a_long_line_is_no_line(
    size: int, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr("warmroute_proxy.ladder.readers.lines.MAX_LINE_BYTES", 100)
    file = tmp_path / "log"
    file.write_bytes(ROW + b"\n" + b"x" * size + ROW + b"\n" + ROW + b"\n")
    found = ladder(capsys, file)
    assert found["turns"] == 2
    assert f"{file}: 1 lines could not be read" in found["notes"]


def test_a_kind_is_refused_for_logs(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "log").write_bytes(ROW)
    assert main(["ladder", str(tmp_path / "log"), "--by", "kind"]) == 2
    assert "--by kind is for ledgers" in capsys.readouterr().err


def test_a_group_does_not_reach_the_terminal_as_control(tmp_path: Path, capsys: Capture) -> None:
    row = {"spend": 1, "prompt_tokens": 5, "model": "\x1b[2Jm\nbilled  5  100.0%"}
    (tmp_path / "log").write_text(json.dumps(row))
    assert main(["ladder", str(tmp_path / "log"), "--by", "model"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\\x1b[2Jm\\nbilled" in out
    assert len([line for line in out.splitlines() if line.startswith("billed")]) == 1


def span(trace: str, id_: str, parent: str = "", tokens: int | None = 5, **more: int) -> dict[str, Any]:
    counts = ({} if tokens is None else {"gen_ai.usage.input_tokens": tokens}) | {
        name.replace("_", ".", 1): value for name, value in more.items()
    }
    attributes = [{"key": name, "value": {"intValue": value}} for name, value in counts.items()]
    return {"traceId": trace, "spanId": id_, "parentSpanId": parent, "attributes": attributes}


def export(program: str, *spans: dict[str, Any]) -> bytes:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": program}}]}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}).encode()


def tokens(*lines: bytes) -> tuple[list[int], int]:
    reader = Otel()
    return [report.prompt_tokens for report in reader.reports(lines)], reader.merged


def test_a_request_that_two_programs_trace_is_one_turn_and_warmroutes_is_read() -> None:
    client = export("client", span("t", "1", tokens=7), span("u", "5", tokens=9))
    proxy = export("warmroute", span("t", "2", "1", tokens=5, warmroute_predicted_cached_tokens=3))
    assert tokens(client, proxy) == ([5, 9], 1)
    assert tokens(proxy, client) == ([5, 9], 1)


def test_requests_of_one_agent_in_one_trace_are_turns_of_their_own() -> None:
    agent = export("agent", span("t", "1", tokens=30), span("t", "2", "1", tokens=10), span("t", "3", "1", tokens=20))
    assert tokens(agent) == ([10, 20], 1)


@pytest.mark.parametrize(("bound", "most", "of_a_trace"), [("MAX_OPEN", 2, 1), ("MAX_WAITING", 4, 4)])
def test_spans_that_wait_are_bounded(bound: str, most: int, of_a_trace: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, bound, most)
    spans = (span(str(at // of_a_trace), str(at), tokens=at + 1) for at in range(12))
    reports = Otel().reports([export("a", *spans)])
    assert next(reports).prompt_tokens == 1
    assert [report.prompt_tokens for report in reports] == list(range(2, 13))


def test_a_note_says_how_many_spans_were_merged(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "spans"
    file.write_bytes(export("a", span("t", "1")) + b"\n" + export("b", span("t", "2", "1")) + b"\n")
    found = ladder(capsys, file)
    assert found["turns"] == 1
    assert f"{file}: 1 spans show requests that other spans show, too: they were merged" in found["notes"]


def test_pages_are_bounded_over_all_workers_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MAX_PAGES", 40)
    found = Prefixes(None, 1)
    for number in range(20):
        found.add([number] * 5, f"worker{number % 3}")
    assert found.forgot > 0
    assert found.forgot + 40 == 2 * 20 * 5


def test_workers_are_bounded_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MAX_WORKERS", 2)
    found = Prefixes(None, 1)
    assert [found.add(PROMPT, worker).chosen for worker in "abcdc"] == [0, 0, 0, 63, 63]
    assert found.has_rest


def test_dropped_pages_are_in_the_notes(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MAX_PAGES", 4)
    (tmp_path / "log").write_text(finished(1))
    assert any("pages of prompts were dropped" in note for note in ladder(capsys, tmp_path / "log")["notes"])


@pytest.mark.parametrize("words", [["{}"], ["--config", "{}"]])
def test_a_file_that_is_not_there_is_named(words: list[str], tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "gone"
    assert main(["ladder", *(word.format(file) for word in words)]) == 2
    said = capsys.readouterr().err
    assert str(file) in said
    assert "cannot be read: No such file or directory\n" in said
    assert "Errno" not in said


def test_groups_have_their_exact_cost_at_any_width(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = {"a": 12_345_678, "b": 1, "c": 2}
    rows = [{"spend": cost / 1e9, "prompt_tokens": 5, "model": model} for model, cost in spent.items()]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, rows)))
    for columns in (40, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["ladder", str(tmp_path / "log"), "--by", "model", "--limit", "1"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.split("\n\n", 1)[1].splitlines())) <= columns
        assert "0.012345678" in out  # of one group alone
