"""Embedded engines for tests: processes on ports of the system's choice."""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.machine import seconds

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0


class EmbeddedEngine:
    """One embedded engine, running from its construction until `stop`."""

    def __init__(self, args: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "warmroute_lab.engine", *args]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **(environ or {})})
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds(START_TIMEOUT_S))
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self.stop()
            raise AssertionError(f"the embedded engine did not start with {list(args)}; its reason is on stderr")
        said = json.loads(line)
        self.url: str = said["url"]
        self.bootstrap_port: int | None = said["bootstrap_port"]

    def kill(self) -> None:
        """End the process as a crash would."""
        self._process.kill()
        self.stop()

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(seconds(STOP_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(AttributeError):
            self._process.stdout.close()  # type: ignore[union-attr]
