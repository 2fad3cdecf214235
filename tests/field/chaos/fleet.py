"""The eight engines, each a process behind a network that can be cut, and what can be done to them."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.machine import seconds

from warmroute_cli.processes import Child

from .cutter import Cutter
from .schedule import Fault

ROLES: Final = {
    "a0": "aggregated",
    "a1": "aggregated",
    "a2": "aggregated",
    "a3": "aggregated",
    "p0": "prefill",
    "p1": "prefill",
    "d0": "decode",
    "d1": "decode",
}
PUBLISHERS: Final = ("a0", "a1", "p0")
"""Those that publish KV events, which the proxy then follows."""

_KV_EVENTS: Final = json.dumps({"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0", "bind": True})
START_TIMEOUT_S: Final = 60.0
TERM_TIMEOUT_S: Final = 20.0


class Engine:
    """One engine: its process, its network, its log of requests on disk."""

    def __init__(self, name: str, role: str, folder: Path, speed: float = 1.0) -> None:
        self.name = name
        self._speed = speed
        self.role = role
        self.request_log = folder / f"{name}.jsonl"
        self.frozen = False
        self.network = Cutter()
        self.bootstrap = Cutter() if role == "prefill" else None
        self.url = ""
        self.started = 0
        self._folder = folder
        self._child: Child | None = None
        self._lock = asyncio.Lock()

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running()

    async def start(self) -> None:
        """Start the process, wherever the system lets it listen, and let its network lead there."""
        self.started += 1
        command = [sys.executable, "-m", "warmroute_lab.engine", "--role", self.role, "--engine-id", self.name]
        command += [
            "--request-log",
            str(self.request_log),
            "--model",
            "kimi-k2.5",
            "--speed",
            str(self._speed),
            "--kv-tokens",
            "60000",
        ]
        command += ["--kv-events-config", _KV_EVENTS] if self.name in PUBLISHERS else []
        self._child = child = Child(f"{self.name}-{self.started}", command, self._folder)
        line = await asyncio.to_thread(child.listening, time.monotonic() + seconds(START_TIMEOUT_S))
        self.url = line["url"]
        self.network.target = int(self.url.rpartition(":")[2])
        await self.network.accept()
        if self.bootstrap is not None:
            self.bootstrap.target = line["bootstrap_port"]
            await self.bootstrap.accept()

    async def strike(self, fault: Fault) -> None:
        """Carry out a fault, and mend what it broke; after an earlier one of this engine."""
        async with self._lock:
            if fault.kind in {"kill", "stop"}:
                await self._restart(fault)
            elif fault.kind == "freeze":
                self._signal(signal.SIGSTOP)
                self.frozen = True
                await asyncio.sleep(fault.for_s)
                self.frozen = False
                self._signal(signal.SIGCONT)
            elif fault.kind == "break":
                await asyncio.to_thread(self._arm, fault.order or {})
            else:
                await self._cut(fault)
            await self._mend()

    async def mend(self) -> None:
        """After the last fault: an engine that an order made crash is started again."""
        async with self._lock:
            await self._mend()

    async def stop(self) -> None:
        """End the process and its network."""
        if self._child is not None:
            self._signal(signal.SIGKILL)
            await self._ended(self._child)
        for network in self._networks():
            network.close()

    def working(self) -> int:
        """How many requests it still has, by what it says at `/v1/loads` and by its own table."""
        loads = _get(f"{self.url}/v1/loads")["loads"]
        held = sum(row["num_running_reqs"] + row["num_waiting_reqs"] for row in loads)
        return max(int(held), int(_get(f"{self.url}/engine/finished")["running"]))

    def served(self) -> list[dict[str, Any]]:
        """The log of all requests that ended here, in all its lives."""
        if not self.request_log.exists():
            return []
        return [json.loads(line) for line in self.request_log.read_text().splitlines()]

    def toml(self) -> str:
        """Its table in the proxy's configuration: the addresses of its network."""
        lines = ["[[engine]]", f'id = "{self.name}"', f'url = "http://127.0.0.1:{self.network.port}"']
        lines += ['region = "east"', f'role = "{self.role}"']
        if self.bootstrap is not None:
            lines += ['bootstrap_host = "127.0.0.1"', f"bootstrap_port = {self.bootstrap.port}"]
        return "\n".join(lines)

    async def _restart(self, fault: Fault) -> None:
        assert self._child is not None
        if fault.kind == "kill":
            self._signal(signal.SIGKILL)
            await asyncio.sleep(fault.for_s)
        await self._ended(self._child)
        await self.start()

    async def _mend(self) -> None:
        if self._child is not None and self._gone():
            await self._ended(self._child)
            await self.start()

    def _gone(self) -> bool:
        """Whether it has ended, or is about to: its sockets close before the process is seen to have ended."""
        if not self.running:
            return True
        try:
            socket.create_connection(("127.0.0.1", self.network.target or 1), timeout=seconds(5)).close()
        except ConnectionRefusedError:
            return True
        return False

    @staticmethod
    async def _ended(child: Child) -> None:
        """Tell it to stop, where it has not, and see it gone."""
        child.ask_to_stop()
        await asyncio.to_thread(child.wait_or_kill, time.monotonic() + seconds(TERM_TIMEOUT_S))

    async def _cut(self, fault: Fault) -> None:
        for network in self._networks():
            if fault.kind in {"drop", "reset"}:
                network.drop(reset=fault.kind == "reset")
            elif fault.kind == "silence":
                network.hush(True)
            else:
                network.refuse()
        await asyncio.sleep(fault.for_s)
        for network in self._networks():
            if fault.kind == "silence":
                network.hush(False)
            elif fault.kind == "refuse":
                await network.accept()

    def _networks(self) -> list[Cutter]:
        return [self.network] if self.bootstrap is None else [self.network, self.bootstrap]

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None and self.running:
            os.kill(self._child.pid, number)

    def _arm(self, order: dict[str, Any]) -> None:
        request = urllib.request.Request(f"{self.url}/engine/faults", json.dumps(order).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=seconds(5)):
                pass
        except OSError:
            pass  # it has crashed by an earlier order: `strike` sees that


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=seconds(5)) as response:
        found: dict[str, Any] = json.load(response)
    return found
