"""Engines that hang under a launcher: a process that is stopped, and one whose scheduler computes nothing."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machine import seconds
from tests.subjects.launched import Launched
from tests.subjects.ports import free_ports
from tests.subjects.processes import until
from warmroute_backend.launch import readiness
from warmroute_backend.launch.launcher import Launcher, Limits
from warmroute_backend.launch.process import Process, adopt, found_identity
from warmroute_backend.launch.program import Program
from warmroute_backend.launch.states import Backoff
from warmroute_cli.launch.actions import NoDrains

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]
ENGINE = """
import http.server, pathlib, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        tokens = pathlib.Path(sys.argv[2]).read_text()
        self.wfile.write(f'''sglang:num_running_reqs{{dp_rank="0"}} 2.0
sglang:realtime_tokens_total{{dp_rank="0",mode="decode"}} {tokens}
'''.encode())

    def log_message(self, *_):
        pass

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""An engine with two running requests, whose tokens are in a file."""


def test_an_engine_that_is_stopped_is_named_and_started_again(tmp_path: Path) -> None:
    with Launched(tmp_path, None, "--hang-s", f"{seconds(2):g}") as launched:
        launched.start().wait_up()
        before = launched.pids()
        os.kill(before["decode-0"], signal.SIGSTOP)
        until(lambda: launched.pids()["decode-0"] not in {before["decode-0"], None}, "another decode engine runs", 60)
        assert "decode-0: hangs: /metrics has not answered for" in launched.output.read_text()
        launched.wait_up()


class Waker:
    """A waker whose stop a test orders."""

    def __init__(self) -> None:
        self.stops = 0
        self._event = threading.Event()

    def wait(self, timeout_s: float) -> None:
        self._event.wait(timeout_s)

    def stop(self) -> None:
        self.stops = 1
        self._event.set()


@contextmanager
def running(launcher: Launcher) -> Iterator[None]:
    """A launcher in a thread of its own."""
    waker = Waker()
    thread = threading.Thread(target=launcher.run, args=(waker, lambda: None))
    thread.start()
    try:
        yield
    finally:
        waker.stop()
        thread.join()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that answers late has answered, as on a machine that stands still for seconds."""
    monkeypatch.setattr(readiness, "PROBE_TIMEOUT_S", 900.0)


@contextmanager
def launched(folder: Path, tokens: Path, *, restarts_hung: bool) -> Iterator[tuple[Process, list[str]]]:
    """A scripted engine under a launcher, and what the launcher shows."""
    (port,) = free_ports(1)
    command = (sys.executable, "-c", ENGINE, str(port), str(tokens))
    program = Program("engine-0", "aggregated", command, ports=(("http", port),))
    adopted = adopt([program], folder, "plan", "sglang", 0, found_identity(os.getpid()))
    lines: list[str] = []
    limits = Limits(Backoff(first_s=0.01), hang_s=0.5, restarts_hung=restarts_hung)
    with running(Launcher(adopted.processes, folder, NoDrains(), limits, lambda: None, lines.append)):
        yield adopted.processes[0], lines


@pytest.mark.usefixtures("patient")
def test_requests_whose_tokens_do_not_move_end_an_engine(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("500.0")
    with launched(tmp_path / "state", tokens, restarts_hung=True) as (process, lines):
        until(lambda: process.entry.starts >= 2, "it was started again")
        (line,) = [line for line in lines if "hangs: 2 running requests, and no token was computed" in line][:1]
        assert "it is started again in" in line
        assert "hangs" in process.entry.last_words


@pytest.mark.usefixtures("patient")
def test_a_hang_is_only_reported_where_that_is_asked_for(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("500.0")
    with launched(tmp_path / "state", tokens, restarts_hung=False) as (process, lines):
        (finding,) = until(lambda: process.entry.findings, "the hang is found")
        assert finding.startswith("hangs: 2 running requests")
        tokens.write_text("501.0")
        until(lambda: "engine-0: computes again" in lines, "it computes again")
        assert process.entry.starts == 1
