"""Starts a server of SGLang on a CPU, waits for it, kills it or starts it again, and leaves nothing behind.

A start takes 10 to 150 s on the CPU, nearly all of it for imports. So servers are started at the same time, and waited
for later. A server has nothing to save, so SIGKILL ends it, and its children die with it. The server also dies with the
thread that started it (on Linux), so that even a killed parent leaves no server with gigabytes of memory behind.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from warmroute_backend.asking import ask
from warmroute_backend.ports import Ports
from warmroute_backend.sglang.command import HOST, Role, arguments, environment
from warmroute_backend.sglang.installation import installation
from warmroute_backend.sglang.speed import slowness

START_TIMEOUT_S = 300.0
"""How long to wait for a start on a machine as fast as the reference (`speed`)."""

MAX_STRETCH = 4.0
"""The largest factor by which a slow machine lengthens the wait for a start, since a start that hangs must fail within
20 minutes."""

POLL_S = 0.2
PROBE_TIMEOUT_S = 5.0
CHILDREN_GRACE_S = 3.0
"""The time for the children of a killed server to end. The last child tidies up shared memory."""

LOG_LINES_SHOWN = 25
PORTS_OF_A_SERVER = 5
PORT_RANGE = (10_000, 32_000)
LOAD_SNAPSHOT = re.compile(r"/dev/shm/sglang_loads_\S+$", re.MULTILINE)  # noqa: S108 (its own name)
"""A file in shared memory that SGLang maps and does not remove."""


PORT_TAKEN = "address already in use"
"""A text in the log of a server that will never serve: SGLang 0.5.23 does not end if it cannot bind its port."""


class StartError(Exception):
    """A server ended, or was not ready in time. The message has the last lines of the server's log."""


class PortTaken(StartError):
    """Another process has bound a port that the server was given. The server may start with other ports."""


class Server:
    """A server of a role, whose log and storage tier are in `folder`. A restart keeps the server's addresses."""

    def __init__(
        self, role: Role, folder: Path, *, name: str = "", flags: Sequence[str] = (), port: int = 0, tiers: bool = True
    ) -> None:
        """`flags` are added to the usual flags, and win over them. `port`: the HTTP port, or 0 for any free port.
        `tiers`: whether a single server has HiCache.
        """
        self.role = role
        self.name = name or role
        self.folder = folder
        self.log = folder / f"{self.name}.log"
        self.storage_dir = folder / f"{self.name}-storage"
        self._flags = tuple(flags)
        self._tiers = tiers
        self._ports = _free_ports(port)
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary: Path | None = None
        self._log_began = 0
        """The offset in the log at which the current start begins."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._ports.http}"

    @property
    def kv_events(self) -> str:
        return f"tcp://{HOST}:{self._ports.kv_events}"

    @property
    def kv_replay(self) -> str:
        return f"tcp://{HOST}:{self._ports.kv_replay}"

    @property
    def bootstrap_host(self) -> str:
        """The host by which requests to a decode server name this prefill server."""
        return HOST

    @property
    def bootstrap_port(self) -> int:
        """The port by which requests to a decode server name this prefill server."""
        return self._ports.bootstrap

    @property
    def pid(self) -> int | None:
        """The pid of the server's main process; None if it does not run."""
        return self._process.pid if self._process else None

    def address(self) -> dict[str, Any]:
        found = {"url": self.url, "kv_events": self.kv_events, "kv_replay": self.kv_replay, "pid": self.pid}
        found |= {"log": str(self.log), "storage_dir": str(self.storage_dir)}
        bootstrap = {"bootstrap_host": self.bootstrap_host, "bootstrap_port": self.bootstrap_port}
        return found | (bootstrap if self.role == "prefill" else {})

    def start(self, *more_flags: str) -> "Server":
        """Start the server, with additional flags for this start alone. `wait_ready` waits until it is ready."""
        assert self._process is None, f"{self.name} has been started"
        found = installation()
        self.storage_dir.mkdir(parents=True, exist_ok=True)
        # Sockets are in a folder with a short name, since addresses of local sockets have at most 107 characters.
        self._temporary = Path(tempfile.mkdtemp(prefix="sglang-"))
        command = [*arguments(self.role, self._ports, found, tiers=self._tiers), *self._flags, *more_flags]
        usual = environment(self.storage_dir, self._temporary, os.getpid(), slowness())
        self._log_began = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = self._spawn(command, log, os.environ | usual)
        return self

    def _spawn(self, command: Sequence[str], log: BinaryIO, env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 (our own command line)
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
        )

    def is_ready(self) -> bool:
        return ask(f"{self.url}/ready", PROBE_TIMEOUT_S).status == 200

    def wait_ready(self, deadline_s: float) -> "Server":
        """Wait until the server serves.

        Raises: StartError if the server ended or `deadline_s` on the monotonic clock has passed; PortTaken.
        """
        while not self.is_ready():
            if PORT_TAKEN in self.log_text(self._log_began):
                raise PortTaken(f"SGLang ({self.name}) cannot bind its port{self.last_words()}")
            if not self.running():
                raise StartError(f"SGLang ({self.name}) ended while it started{self.last_words()}")
            if time.monotonic() > deadline_s:
                raise StartError(f"SGLang ({self.name}) was not ready in time{self.last_words()}")
            time.sleep(POLL_S)
        return self

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End the server and its children at once, as a crash would. The server can be started again."""
        if self._process is None:
            return
        snapshots = self._load_snapshots()
        self._process.kill()
        self._process.wait()
        self._end_children(self._process.pid)
        self._process = None
        for snapshot in snapshots:
            snapshot.unlink(missing_ok=True)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def restart(self, *more_flags: str) -> "Server":
        """Kill the server, start it again, and wait until it serves. Addresses and storage tier stay, and the cache is
        empty.
        """
        self.kill()
        return self.start(*more_flags).wait_ready(start_deadline_s())

    def log_text(self, began: int = 0) -> str:
        """The log of all starts, from byte `began` on."""
        return self.log.read_bytes()[began:].decode(errors="replace") if self.log.exists() else ""

    def last_words(self) -> str:
        """The path of the server's log, and the last lines of the log."""
        lines = self.log_text().strip().splitlines()[-LOG_LINES_SHOWN:]
        return f" (log: {self.log})" + "".join(f"\n    {line[:400]}" for line in lines)

    def _load_snapshots(self) -> set[Path]:
        try:
            maps = Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8")
        except OSError:
            return set()
        return {Path(path) for path in LOAD_SNAPSHOT.findall(maps)}

    @staticmethod
    def _end_children(group: int) -> None:
        deadline_s = time.monotonic() + CHILDREN_GRACE_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline_s:
                os.killpg(group, 0)
                time.sleep(POLL_S / 10)
            os.killpg(group, signal.SIGKILL)


def start_deadline_s() -> float:
    """The deadline of a start that begins now, on the monotonic clock."""
    return time.monotonic() + START_TIMEOUT_S * min(MAX_STRETCH, slowness())


def wait_all(servers: Iterable[Server]) -> None:
    deadline_s = start_deadline_s()
    for server in servers:
        server.wait_ready(deadline_s)


def _free_ports(http: int) -> Ports:
    """Free ports for a server, which cannot choose its own.

    A server binds its ports only after half a minute. Until then the system could give a port to a connection of
    another process, so the ports are below the range from which the system chooses. No other server of this process
    gets these ports.
    """
    found: list[int] = []
    while len(found) < PORTS_OF_A_SERVER:
        port = random.randrange(*PORT_RANGE)  # noqa: S311 (no secret)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind((HOST, port))
            if port not in _given:
                _given.add(port)
                found.append(port)
    return Ports(http or found[0], *found[1:])


_given: set[int] = set()
