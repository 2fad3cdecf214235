"""Starts proxies and engines as copies, by fork, of a process that has imported all of them once.

A run of the tests starts hundreds of them, and nearly all of a start is imports: 0.3 s of CPU for a proxy, 0.1 s for an
engine. A copy is a process of its own like any other (pid, session, signals, files), with one difference: copies of one
origin hash strings alike. So a proxy that reads what another one wrote, or has a peer, is a copy of another origin: of
the next of three, in turn, so that neither those that stand beside each other nor those that follow have the same.

Its deadlines are far away, but for those that a test is about (`tests/subjects/patience.py`).

An origin is `python -m tests.subjects.copies FD`, of the process that runs tests, made for its first copy. It gets a
message for each start over a socket, with the descriptors that become input, output and log, and one into which it
writes how the copy ended. It ends with whoever started it, and so do its copies. What a copy starts as a child, as
`warmroute up` starts its engines, is made of itself, by fork.
"""

import atexit
import contextlib
import gc
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Final, NoReturn, TextIO, cast

from tests.machine import seconds
from tests.subjects import clocks, patience
from tests.subjects.origin import Asked, serve, take_on
from warmroute_cli.processes import Child
from warmroute_lab.fleet import LocalFleet

PROXY: Final = "warmroute_cli.main"
ENGINE: Final = "warmroute_lab.engine"
RELAY: Final = "warmroute_lab.wan"
IMPORTED: Final = (
    PROXY,
    f"{ENGINE}.__main__",
    RELAY,
    "warmroute_proxy.server.main",
    "warmroute_proxy.server.control.control_plane",
    "pydantic.v1",  # FastAPI imports it for the first route that takes an argument
    *patience.DEADLINES,
)


class Copy(Child):
    """A child that is a copy; its command line is the one that would start it anew."""

    def status(self, timeout_s: float = 20.0) -> int:
        """How it ended, once it has: its exit code, or a signal's number below 0."""
        return self._process.wait(seconds(timeout_s))

    def _start(self, command: Sequence[str], out: BinaryIO, log: BinaryIO) -> "subprocess.Popen[bytes]":
        return cast("subprocess.Popen[bytes]", _origin(self._number()).copied(command, out, log))  # as far as used

    def _number(self) -> int:
        """Of its origin."""
        return 0


class OtherCopy(Copy):
    """One that hashes strings in another way than the two before it, and than any `Copy`."""

    def _number(self) -> int:
        return next(_others)


def ran(
    command: Sequence[str],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """What `PYTHON -m MODULE ARGUMENT...` wrote, and how it ended, as `subprocess.run` says it."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        running = _origin(0).copied(command, out, log, folder, environment)
        try:
            running.stdin.write(given.encode())
            running.stdin.close()
            code = running.wait(seconds(timeout_s))
        finally:
            running.kill()
        out.seek(0)
        log.seek(0)
        return subprocess.CompletedProcess(command, code, out.read().decode(), log.read().decode())


@contextlib.contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[tuple["Running", TextIO]]:
    """`PYTHON -m MODULE ARGUMENT...` and its output, errors among it; killed at the end where it still runs."""
    read, write = os.pipe()
    with open(read) as output:  # noqa: PTH123 (a descriptor)
        with open(write, "wb") as out:  # noqa: PTH123
            running = _origin(0).copied(command, out, out, folder)
        try:
            yield running, output
        finally:
            running.kill()
            running.wait(seconds(20))


class CopiedFleet(LocalFleet):
    """The fleet of `warmroute up`, of copies."""

    child_type = Copy


class Running:
    """A running copy, as `subprocess.Popen` shows a process; `ended` can be read once it has ended."""

    def __init__(self, command: Sequence[str], pid: int, ended: int, stdin: int) -> None:
        self.args = command
        self.pid = pid
        self.stdin = os.fdopen(stdin, "wb")
        self.returncode: int | None = None
        self._ended = ended

    def _status(self) -> int:
        return int(os.read(self._ended, 20) or b"9")

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(self._status())
            os.close(self._ended)
            with contextlib.suppress(OSError):
                self.stdin.close()
        return self.returncode

    def terminate(self) -> None:
        """SIGTERM, where it still runs."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, where it still runs."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """A signal, where it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, which is about to be told
                os.kill(self.pid, number)


class Origin:
    """The process that copies are made of."""

    def __init__(
        self,
        enter: Sequence[str] = (),
        checkout: Path | None = None,
        program: Sequence[str] = (sys.executable, "-m", "tests.subjects.copies", "{}"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`enter`: what stands before its command line, where it runs in a network namespace; `checkout`: whose
        packages it imports, where those are not this one's. `program` gets the number of a socket in the place of `{}`,
        and `environment` besides what is inherited.
        """
        of_checkout = dict(environment or {})
        if checkout is not None:
            packages = (checkout, *(checkout / each for each in ("sdk", "proxy", "backend", "lab")))
            of_checkout |= {"PYTHONPATH": ":".join(map(str, packages)), "PYTHONSAFEPATH": "1"}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [*enter, *(word.replace("{}", str(theirs.fileno())) for word in program)]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd=checkout or Path(__file__).parents[2],
                env={**os.environ, **of_checkout},
            )
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def copied(
        self,
        command: Sequence[str],
        out: BinaryIO,
        log: BinaryIO,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Running:
        """A copy that does what `PYTHON -m MODULE ARGUMENT...` says, with these files as its output and log."""
        environ = dict(os.environ if environment is None else environment)
        message = json.dumps({"command": command[2:], "environ": environ, "folder": str(folder or Path.cwd())})
        ended, tells = os.pipe()
        reads, stdin = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._socket, [message.encode()], [reads, out.fileno(), log.fileno(), tells])
                pid = int(self._socket.recv(20))
        finally:
            os.close(tells)
            os.close(reads)
        return Running(command, pid, ended, stdin)

    def stop(self) -> None:
        """Its copies end with it."""
        self._socket.close()
        self._process.wait()


_origins: dict[int, Origin] = {}
_others: Final = itertools.cycle((1, 2, 3))


def _origin(number: int) -> Origin:
    if number not in _origins:
        _origins[number] = Origin()
    return _origins[number]


# In the origin


def _become(asked: Asked, files: Sequence[int]) -> NoReturn:
    """Turn the forked process into what was asked for, with these as its input, output and log."""
    take_on(asked, files)
    patience.wait()
    clocks.set_ahead()
    Child._start = _forked  # type: ignore[assignment,method-assign]
    module, *arguments = cast("list[str]", asked["command"])
    code: object = 1
    try:
        code = _run(module, arguments)
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _run(module: str, arguments: Sequence[str]) -> int | None:
    sys.argv = [module, *arguments]
    if module == PROXY:
        code: int | None = import_module(PROXY).main(arguments)
        return code
    if module == ENGINE:
        import_module(f"{ENGINE}.__main__").main(arguments)
    else:
        assert module == RELAY, module
        import_module(RELAY).main()
    return None


class _Forked(Running):
    """A child that a copy has forked."""

    def _status(self) -> int:
        return os.waitpid(self.pid, 0)[1]


def _forked(_child: Child, command: Sequence[str], out: BinaryIO, log: BinaryIO) -> "subprocess.Popen[bytes]":
    """What `Child._start` does in a copy."""
    reads, stdin = os.pipe()
    pid = os.fork()
    if pid == 0:
        asked = {"command": list(command[2:]), "environ": dict(os.environ), "folder": str(Path.cwd())}
        _become(asked, [reads, out.fileno(), log.fileno()])
    os.close(reads)
    return cast("subprocess.Popen[bytes]", _Forked(command, pid, os.pidfd_open(pid), stdin))  # as far as used


def main() -> None:
    """Import what copies need, then serve. No threads: they would be missing in the copies."""
    for name in IMPORTED:
        import_module(name)
    import_module("warmroute_proxy.server.control.control_plane").described_routes()  # compiles the patterns of paths
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as asks:
        serve(asks, _become)


if __name__ == "__main__":
    main()
