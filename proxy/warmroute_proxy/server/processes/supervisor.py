"""Starts, watches and ends the processes of a proxy. This supervisor serves no requests itself.

Each process is a whole proxy: it listens on the same ports (with `SO_REUSEPORT`, the system distributes connections),
decides placements and relays answers. Before it forks the first process, the supervisor makes the memory that the
processes share: for updates and reports (`shared_memory`) and for nonces (`shared_nonces`). The supervisor also holds
the lock on the state folder, and reserves the ports as long as no process listens.

A process that dies is restarted after 0.1 s. The wait doubles each time the process dies within a minute, up to 30 s.
The restarted process settles the open requests of the dead one as interrupted. SIGTERM and SIGINT end all processes
gracefully; a second signal ends them at once. If the supervisor dies, its processes also end gracefully: each holds a
pipe that breaks when the supervisor is gone.

The supervisor checks the config file at SIGHUP and, if the config is watched, when the file or the certificate changes.
A valid file is copied to the state folder (`config_source`). All processes apply this copy, and a process that starts
later begins with it. SIGHUP is passed on to the processes in any case.
"""

import contextlib
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_difference import merged, usd_budgets_live
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.config_source import ACCEPTED_FILE, ConfigSource, ReadConfig, RefusedMark
from warmroute_proxy.server.base.files import FileChanges
from warmroute_proxy.server.base.secrets import Secrets, load_secret
from warmroute_proxy.server.ledger.fold import recover_all
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE, ledger_errors, lock
from warmroute_proxy.server.processes.shared_memory import SharedMemory
from warmroute_proxy.server.processes.shared_nonces import SharedNonces

FIRST_WAIT_S: Final = 0.1
MAX_WAIT_S: Final = 30.0
STABLE_S: Final = 60.0
START_S: Final = 60.0
END_S: Final = 10.0  # how long a process may take to close after `shutdown_grace_s`
POLL_S: Final = 0.5

_SIGNALS: Final = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}

log = logging.getLogger("warmroute.proxy")


@dataclass(frozen=True, slots=True)
class ProcessSlot:
    """What the supervisor gives to one process. The two descriptors are the process' ends of pipes."""

    number: int
    shared_memory: SharedMemory
    nonces: SharedNonces
    parent_fd: int
    """Readable once the supervisor is gone."""

    ready_fd: int
    running: ReadConfig
    """The supervisor's config, as read from its file."""

    source: ConfigSource
    """The file from which `running` was read."""

    secrets: Secrets
    """The secrets that the supervisor read at its start."""

    interrupted: int = 0
    """How many turns were open when an earlier proxy died; 0 except in the first process that is started."""

    def ready(self, addresses: dict[str, Any]) -> None:
        """Report to the supervisor that this process listens, and where."""
        os.write(self.ready_fd, json.dumps(addresses).encode() + b"\n")
        os.close(self.ready_fd)


@dataclass(slots=True)
class _Process:
    number: int
    pid: int = 0  # 0: not running
    ready_fd: int = -1
    started_s: float = 0.0
    wait_s: float = FIRST_WAIT_S
    due_s: float = 0.0


def reserve(host: str, port: int) -> tuple[socket.socket, int]:
    """Reserve a port. Returns the socket and the port. Raises: OSError, if another program listens there."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if port:
        with socket.socket(family, kind, protocol) as alone:  # fails if the port is in use, unlike with SO_REUSEPORT
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
    reserved = socket.socket(family, kind, protocol)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(address)
    return reserved, reserved.getsockname()[1]


class Supervisor:
    """The parent process.

    `work` runs in each child process with its slot, and returns the exit code. `problems_of` finds problems of a config
    that reading the file does not find. `send_rest` is called when all processes have ended, with the config.
    """

    def __init__(
        self,
        running: ReadConfig,
        source: ConfigSource,
        work: Callable[[Config, ProcessSlot], int],
        problems_of: Callable[[Config], list[str]],
        send_rest: Callable[[Config], None],
    ) -> None:
        self._work = work
        self._send_rest = send_rest
        self._problems_of = problems_of
        config, self._running, self._source = running.config, running, source
        self._usd_live = usd_budgets_live(config)
        self._changes = FileChanges(source.path)
        self._certificate = FileChanges(*config.proxy.tls_files)
        self._certificate.found()
        self._secrets = Secrets(load_secret(config.secret_file, os.environ))
        self._state_dir = config.proxy.state_dir
        self._lock_fd = lock(self._state_dir)
        (self._state_dir / ACCEPTED_FILE).unlink(missing_ok=True)
        self._refused = RefusedMark(self._state_dir)
        self._refused.clear()
        self._interrupted = self._recover()
        public, port = reserve(config.proxy.host, config.proxy.port)
        admin, admin_port = reserve(config.proxy.admin_host, config.proxy.admin_port)
        self._reserved = [public, admin]
        self._config = replace(config, proxy=replace(config.proxy, port=port, admin_port=admin_port))
        self._shared_memory = SharedMemory(config.proxy.processes)
        self._nonces = SharedNonces()
        self._alive = os.pipe()
        self._processes = [_Process(number) for number in range(config.proxy.processes)]
        self._starts = 0

    def run(self, listening: Callable[[dict[str, Any], list[int]], None]) -> int:
        """Run until a signal ends the supervisor. `listening` is called once, when all processes listen."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        gc.collect()
        gc.freeze()  # so that garbage collections in the processes do not copy shared pages
        try:
            for process in self._processes:
                self._start(process)
            addresses = self._wait_until_ready()
            if addresses is None:
                return self._end() or 2
            listening(addresses, [process.pid for process in self._processes])
            self._watch()
            return self._end()
        finally:
            for reserved in self._reserved:
                reserved.close()
            self._recover()
            self._send_rest(self._config)
            os.close(self._lock_fd)

    def _recover(self) -> int:
        with ledger_errors(self._state_dir):
            return recover_all(self._state_dir, self._state_dir / LEDGER_FILE, time.time())

    def _start(self, process: _Process) -> None:
        self._starts += 1
        self._shared_memory.lanes[process.number].generation = self._starts
        read_fd, write_fd = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            os.close(read_fd)
            os.close(self._alive[1])
            interrupted = self._interrupted if self._starts == 1 else 0
            parent_fd = self._alive[0]
            self._run_child(
                ProcessSlot(
                    number=process.number,
                    shared_memory=self._shared_memory,
                    nonces=self._nonces,
                    parent_fd=parent_fd,
                    ready_fd=write_fd,
                    running=self._running,
                    source=self._source,
                    secrets=self._secrets,
                    interrupted=interrupted,
                )
            )
        os.close(write_fd)
        process.pid, process.ready_fd, process.started_s = pid, read_fd, time.monotonic()

    def _run_child(self, slot: ProcessSlot) -> None:
        """Run the child process. Never returns."""
        code = 1
        try:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until `work` sets its own handler
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            code = self._work(self._config, slot)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)

    def _wait_until_ready(self) -> dict[str, Any] | None:
        """Wait for all processes. Returns the addresses that they report; None if one has ended or takes too long."""
        deadline = time.monotonic() + START_S
        addresses: dict[str, Any] = {}
        for process in self._processes:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([process.ready_fd], [], [], left_s)[0]:
                log.error("process %d did not start within %g s", process.number, START_S)
                return None
            line = os.read(process.ready_fd, 65_536)  # empty if the process has ended; it has logged why
            if not line:
                return None
            addresses = json.loads(line)
        return addresses

    def _watch(self) -> None:
        while True:
            now = time.monotonic()
            for process in self._processes:
                if not process.pid and now >= process.due_s:
                    self._start(process)
            due_s = min((each.due_s for each in self._processes if not each.pid), default=now + POLL_S)
            caught = signal.sigtimedwait(_SIGNALS, min(max(due_s - now, 0.0), POLL_S))
            if caught is not None and caught.si_signo in {signal.SIGTERM, signal.SIGINT}:
                return
            hung_up = caught is not None and caught.si_signo == signal.SIGHUP
            watched = self._config.proxy.watch_config
            hung_up |= self._certificate.found() and watched
            changed = self._changes.found() and watched
            if (changed or hung_up) and (self._reload() or hung_up):
                self._send(signal.SIGHUP)
            for process in self._reaped():
                log.error("process %d has died, and is started again in %.1f s", process.number, process.wait_s)

    def _reload(self) -> bool:
        """Accept the config file for all processes, including those that start later. If the file has a problem, leave
        a mark by which the processes report it.

        Returns True if the accepted file differs from the one in use. A bug here must not end the supervisor.
        """
        try:
            found = self._source.read()
            config = merged(self._config, found.config, self._usd_live)
            if problems := self._problems_of(config):
                raise ConfigError(str(self._source.path), problems)
            is_other = found.digest != self._running.digest
            if is_other:
                self._source.accept(found, self._state_dir)
        except (ConfigError, OSError) as error:
            log.error("the config is not applied, and the one before stays in force: %s", error)
            self._refused.note(len(error.problems) if isinstance(error, ConfigError) else 1)
            return False
        except Exception as error:
            log.error("the config is not applied: %s", type(error).__name__)
            self._refused.note(1)
            return False
        self._refused.clear()
        self._running = found._replace(config=merged(self._running.config, found.config, self._usd_live))
        self._config = config
        return is_other

    def _reaped(self) -> list[_Process]:
        """Note which processes have ended since the last call, and return them."""
        found = []
        now = time.monotonic()
        for process in self._processes:
            if process.pid and os.waitpid(process.pid, os.WNOHANG)[0]:
                process.pid = 0
                self._shared_memory.lanes[process.number].generation = 0
                os.close(process.ready_fd)
                stable = now - process.started_s >= STABLE_S
                process.wait_s = FIRST_WAIT_S if stable or not process.due_s else min(2 * process.wait_s, MAX_WAIT_S)
                process.due_s = now + process.wait_s
                found.append(process)
        return found

    def _end(self) -> int:
        """End all processes gracefully, and those that take too long by force."""
        self._send(signal.SIGTERM)
        deadline = time.monotonic() + self._config.limits.shutdown_grace_s + END_S
        while any(process.pid for process in self._processes):
            if time.monotonic() > deadline:
                self._send(signal.SIGKILL)
            caught = signal.sigtimedwait(_SIGNALS, POLL_S)
            if caught is not None and caught.si_signo in {signal.SIGTERM, signal.SIGINT}:
                self._send(signal.SIGTERM)  # the second signal: it ends them at once
            self._reaped()
        return 0

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.pid:
                os.kill(process.pid, number)
