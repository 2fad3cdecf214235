"""Runs the program as a child with this command's terminal and signals, and returns the program's exit status.

Keys such as Ctrl-C reach all processes in the foreground of a terminal. So the program gets their signals directly, and
this process only waits. Signals that other processes send to this process are passed on.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Final

PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FROM_KEYS: Final = (signal.SIGINT, signal.SIGQUIT)


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command, and return its exit status. If a signal ends it, the status is 128 + the signal, as in shells.

    Raises: OSError, if the command cannot be started.
    """
    with _signals_for_the_child() as begun:
        child = subprocess.Popen(command, env=dict(environment))  # noqa: S603 (what the user asked for)
        begun(child)
        status = child.wait()
    return status if status >= 0 else 128 - status


class _Child:
    """Passes signals on to the child. Signals that arrive before the child runs are kept for it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def __call__(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        for number in self._early:
            child.send_signal(number)

    def signal(self, number: int, _stack: FrameType | None) -> None:
        if self._child is None:
            self._early.append(number)
        else:
            self._child.send_signal(number)


@contextlib.contextmanager
def _signals_for_the_child() -> Iterator[_Child]:
    """Within this context, no signal ends this process, which waits for the program to end."""
    child = _Child()
    previous = {number: signal.signal(number, child.signal) for number in PASSED_ON}
    keys = _wait if _in_foreground() else child.signal  # in the background, the child gets no signals of keys
    previous |= {number: signal.signal(number, keys) for number in FROM_KEYS}
    try:
        yield child
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether the signals of a terminal's keys reach this process, and therefore its child, too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _wait(_number: int, _stack: FrameType | None) -> None:
    """Do nothing: the program has got the same signal."""
