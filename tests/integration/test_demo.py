"""The main job end to end on a few recordings, and the fleet that stays: real processes, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.machine import seconds
from tests.subjects.copies import Running, ran, started
from warmroute_proxy.server.ledger.ledger import read_rows

COMMAND = [sys.executable, "-m", "warmroute_cli.main"]
HARNESSES = ("aider", "codex", "mini-swe-agent")
TURNS = 6 + 12 + 9

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]


def processes_of(state_dir: Path) -> list[str]:
    """Command lines of running processes whose output goes to the state directory."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "fd" / "2").readlink().is_relative_to(state_dir):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it ended, or is somebody else's
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("demo").resolve()
    words = ["demo", "--json", "demo.json", "--state-dir", "state", "--speed", "50"]
    # One session at a time: how long a worker is busy with another depends on the machine, and so would placement.
    words += ["--sessions", "1", "--harness", *HARNESSES]
    # A company's laptop: proxies that cannot reach this machine, and no exception for it.
    behind = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    behind |= {"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9"}
    done = ran([*COMMAND, *words], folder, behind, 150)
    path = folder / "demo.json"
    assert path.exists(), done.stdout + done.stderr
    return done, json.loads(path.read_text()), folder


def test_the_ladder_of_a_demo_ends_at_its_ledgers(
    demo: tuple[subprocess.CompletedProcess[str], dict[str, Any], Path],
) -> None:
    played, _, folder = demo
    prices = {}
    for name in ("demo-off", "demo-on"):
        rows = [
            row for region in ("east", "west") for row in read_rows(folder / f"state/{name}/{region}/ledger.sqlite")
        ]
        assert f"warmroute ladder state/{name}\n" in played.stdout
        done = ran([*COMMAND, "ladder", f"state/{name}", "--by", "harness", "--json"], folder, timeout_s=60)
        found = json.loads(done.stdout)
        assert done.returncode == 0, done.stderr
        assert found["turns"] == len(rows) == TURNS
        assert found["price_nanousd"] == sum(row["price_nanousd"] for row in rows)
        assert {group["key"] for group in found["groups"]} == set(HARNESSES)
        prices[name] = found["price_nanousd"]
    assert prices["demo-on"] < prices["demo-off"]


def test_what_a_demo_must_show_holds(demo: tuple[subprocess.CompletedProcess[str], dict[str, Any], Path]) -> None:
    done, figures, _ = demo
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures["requests"] == figures["completed"] == figures["receipts"] == figures["ledger_rows"] == 2 * TURNS
    assert figures["invariant_violations"] == 0
    assert 0 < figures["cost_nanousd"]["charged"] < figures["cost_nanousd"]["list"]
    assert sorted(figures["by_harness"]) == sorted(HARNESSES)
    assert figures["hit_ratio"]["off"] < figures["hit_ratio"]["on"]
    for part in (figures, *figures["by_harness"].values()):
        ratio, ttft = part["hit_ratio"], part["ttft_ms"]
        assert ratio["on"] >= ratio["ideal_session"] - 0.01
        assert 0 < ttft["on"]["p50"] <= ttft["on"]["p90"]
        assert 0 < ttft["off"]["p50"] <= ttft["off"]["p90"]


def test_a_person_can_read_it(demo: tuple[subprocess.CompletedProcess[str], dict[str, Any], Path]) -> None:
    lines = demo[0].stdout.splitlines()
    assert max(map(len, lines)) <= 120
    text = "\n".join(lines)
    for expected in (*HARNESSES, "TTFT p50", "saved", '"rates_usd_per_mtok"', "embedded engine", f"of {TURNS} turns"):
        assert expected in text
    assert "FAILED" not in text


def test_nothing_is_left_running(demo: tuple[subprocess.CompletedProcess[str], dict[str, Any], Path]) -> None:
    assert processes_of(demo[2] / "state") == []


@contextmanager
def up(folder: Path) -> Iterator[tuple[Running, dict[str, str], TextIO]]:
    """`warmroute up`: the process, what it printed by the first word of each line, and what it prints afterwards."""
    with started([*COMMAND, "up", "--state-dir", "state", "--speed", "50"], folder) as (process, output):
        said: dict[str, str] = {}
        for line in output:
            name, _, rest = line.partition(":")
            said[name.strip()] = rest.strip()
            if line.startswith("Ctrl-C"):
                break
        yield process, said, output


def first_turn(said: dict[str, str]) -> dict[str, Any]:
    """The answer to a turn at the first region."""
    request = urllib.request.Request(
        f"{said['east'].split()[1]}/chat/completions",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode(),
        {"authorization": f"Bearer {said['key']}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=seconds(30)) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_serves_until_it_is_told_to_stop_and_keeps_its_key(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path.resolve()
    with up(folder) as (process, said, _):
        assert first_turn(said)["usage"]["warmroute"]["turn"] == 1
        assert len(processes_of(folder / "state")) == 11  # eight engines, two proxies, the delay between them
        process.send_signal(number)
        assert process.wait(seconds(30)) == 0
    assert processes_of(folder / "state") == []
    with up(folder) as (process, again, _):
        assert again["key"] == said["key"]
        process.send_signal(number)
        assert process.wait(seconds(30)) == 0


def test_up_ends_when_a_process_of_the_fleet_is_gone(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    with up(folder) as (process, _, output):
        engines = [
            entry
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and f"{folder}/state/up/west-d1.log" == _standard_error(entry)
        ]
        os.kill(int(engines[0].name), signal.SIGKILL)
        assert process.wait(seconds(30)) == 2
        assert "west-d1 ended" in output.read()
    deadline_s = time.monotonic() + seconds(10)
    while processes_of(folder / "state"):
        assert time.monotonic() < deadline_s


def _standard_error(process: Path) -> str | None:
    try:
        return str((process / "fd" / "2").readlink())
    except OSError:
        return None
