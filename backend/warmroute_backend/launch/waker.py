"""Waits that a signal ends: SIGTERM, SIGINT and SIGHUP ask the launcher to stop, the end of a child wakes it."""

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Final

STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Waker:
    """`with Waker() as waker`: signals are counted and waits end. `stops`: how often a stop was asked for."""

    def __init__(self) -> None:
        self.stops = 0
        self._read, self._write = os.pipe()

    def __enter__(self) -> "Waker":
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._woken_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        heeded = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
        self._before = {number: signal.signal(number, self._stop) for number in heeded}
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _nothing)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout_s: float) -> None:
        """Wait until a signal comes, or for `timeout_s`."""
        if select.select([self._read], [], [], timeout_s)[0]:
            os.read(self._read, 4096)

    def _stop(self, _number: int, _stack: FrameType | None) -> None:
        self.stops += 1


def _nothing(_number: int, _stack: FrameType | None) -> None:
    """A handler, so that the signal is not ignored and wakes the wait."""
