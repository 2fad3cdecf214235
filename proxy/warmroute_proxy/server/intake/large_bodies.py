"""Has large bodies read in another process, so that none of them holds the event loop.

A body of 30 MB takes 0.1 to 0.3 s to parse and to hash, whatever thread does it: the interpreter's lock is held
meanwhile. The process is started by the first large body, and by the next one if it has died. It belongs to one process
of the proxy, and reads one body after the other.
"""

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context

from msgspec.structs import replace

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.http.shared_bytes import SharedBytes
from warmroute_proxy.server.intake import large_reading
from warmroute_proxy.server.intake.caller import Caller, Callers
from warmroute_proxy.server.intake.intake import conversing
from warmroute_proxy.server.intake.large_body import LargeBody
from warmroute_proxy.server.intake.large_reading import LargeAnswer, LargeRequest, Refused, Translate, TranslatedBody
from warmroute_proxy.server.intake.parsed_request import Intake

log = logging.getLogger(__name__)

OnRead = Callable[[Intake | Refusal, TranslatedBody | None], None]
_Found = Future[LargeAnswer | Refused]


class LargeBodies:
    """The process that reads them."""

    def __init__(self, config: Config, callers: Callers, loop: AbstractEventLoop) -> None:
        self._config = config
        self._callers = callers
        self._loop = loop
        self._pool: ProcessPoolExecutor | None = None

    def read(
        self,
        request: Request,
        shared: SharedBytes,
        caller: Caller,
        on_read: OnRead,
        translate: Translate | None = None,
    ) -> None:
        """Read a request whose body is `shared`, and call `on_read` in the event loop. Raises: Refusal.

        `translate`, a function of a module, makes a chat body of it; then `on_read` also gets what it has made.
        """
        sender = caller.tenant, request.headers, caller.key_id, caller.region
        asked = LargeRequest(shared.path, shared.size, caller.path, *sender, translate)
        pool, found = self._submitted(asked)
        done = partial(self._done, pool, request, shared, caller, on_read)  # it keeps `shared` until then
        found.add_done_callback(partial(self._loop.call_soon_threadsafe, done))

    def replace(self, config: Config) -> None:
        """Read by another config. The process ends with what it was given; the next large body starts another."""
        self._config = config
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def close(self) -> None:
        """End the process."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _submitted(self, asked: LargeRequest) -> tuple[ProcessPoolExecutor, _Found]:
        for _ in range(2):
            if self._pool is None:
                arguments = self._config, self._callers.secrets
                self._pool = ProcessPoolExecutor(1, get_context("spawn"), large_reading.start, arguments)
            try:
                return self._pool, self._pool.submit(large_reading.read, asked)
            except BrokenProcessPool:  # it died while it had nothing to do
                self.close()
        raise _unreadable()

    def _done(
        self,
        pool: ProcessPoolExecutor,
        request: Request,
        shared: SharedBytes,
        caller: Caller,
        on_read: OnRead,
        future: _Found,
    ) -> None:
        try:
            found = future.result()
        except Exception as error:
            log.error("reading a large request failed: %s", type(error).__name__)
            if pool is self._pool:  # another that waited for the same process has not had it closed yet
                self.close()
            on_read(_unreadable(), None)
            return
        if isinstance(found, Refused):
            on_read(found.refusal(), None)
            return
        if found.size is not None:
            request.body = b""  # a view, with which they cannot grow
            shared.rewritten(found.size)
            request.body = shared.view() if request.shared is shared else b""
        shared.was_read(found.sha256)
        body = LargeBody(shared.view(), found.spans)
        intake = replace(found.read.intake, tenant=caller.tenant, body=body)
        if found.read.converses:
            intake, facts = conversing(intake, found.read.identity, found.read.prompt, caller, self._callers)
            intake = replace(intake, facts=facts)
        on_read(intake, found.translated)


def _unreadable() -> Refusal:
    return Refusal(503, "the process that reads large requests has ended", code="overloaded", retry_after_s=1)
