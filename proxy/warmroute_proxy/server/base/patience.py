"""A time limit that does not count the proxy's own lateness: it waits in `STEPS` steps, and a late step counts as one.

If the event loop is held for three seconds, an answer may lie unread in its socket when the loop goes on. A plain limit
of two seconds would have expired, although the other side answered at once. With `Patience`, only one of the steps has
passed.
"""

import asyncio
from types import TracebackType
from typing import Final

STEPS: Final = 16


class Patience:
    """`async with Patience(2.0):` raises `TimeoutError` like `asyncio.timeout`."""

    def __init__(self, seconds: float) -> None:
        self._step_s = seconds / STEPS
        self._left = STEPS
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "Patience":
        await self._timeout.__aenter__()
        self._wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._step_s, self._passed)

    def _passed(self) -> None:
        self._left -= 1
        if self._left > 0:
            self._wait()
        else:
            self._timeout.reschedule(asyncio.get_running_loop().time())
