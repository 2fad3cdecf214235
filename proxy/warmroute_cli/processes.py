"""Runs child processes that print their addresses on the first line of their output.

Output goes to files, so that no child blocks on a full pipe and the reason for a failed start can be shown. Children
run in sessions of their own: Ctrl-C reaches only the parent process, which then stops the children in order. If the
parent is killed, the kernel stops its children.
"""

import contextlib
import ctypes
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Self

from warmroute_cli.arguments import CannotRun

POLL_S = 0.01
LOG_LINES_SHOWN = 5
PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


class Stopped:
    """A `with` block begins it, if it has not begun, and stops it."""

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def begin(self) -> None:
        """Start what has not started."""

    def stop(self) -> None:
        raise NotImplementedError


class FleetError(CannotRun):
    """A part of the fleet did not start or did not answer. The message is shown to the user."""


class Child:
    """A child process. The kernel stops the child when the thread that made it ends."""

    def __init__(self, name: str, command: Sequence[str], log_dir: Path) -> None:
        self.name = name
        self._out = log_dir / f"{name}.out"
        self._log = log_dir / f"{name}.log"
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self._process = self._start(command, out, log)

    def _start(self, command: Sequence[str], out: BinaryIO, log: BinaryIO) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 (our own command lines)
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=log,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (a single system call)
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def listening(self, deadline_s: float) -> dict[str, Any]:
        """Wait for the line that the child prints once it listens, until `deadline_s` on the monotonic clock."""
        while True:
            line, _, _ = self._out.read_bytes().partition(b"\n")
            if line.startswith(b"{") and line.endswith(b"}"):
                found: dict[str, Any] = json.loads(line)
                return found
            if self._process.poll() is not None:
                raise FleetError(f"{self.name} ended with status {self._process.returncode}{self.last_words()}")
            if time.monotonic() > deadline_s:
                raise FleetError(f"{self.name} did not listen in time{self.last_words()}")
            time.sleep(POLL_S)

    def send(self, message: dict[str, Any]) -> None:
        pipe = self._process.stdin
        if pipe is not None:
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()

    def running(self) -> bool:
        return self._process.poll() is None

    def ask_to_stop(self) -> None:
        """Close the child's input and send SIGTERM, if it still runs."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self.running():
            self._process.terminate()

    def wait_or_kill(self, deadline_s: float) -> None:
        """Wait until `deadline_s` for the child to end, then kill it."""
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The path of the child's log, and the log's end."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LOG_LINES_SHOWN:]
        return f" (log: {self._log})" + "".join(f"\n    {line}" for line in lines)


def _end_with_parent() -> None:
    """In the child: the kernel sends SIGTERM when the parent ends, even by SIGKILL."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def stop_all(children: Sequence[Child], grace_s: float) -> None:
    """Stop all children at once: send SIGTERM, then SIGKILL to those that run after `grace_s` or after Ctrl-C."""
    deadline_s = time.monotonic() + grace_s
    try:
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.wait_or_kill(deadline_s)
    except KeyboardInterrupt:
        stop_all(children, 0.0)
        raise


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Within this context, SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that children are stopped. A signal
    that is ignored, as `nohup` makes SIGHUP, stays ignored.
    """

    def interrupt(_signal: int, _stack: FrameType | None) -> None:
        raise KeyboardInterrupt

    heeded = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
