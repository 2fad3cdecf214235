"""Engine processes on ports of the system's choice."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from tests.machine import seconds
from tests.subjects.connections import NOT_KEPT
from tests.subjects.copies import Copy
from tests.subjects.processes import PLAIN

from warmroute_cli.processes import stop_all

START_TIMEOUT_S = 20.0


class EngineProcess:
    """One embedded engine, running."""

    def __init__(self, *args: str) -> None:
        self.folder = TemporaryDirectory()
        command = [sys.executable, "-m", "warmroute_lab.engine", *args]
        self.child = Copy("engine", command, Path(self.folder.name))
        line = self.child.listening(time.monotonic() + seconds(START_TIMEOUT_S))
        assert line["event"] == "listening"
        self.url: str = line["url"]
        self.bootstrap_port: int | None = line["bootstrap_port"]
        self.pid: int = line["pid"]
        self.client = httpx.Client(base_url=self.url, timeout=seconds(20), verify=PLAIN, limits=NOT_KEPT)

    def finished(self) -> dict[str, Any]:
        return self.client.get("/engine/finished").json()  # type: ignore[no-any-return]

    def wait(self, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 20.0) -> dict[str, Any]:
        """Poll the finish log until it is as wanted."""
        deadline_s = time.monotonic() + seconds(timeout_s)
        while not condition(log := self.finished()):
            assert time.monotonic() < deadline_s, f"still {log}"
            time.sleep(0.01)
        return log

    def send(self, body: dict[str, Any]) -> socket.socket:
        """A request whose answer is not read; to close the socket is to leave."""
        text, url = json.dumps(body).encode(), httpx.URL(self.url)
        sock = socket.create_connection((url.host, url.port or 80), timeout=seconds(20))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}\r\n"
        sock.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + text)
        return sock

    def load(self) -> dict[str, Any]:
        return self.client.get("/v1/loads").json()["loads"][0]  # type: ignore[no-any-return]

    def stop(self) -> str:
        """End the process if it still runs; returns what it logged."""
        self.client.close()
        stop_all([self.child], seconds(5.0))
        return (Path(self.folder.name) / "engine.log").read_text()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.child.status()


@pytest.fixture
def start_engine() -> Iterator[Callable[..., EngineProcess]]:
    """Start engines that end with the test."""
    started: list[EngineProcess] = []

    def start(*args: str) -> EngineProcess:
        started.append(EngineProcess(*args))
        return started[-1]

    yield start
    for engine in started:
        engine.stop()
        engine.folder.cleanup()


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    """One aggregated engine for the tests of a module. Prompts of different tests must differ."""
    process = EngineProcess("--speed", "50", "--model", "served", "--context-length", "20000")
    yield process
    process.stop()
    process.folder.cleanup()
