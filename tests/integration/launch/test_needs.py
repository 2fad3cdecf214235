"""An engine whose weights another process keeps: both come up in order, and the engine ends with the other."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.integration.launch.test_hangs import Waker
from tests.subjects.launched import free_ports
from tests.subjects.processes import until
from warmroute_backend.launch.adoption import adopt
from warmroute_backend.launch.backoff import Backoff
from warmroute_backend.launch.launcher import Launcher, Limits
from warmroute_backend.launch.process import found_identity
from warmroute_backend.launch.program import Program
from warmroute_backend.launch.states import State
from warmroute_cli.launch.drains import NoDrains

pytestmark = pytest.mark.timeout(180)
DAEMON = 'print("All 8 weight cache daemons on node 0 are ready", flush=True); import time; time.sleep(3600)'
ENGINE = (
    "import http.server, sys\n"
    "http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)"
    ".serve_forever()"
)


def test_an_engine_restarts_alone_and_ends_with_what_keeps_its_weights(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    daemon = Program("e-weights", "weights", (sys.executable, "-c", DAEMON), ready_line="weight cache daemons on node")
    command = (sys.executable, "-c", ENGINE, str(port))
    engine = Program("e", "aggregated", command, ports=(("http", port),), ready_path="/", needs="e-weights")
    adopted = adopt([daemon, engine], tmp_path, "plan", "sglang", 0, found_identity(os.getpid()))
    weights, server = adopted.processes
    lines: list[str] = []
    limits = Limits(Backoff(first_s=0.01))
    waker = Waker()
    launcher = Launcher(adopted.processes, tmp_path, NoDrains(), limits, lambda: None, lines.append)
    thread = threading.Thread(target=launcher.run, args=(waker, lambda: None))
    thread.start()
    try:
        until(lambda: server.state is State.READY, "the engine serves")
        assert lines[0].startswith("e-weights: started")
        assert lines[1].startswith("e-weights: ready")
        assert server.entry.identity is not None
        os.kill(server.entry.identity.pid, signal.SIGKILL)
        until(lambda: server.entry.starts == 2 and server.state is State.READY, "the engine serves again")
        assert weights.entry.starts == 1
        assert weights.entry.identity is not None
        os.kill(weights.entry.identity.pid, signal.SIGKILL)
        until(lambda: server.entry.starts == 3 and server.state is State.READY, "both serve again")
        assert weights.entry.starts == 2
        assert any(line.startswith("e: was ended with e-weights") for line in lines)
    finally:
        waker.stop()
        thread.join()
    assert {process.state for process in adopted.processes} == {State.STOPPED}
