"""An engine whose weights another process keeps: both come up in order, and the engine ends with the other."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.launch.test_hangs import running
from tests.subjects.ports import free_ports
from tests.subjects.processes import until
from warmroute_backend.launch import state_file
from warmroute_backend.launch.launcher import Drains, Launcher, Limits
from warmroute_backend.launch.process import Adopted, Process, adopt, found_identity
from warmroute_backend.launch.program import Program
from warmroute_backend.launch.state_file import save
from warmroute_backend.launch.states import Backoff, State
from warmroute_cli.launch.actions import NoDrains

pytestmark = pytest.mark.timeout(180)
DAEMON = """
import pathlib, sys, time
while pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
print("All 8 weight cache daemons on node 0 are ready", flush=True)
time.sleep(3600)
"""
"""It is ready once a file is gone."""
ENGINE = (
    "import http.server, sys\n"
    "http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)"
    ".serve_forever()"
)


SERVES = (sys.executable, "-c", ENGINE)


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


def adopted(folder: Path, port: int) -> Adopted:
    """Both programs in a state directory."""
    keeps = (sys.executable, "-c", DAEMON, str(folder / "held"))
    daemon = Program("e-weights", "weights", keeps, ready_line="weight cache daemons on node")
    engine = Program(
        "e", "aggregated", (*SERVES, str(port)), ports=(("http", port),), ready_path="/", needs=("e-weights",)
    )
    return adopt([daemon, engine], folder, "plan", "sglang", 0, found_identity(os.getpid()))


@contextmanager
def launched(found: Adopted, folder: Path, drains: Drains | None = None) -> Iterator[list[str]]:
    """A launcher of them, and what it shows."""
    lines: list[str] = []
    limits = Limits(Backoff(first_s=0.01))
    with running(Launcher(found.processes, folder, drains or NoDrains(), limits, lambda: None, lines.append)):
        yield lines


def end(process: Process) -> None:
    assert process.entry.identity is not None
    os.kill(process.entry.identity.pid, signal.SIGKILL)


def serves_for_the(time: int, process: Process) -> bool:
    return process.entry.starts == time and process.state is State.READY


def test_an_engine_restarts_alone_and_ends_with_what_keeps_its_weights(tmp_path: Path, port: int) -> None:
    found = adopted(tmp_path, port)
    weights, server = found.processes
    with launched(found, tmp_path) as lines:
        until(lambda: server.state is State.READY, "the engine serves")
        assert lines[0].startswith("e-weights: started")
        said = "\n".join(lines)
        assert said.index("e-weights: ready") < said.index("\ne: started")
        end(server)
        until(lambda: serves_for_the(2, server), "the engine serves again")
        assert weights.entry.starts == 1
        end(weights)
        until(lambda: serves_for_the(3, server), "both serve again")
        assert weights.entry.starts == 2
        assert any(line.startswith("e: was ended with e-weights") for line in lines)
    assert {process.state for process in found.processes} == {State.STOPPED}


def test_an_ordered_restart_waits_for_the_weights_too(tmp_path: Path, port: int) -> None:
    found = adopted(tmp_path, port)
    weights, server = found.processes
    with launched(found, tmp_path) as lines:
        until(lambda: server.state is State.READY, "the engine serves")
        (tmp_path / "held").touch()
        end(weights)
        until(lambda: server.state is State.BACKING_OFF, "the engine ended, too")
        state_file.give_restart(tmp_path, "e")
        until(lambda: "e: restart ordered" in lines, "the order is heard")
        (tmp_path / "held").unlink()
        until(lambda: serves_for_the(2, server), "both serve again")
        assert server.entry.started_s >= (weights.entry.ready_s or 0.0)


def test_another_launcher_does_not_take_an_old_line_for_a_new_one(tmp_path: Path, port: int) -> None:
    (tmp_path / "held").touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "e-weights.log").write_text("All 8 weight cache daemons on node 0 are ready\n")
    first = adopted(tmp_path, port)
    first.processes[0].start(lambda: save(tmp_path, first.record))
    found = adopted(tmp_path, port)
    with launched(found, tmp_path) as lines:
        until(lambda: lines, "its progress is shown")
        assert "ready after" not in lines[0]
        (tmp_path / "held").unlink()
        until(lambda: found.processes[1].state is State.READY, "both serve")
    until(first.processes[0].has_ended, "it is reaped")


def test_an_engine_is_restarted_whose_weights_have_gone_while_no_launcher_ran(tmp_path: Path, port: int) -> None:
    first = adopted(tmp_path, port)
    for process in first.processes:
        process.start(lambda: None)
        process.entry.state, process.entry.has_served = State.READY, True
    save(tmp_path, first.record)
    end(first.processes[0])
    until(first.processes[0].has_ended, "the weights are gone")
    found = adopted(tmp_path, port)
    weights, server = found.processes
    with launched(found, tmp_path) as lines:
        until(lambda: serves_for_the(2, server), "both serve again")
        assert "e: was ended with e-weights" in "\n".join(lines)
        assert server.entry.started_s >= (weights.entry.ready_s or 0.0)
    until(first.processes[1].has_ended, "it is reaped")


class Undrained(NoDrains):
    """A proxy that drains nothing any more."""

    def __init__(self) -> None:
        self.engines: list[str] = []

    def undrain(self, engine: str) -> None:
        self.engines.append(engine)


def test_a_new_engine_that_fails_ends_none_that_run_since_an_earlier_launcher(tmp_path: Path) -> None:
    """Nor does it keep the proxy from these, which then get work again if that launcher has drained them."""
    ports = free_ports(2)
    engine = Program("e", "aggregated", (*SERVES, str(ports[0])), ports=(("http", ports[0]),), ready_path="/")
    proxy = Program("p", "proxy", (*SERVES, str(ports[1])), ports=(("http", ports[1]),), ready_path="/")
    broken = Program("f", "aggregated", (sys.executable, "-c", "raise SystemExit(3)"))
    first = adopt([engine], tmp_path, "plan", "sglang", 0, found_identity(os.getpid()))
    first.processes[0].entry.is_drained = True
    first.processes[0].start(lambda: save(tmp_path, first.record))
    found = adopt([engine, broken, proxy], tmp_path, "plan", "sglang", 0, found_identity(os.getpid()))
    server, failing, front = found.processes
    drains = Undrained()
    with launched(found, tmp_path, drains) as lines:
        until(lambda: failing.state is State.FAILED, "it is given up")
        until(lambda: server.state is front.state is State.READY, "the other ones serve")
        assert "f: ended with status 3; it is started again in 0 s" in lines
        assert set(drains.engines) == {"e"}
    until(first.processes[0].has_ended, "it is reaped")


def test_an_engine_that_ran_before_without_it_is_left_alone_until_its_restart(tmp_path: Path, port: int) -> None:
    bare = replace(adopted(tmp_path, port).processes[1].program, needs=(), command=(*SERVES, str(port), "before"))
    first = adopt([bare], tmp_path, "plan", "sglang", 0, found_identity(os.getpid()))
    server = first.processes[0]
    server.start(lambda: None)
    server.entry.state, server.entry.has_served = State.READY, True
    save(tmp_path, first.record)
    found = adopted(tmp_path, port)
    weights, server = found.processes
    with launched(found, tmp_path) as lines:
        for _ in range(2):  # the second one is taken after a whole round
            state_file.give_restart(tmp_path, "e-weights")
            until(lambda: not any((tmp_path / state_file.FOLDER).iterdir()), "the order is taken")
        assert (weights.state, server.state, lines) == (State.WAITING, State.READY, [])
        state_file.give_restart(tmp_path, "e")
        until(lambda: serves_for_the(2, server), "it serves again")
        assert weights.entry.starts == 1
    until(first.processes[0].has_ended, "it is reaped")
