"""The process that reads large bodies, seen from the proxy: it is given one body at a time, answers, or ends.

A thread waits for what it says, so that a process that is stopped half way through an answer holds nobody.
"""

import signal
from asyncio import AbstractEventLoop
from collections.abc import Callable
from multiprocessing import get_context
from threading import Thread
from typing import Final

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.intake import large_reading
from warmroute_proxy.server.intake.large_reading import LargeRequest, Reply

TOO_LONG: Final = -signal.SIGPROF
"""How a process ends that took more CPU time for a body than that body may have."""


class LargeReader:
    """One process. Both functions are called in the event loop, the second one once, with how the process ended.

    Raises: OSError, RuntimeError, where no process or no thread can be made.
    """

    def __init__(
        self,
        config: Config,
        secrets: Secrets,
        loop: AbstractEventLoop,
        on_reply: Callable[["LargeReader", Reply | None], None],
        on_end: Callable[["LargeReader", int], None],
    ) -> None:
        self._loop = loop
        self._on_reply = on_reply
        self._on_end = on_end
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = theirs, config, secrets
        self._process = context.Process(target=large_reading.serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        try:
            Thread(target=self._listen, daemon=True, name="large-bodies").start()
        except RuntimeError:  # no thread can be made
            self._process.kill()
            raise

    def ask(self, asked: LargeRequest) -> None:
        """Have a body read. Raises: OSError, where the process has ended."""
        self._connection.send(asked)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._process.kill()

    def _listen(self) -> None:
        """In a thread of its own: pass on what it says, until it ends."""
        try:
            while True:
                self._call(self._on_reply, self._connection.recv())
        except (EOFError, OSError):
            pass
        except Exception:  # what it says cannot be read
            self._process.kill()
        self._process.join()
        self._call(self._on_end, self._process.exitcode or 0)

    def _call(
        self,
        function: Callable[["LargeReader", Reply | None], None] | Callable[["LargeReader", int], None],
        argument: object,
    ) -> None:
        try:
            self._loop.call_soon_threadsafe(function, self, argument)  # type: ignore[arg-type]
        except RuntimeError:  # the loop has been closed
            pass
