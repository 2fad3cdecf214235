"""`warmroute up` and what asks it: exports, ports that stay, usage, receipts in words, engines."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.copies import ran, started

pytestmark = pytest.mark.full

COMMAND = [sys.executable, "-m", "warmroute_cli.main"]
SESSION = "my-session"


def command(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command in the folder of a fleet, with nothing of OpenAI's in the environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI")} | variables
    return ran([*COMMAND, *words], folder, environment)


@contextmanager
def up(folder: Path, *words: str) -> Iterator[str]:
    """`warmroute up`; what it printed up to the last line of its greeting."""
    with started([*COMMAND, "up", "--speed", "50", *words], folder) as (process, output):
        lines: list[str] = []
        for line in output:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        yield "".join(lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(seconds(30)) == 0


def variables(text: str) -> dict[str, str]:
    """Of the line with the exports."""
    found = re.search(r"export OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=(\S+)", text)
    assert found is not None, text
    return {"OPENAI_BASE_URL": found[1], "OPENAI_API_KEY": found[2]}


def turn(found: dict[str, str], turns: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": "You are a careful assistant. " * 60}]
    for number in range(turns):
        messages += [{"role": "user", "content": f"question {number}"}]
        messages += [{"role": "assistant", "content": f"answer {number}"}] * (number < turns - 1)
    answer = httpx.post(
        f"{found['OPENAI_BASE_URL']}/chat/completions",
        headers={"authorization": f"Bearer {found['OPENAI_API_KEY']}", "x-session-affinity": SESSION},
        json={"model": "kimi-k2.5", "messages": messages},
        timeout=seconds(30),
    )
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


class Fleet:
    """A fleet that is up, what it printed, and the usage of three turns of one session."""

    def __init__(self, folder: Path, greeting: str) -> None:
        self.folder = folder
        self.greeting = greeting
        self.variables = variables(greeting)
        self.usages = [turn(self.variables, turns) for turns in (1, 2, 3)]
        self.price = sum(usage["warmroute"]["price_nanousd"] for usage in self.usages)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("up")
    with up(folder) as greeting:
        yield Fleet(folder, greeting)


def test_env_prints_only_the_exports_of_the_fleet_that_runs(fleet: Fleet) -> None:
    printed = command(fleet.folder, "up", "--env")
    assert (printed.returncode, printed.stdout.count("\n")) == (0, 1)
    assert variables(printed.stdout) == fleet.variables


def test_the_fleet_is_found_from_another_folder(fleet: Fleet, tmp_path: Path) -> None:
    printed = command(tmp_path, "up", "--env")
    assert variables(printed.stdout) == fleet.variables
    assert printed.stderr.startswith(f"warmroute: using the fleet of {fleet.folder / '.warmroute'}, since none ")
    usage = command(tmp_path, "usage", "--json")
    assert (json.loads(usage.stdout)["turns"] >= 3, usage.stderr) == (True, printed.stderr)
    ladder = command(tmp_path, "ladder", "--json")
    assert (json.loads(ladder.stdout)["turns"] >= 3, ladder.stderr) == (True, usage.stderr)
    assert command(tmp_path, "up", "--env", "--state-dir", "here").returncode == 2
    assert not list(tmp_path.iterdir())


def test_exports_are_printed_as_soon_as_a_fleet_runs(tmp_path: Path) -> None:
    none = command(tmp_path, "up", "--env", XDG_STATE_HOME=str(tmp_path))
    assert (none.returncode, none.stdout) == (2, "")
    assert "start `warmroute up` in another terminal" in none.stderr
    here = ("--state-dir", "here")  # no other fleet will do
    with started([*COMMAND, "up", "--wait", *here], tmp_path) as (_, output), up(tmp_path, *here) as greeting:
        assert variables(next(iter(output))) == variables(greeting)


def test_the_curl_of_the_greeting_is_a_turn_of_a_session(fleet: Fleet) -> None:
    curl = fleet.greeting[fleet.greeting.index("  curl ") : fleet.greeting.index("  warmroute usage")]
    done = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True, timeout=seconds(30))
    assert json.loads(done.stdout)["usage"]["warmroute"]["session"] == fleet.usages[0]["warmroute"]["session"]


def test_the_opencode_json_names_the_fleet_and_not_its_key(fleet: Fleet) -> None:
    copy = next(line for line in fleet.greeting.splitlines() if line.startswith("  cp "))
    project = fleet.folder / "project"
    project.mkdir()
    subprocess.run(["bash", "-c", copy], cwd=project, check=True, timeout=seconds(30))
    text = (project / "opencode.json").read_text()
    options = json.loads(text)["provider"]["warmroute"]["options"]
    assert options == {"baseURL": fleet.variables["OPENAI_BASE_URL"], "apiKey": "{env:OPENAI_API_KEY}"}


def test_the_greeting_fits_a_small_terminal(fleet: Fleet) -> None:
    assert len(fleet.greeting.splitlines()) < 24


@pytest.mark.parametrize("by_environment", [True, False], ids=["environment", "fleet"])
def test_usage_says_what_a_session_cost(fleet: Fleet, by_environment: bool) -> None:
    given = fleet.variables if by_environment else {}
    since = ["--since", "1h"]
    found = json.loads(command(fleet.folder, "usage", "--session", SESSION, "--json", *since, **given).stdout)
    receipts = json.loads(command(fleet.folder, "receipts", "list", "--json", **given).stdout)["data"]
    mine = [row for row in receipts if row["session"] == fleet.usages[0]["warmroute"]["session"]]
    assert found["price_nanousd"] == sum(row["price_nanousd"] for row in mine) >= fleet.price
    assert sum(found["losses"].values()) == found["prompt_tokens"] - found["cached_tokens"]


@pytest.mark.parametrize("by", ["session", "model", "harness", "agent", "tenant", "day", "hour"])
def test_usage_is_a_table(fleet: Fleet, by: str) -> None:
    done = command(fleet.folder, "usage", "--by", by)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = [line for line in done.stdout.splitlines() if line.strip() and "─" not in line]
    assert head.split()[:4] == [by, "turns", "prompt", "cached"]
    of = {"session": "python-httpx ", "model": "kimi-k2.5", "tenant": "demo"}
    of |= {"harness": "python-httpx", "agent": "main"}
    assert rows[0].strip().startswith(of.get(by, "20"))
    assert "page_rounding" in done.stdout  # at 80 columns in a line of its own
    assert "all" in [row.split()[0] for row in rows if row[0] != " "][-2:]


def test_what_a_table_prints_of_a_session_is_accepted(fleet: Fleet) -> None:
    lines = command(fleet.folder, "usage", "--by", "session", COLUMNS="170").stdout.splitlines()
    session = str(fleet.usages[0]["warmroute"]["session"])
    printed = next(line for line in lines if f"({session[:6]})" in line).partition(")")[0] + ")"
    for text in (printed, session, session[:6]):
        for words in (("usage",), ("receipts", "list")):
            found = json.loads(command(fleet.folder, *words, "--session", text, "--json").stdout)
            assert found.get("turns") or found.get("data")


def test_a_receipt_is_explained_in_words(fleet: Fleet) -> None:
    usage = fleet.usages[2]
    receipt = usage["warmroute"]
    said = command(fleet.folder, "receipts", "show", receipt["id"]).stdout
    assert re.search(rf", turn 3, session python-httpx \d\d:\d\d \({receipt['session'][:6]}\)\n", said)
    narrow = command(fleet.folder, "receipts", "show", receipt["id"], COLUMNS="80").stdout
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.split() == said.split()
    assert f"Where: in region {receipt['region']}, {receipt['workers'][0]['id']} computed" in said
    assert f"{receipt['predicted_cached']:,} tokens of its prompt ({usage['prompt_tokens']:,}) were expected" in said
    assert "The next best was " in said
    for name, tokens in receipt["loss"].items():
        assert f"Not cached: {tokens:,} ({name})" in said
    assert f"it would have cost {receipt['list_nanousd'] / 1e9:.9f}".rstrip("0") in said
    newest = json.loads(command(fleet.folder, "receipts", "list", "--limit", "1", "--json").stdout)["data"][0]["id"]
    assert command(fleet.folder, "receipts", "show").stdout.startswith(f"{newest}: ")


def test_a_receipt_that_is_not_there_is_a_sentence(fleet: Fleet) -> None:
    done = command(fleet.folder, "receipts", "show", "wr-000000000000000000000000")
    assert done.returncode == 2
    assert done.stderr.startswith("warmroute receipts: there is no receipt 'wr-0")


def test_engines_of_the_fleet_are_found_and_drained_by_name(fleet: Fleet) -> None:
    _, *listed = command(fleet.folder, "engines", "list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [
        f"{r}-{e}" for r in ("east", "west") for e in ("p0", "d0", "d1", "a0")
    ]
    assert "draining" in command(fleet.folder, "engines", "drain", "west-d1").stdout
    assert "up" in command(fleet.folder, "engines", "undrain", "west-d1").stdout
    assert "no engine" in command(fleet.folder, "engines", "drain", "north-d1").stderr


@contextmanager
def on_terminal(folder: Path, *words: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A command on a terminal of 80 x 24; its other end, and the process."""
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (24, 80))
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=folder, stdin=there, stdout=there, stderr=there, start_new_session=True
    )
    try:
        yield here, process
    finally:
        process.kill()
        process.wait()
        os.close(here)
        os.close(there)


def screen_with(terminal: int, wanted: str) -> list[str]:
    """The lines of the first screen with a text."""
    read, until = "", time.monotonic() + seconds(30)
    while time.monotonic() < until:
        if select.select([terminal], [], [], 1.0)[0]:
            read += os.read(terminal, 65_536).decode()
        for screen in read.split("\x1b[H")[1:]:
            if wanted in screen and screen.endswith("\x1b[J"):
                return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", screen).split("\n")
    raise AssertionError(f"{wanted!r} is not shown: {read[-2000:]!r}")


def test_top_shows_the_fleet_on_a_terminal_and_follows_keys(fleet: Fleet) -> None:
    with on_terminal(fleet.folder, "top", "--every", "0.2") as (terminal, process):
        shown = screen_with(terminal, "west-d1")
        assert len(shown) <= 24
        assert max(map(len, shown)) <= 80
        assert shown[0].startswith("warmroute top  east, west  ")
        assert [line.split()[0] for line in shown if line.startswith(("east-", "west-"))] == [
            f"{r}-{e}" for r in ("east", "west") for e in ("a0", "d0", "d1", "p0")
        ]
        turn(fleet.variables, 2)
        assert any(re.match(r"hit ratio \d+\.\d% now, ", line) for line in screen_with(terminal, "% now"))
        os.write(terminal, b"\x1b[C")
        screen_with(terminal, "RUN*")
        os.write(terminal, b"?")
        screen_with(terminal, "q        quit")
        os.write(terminal, b"q")
        assert process.wait(seconds(20)) == 0


def test_top_prints_one_screen_for_a_script_and_refuses_to_draw_into_a_pipe(fleet: Fleet) -> None:
    once = command(fleet.folder, "top", "--once", "--every", "0.1")
    assert (once.returncode, once.stderr) == (0, "")
    assert "NEWEST LOSSES" in once.stdout
    assert "\x1b" not in once.stdout
    piped = command(fleet.folder, "top")
    assert piped.returncode == 2
    assert "--once" in piped.stderr


def test_where_no_fleet_runs_the_hint_says_what_to_name(tmp_path: Path) -> None:
    for words, hint in (
        (["usage"], "OPENAI_BASE_URL"),
        (["receipts", "list"], "OPENAI_BASE_URL"),
        (["engines", "list"], "--config"),
        (["top"], "--config"),
    ):
        done = command(tmp_path, *words, XDG_STATE_HOME=str(tmp_path))
        assert done.returncode == 2
        assert "no fleet runs in .warmroute" in done.stderr
        assert hint in done.stderr


def test_ports_stay_and_what_was_used_is_remembered(tmp_path: Path) -> None:
    with up(tmp_path) as first:
        turn(variables(first), 1)
        port = httpx.URL(variables(first)["OPENAI_BASE_URL"]).port or 0
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert port < lowest, "the system gives it to nobody who asks for any port"
    with up(tmp_path) as again:
        assert variables(again) == variables(first)
        assert json.loads(command(tmp_path, "usage", "--json").stdout)["turns"] == 1
    ended = command(tmp_path, "usage", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["turns"]) == (0, 1)
    assert "no fleet runs in .warmroute; these are the ledgers" in ended.stderr
    (turn_,) = json.loads(command(tmp_path, "receipts", "list", "--json").stdout)["data"]
    assert command(tmp_path, "receipts", "show", turn_["id"]).stdout.startswith(turn_["id"])
    assert command(tmp_path, "receipts", "show", turn_["id"][:-2]).stdout.startswith(turn_["id"])
    assert "Where: in region" in command(tmp_path, "receipts", "show", turn_["id"][3:-2]).stdout
    assert json.loads(command(tmp_path, "usage", "--session", SESSION, "--json").stdout)["turns"] == 1
    assert json.loads(command(tmp_path, "usage", "--session", "other", "--json").stdout)["turns"] == 0
    for words, count in ((["--session", turn_["session"][:5]], 1), (["--session", "0" * 16], 0)):
        assert len(json.loads(command(tmp_path, "receipts", "list", "--json", *words).stdout)["data"]) == count
    assert "no receipt" in command(tmp_path, "receipts", "show", "wr-000000000000000000000000").stderr


def test_a_port_can_be_chosen_and_one_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command(tmp_path, "up", "--port", str(port))
        assert done.returncode == 2
        assert f"port {port} cannot be used (Address already in use by python" in done.stderr
        assert f", pid {os.getpid()})" in done.stderr
