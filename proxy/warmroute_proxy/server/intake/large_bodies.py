"""Lets another process read large bodies, and bodies with very many values, to keep the event loop free.

A body of 30 MB takes 0.1 to 0.3 s to parse and to hash. A thread would not help, because it would hold the
interpreter's lock all that time. The first large body starts the reading process; each process of the proxy has its own
reading process. It reads one body at a time, while the other bodies wait here. The tenant whose bodies have taken the
least CPU time is next, so one tenant gets at most half of the CPU time while another tenant's bodies wait.

The kernel ends the reading process if a body takes more CPU time than its size allows. The proxy ends the reading
process at shutdown, if it has not answered for `SILENT_S`, and if it still reads a body `LEFT_S` after the client has
left. The next body starts a new reading process. If the process has ended while it read a body, the body is read once
more, unless it took too much CPU time, its client has left, or the process may have overwritten it. Bodies wait for
their turn without a time limit.
"""

import asyncio
import dataclasses
import logging
import signal
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from threading import Thread
from typing import Final

from msgspec.structs import replace

from warmroute_proxy.core.base.trouble import Problem, Trouble
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.errors import Refusal, shutting_down
from warmroute_proxy.server.base.metrics import GaugeRow, Metrics
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.shared_bytes import SharedBytes
from warmroute_proxy.server.intake import large_reading
from warmroute_proxy.server.intake.caller import Caller, Callers
from warmroute_proxy.server.intake.intake import conversing
from warmroute_proxy.server.intake.large_body import LargeBody
from warmroute_proxy.server.intake.large_reading import (
    LargeAnswer,
    LargeRequest,
    Refused,
    Reply,
    Translate,
    TranslatedBody,
)
from warmroute_proxy.server.intake.parsed_request import ReadRequest

# How the proxy uses the process that reads large bodies: the process gets one body at a time, and answers or ends.
#
# A thread waits for answers, so a process that stops half way through an answer does not block anything else.

TOO_LONG: Final = -signal.SIGPROF
"""The exit code of a reading process whose body has taken more CPU time than allowed."""


class LargeReader:
    """One reading process. Both callbacks run in the event loop; `on_end` runs once, with the exit code of the process.

    Raises: OSError, RuntimeError, if the process or its thread cannot be started.
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
        except RuntimeError:  # the thread cannot be started
            self._process.kill()
            raise

    def ask(self, asked: LargeRequest) -> None:
        """Have a body read. Raises: OSError, if the process has ended."""
        self._connection.send(asked)

    def kill(self) -> None:
        self._process.kill()

    def _listen(self) -> None:
        """Pass on the answers of the process until it ends. Runs in a separate thread."""
        try:
            while True:
                self._call(self._on_reply, self._connection.recv())
        except (EOFError, OSError):
            pass
        except Exception:  # an answer that cannot be decoded
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
        except RuntimeError:  # the event loop has been closed
            pass


log = logging.getLogger(__name__)

ALLOWED_S: Final = 2.0
BYTES_PER_S: Final = 4_194_304
"""A body may take ALLOWED_S of CPU time, plus one second per BYTES_PER_S bytes."""

LEFT_S: Final = 1.0
SILENT_S: Final = 120.0
SLOW_S: Final = 5.0
"""Once a body has waited this long, the reading process is a bottleneck, and `/ready` says so."""

MAX_READ: Final = 2  # how often one body is read at most

OnRead = Callable[[ReadRequest | Refusal, TranslatedBody | None], None]


class _Waiting:
    """A body that waits for its turn or is being read."""

    def __init__(self, asked: LargeRequest, exchange: Exchange, shared: SharedBytes, caller: Caller, on_read: OnRead):
        self.asked = asked
        self.exchange = exchange
        self.shared = shared
        self.caller = caller
        self.on_read = on_read
        self.since_s = asyncio.get_running_loop().time()
        self.reads = 0
        self.began_s = 0.0  # when the process last got this body
        self.is_changed = False  # whether the process may have overwritten the body
        self.left = False

    @property
    def can_be_read_again(self) -> bool:
        """Whether the body is unchanged, its client still waits, and it was read fewer than `MAX_READ` times."""
        return self.reads < MAX_READ and not self.is_changed and not self.left

    @property
    def tenant(self) -> str:
        return self.asked.tenant.name


class LargeBodies:
    """The bodies that wait, and the process that reads them."""

    def __init__(self, config: Config, callers: Callers, loop: AbstractEventLoop, metrics: Metrics) -> None:
        self._config = _needed(config)
        self._callers = callers
        self._loop = loop
        self._metrics = metrics
        self._waiting: dict[str, deque[_Waiting]] = {}  # by tenant; empty queues are removed
        self._used_s: dict[str, float] = {}  # tenant -> CPU time of its bodies, minus that of the tenant with the least
        self._reading: _Waiting | None = None
        self._reader: LargeReader | None = None
        self._guard: asyncio.TimerHandle | None = None
        self._closed = False
        self._is_stale = False  # whether the process has an old config

    def read(
        self,
        exchange: Exchange,
        shared: SharedBytes,
        caller: Caller,
        on_read: OnRead,
        translate: Translate | None = None,
    ) -> None:
        """Read the request of an exchange, whose body is `shared`, and call `on_read` in the event loop, unless the
        client leaves.

        `translate`: a function that makes a chat body of the body; it must be defined at the top of a module, to be
        pickled. `on_read` also gets the translation.
        """
        request, allowed = exchange.request, allowed_s(shared.size)
        sender = caller.tenant, request.headers, caller.key_id, caller.region
        asked = LargeRequest(shared.path, shared.size, caller.path, *sender, translate, allowed, request.deployment)
        waiting = _Waiting(asked, exchange, shared, caller, on_read)
        if self._closed:
            self._end(waiting, shutting_down())
            return
        exchange.on_gone = partial(self._left, waiting)
        self._wait(waiting)
        self._next()

    def replace(self, config: Config) -> None:
        """Use another config: if bodies are read differently by it, a new process replaces the old one, once the old
        one has finished its body.
        """
        before, self._config = self._config, _needed(config)
        self._is_stale |= self._config != before
        self._next()

    def shut_down(self) -> None:
        """Refuse all bodies that are not read yet, and end the reading process."""
        self._closed = True
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.kill()
        reading = self._stop_reading()
        waiting = [each for queue in self._waiting.values() for each in queue]
        self._waiting.clear()
        for each in ([] if reading is None else [reading]) + waiting:
            self._end(each, shutting_down())

    def waiting_s(self) -> float:
        """How long the oldest body has waited, including the body that is being read."""
        since_s = [queue[0].since_s for queue in self._waiting.values()]
        if self._reading is not None:
            since_s.append(self._reading.since_s)
        return self._loop.time() - min(since_s) if since_s else 0.0

    def problems(self) -> list[Problem]:
        """One problem, if a body has waited for `SLOW_S` or longer."""
        waiting_s = self.waiting_s()
        if waiting_s < SLOW_S:
            return []
        text = f"{self._count()} large requests wait to be read, the oldest for {waiting_s:.0f} s"
        return [Problem(Trouble.LARGE_BODIES_WAIT, text)]

    def gauges(self) -> list[GaugeRow]:
        """The gauges of this proxy process for `/metrics`."""
        return [
            (declared.LARGE_BODIES_WAITING, (), float(self._count())),
            (declared.LARGE_BODIES_WAITING_SECONDS, (), self.waiting_s()),
        ]

    def _count(self) -> int:
        return sum(map(len, self._waiting.values())) + (self._reading is not None)

    # -- whose turn it is

    def _wait(self, waiting: _Waiting, *, first: bool = False) -> None:
        tenant = waiting.tenant
        queue = self._waiting.setdefault(tenant, deque())
        self._used_s.setdefault(tenant, 0.0)
        if first:
            queue.appendleft(waiting)
        else:
            queue.append(waiting)

    def _next(self) -> None:
        """Have the next body read, if the process is free."""
        while self._reading is None and self._waiting:
            tenant = min(self._waiting, key=self._used_s.__getitem__)
            queue = self._waiting[tenant]
            waiting = queue.popleft()
            if not queue:
                del self._waiting[tenant]
            self._reading = waiting
            waiting.reads += 1
            waiting.began_s = self._loop.time()
            try:
                reader = self._started()
            except (OSError, RuntimeError) as error:
                log.error("the process that reads large requests cannot be started: %s", error)
                self._stop_reading()
                self._end(waiting, _unreadable())
                continue
            try:
                reader.ask(waiting.asked)
            except OSError:  # the process has ended; `_ended` is called later
                return
            self._guard = self._loop.call_later(SILENT_S, self._silent, waiting)

    def _took(self, tenant: str, took_s: float) -> None:
        """Count a tenant's CPU time. Then lower the times of this tenant and of those that wait: the least becomes
        0.
        """
        self._used_s[tenant] = self._used_s.get(tenant, 0.0) + took_s
        present = {*self._waiting, tenant}
        least = min(self._used_s[each] for each in present)
        self._used_s = {each: self._used_s[each] - least for each in present}

    def _started(self) -> LargeReader:
        if self._is_stale and self._reader is not None:
            self._reader.kill()
            self._reader = None
        self._is_stale = False
        if self._reader is None:
            self._reader = LargeReader(self._config, self._callers.secrets, self._loop, self._replied, self._ended)
        return self._reader

    def _stop_reading(self) -> _Waiting | None:
        reading, self._reading = self._reading, None
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None
        return reading

    # -- what becomes of a body

    def _replied(self, reader: LargeReader, reply: Reply | None) -> None:
        if reader is not self._reader:
            return
        if reply is None:
            if self._reading is not None:
                self._reading.is_changed = True
            return
        waiting = self._stop_reading()
        if waiting is not None:
            self._took(waiting.tenant, reply.took_s)
            if reply.failed:
                log.error("reading a large request failed: %s", reply.failed)
            self._answer(waiting, reply)
        self._next()

    def _ended(self, reader: LargeReader, exit_code: int) -> None:
        """The reading process has ended, by a signal of the proxy or the kernel, or by a fault."""
        if reader is not self._reader:
            return
        self._reader = None
        waiting = self._stop_reading()
        if waiting is not None:  # its CPU time is unknown, so elapsed time counts, even if the client has left
            allowed_s = waiting.asked.allowed_s
            took_s = allowed_s if exit_code == TOO_LONG else min(allowed_s, self._loop.time() - waiting.began_s)
            self._took(waiting.tenant, took_s)
        if waiting is not None and exit_code == TOO_LONG:
            log.error("a large request of tenant %s was given up: it took more than %.1f s", waiting.tenant, allowed_s)
            self._end(waiting, _takes_too_long(allowed_s))
        elif waiting is not None and waiting.can_be_read_again:
            log.error("the process that reads large requests has ended (%d): its request is read again", exit_code)
            self._counted("read_again")
            self._wait(waiting, first=True)
        elif waiting is not None:
            self._end(waiting, _unreadable())
        self._next()

    def _silent(self, waiting: _Waiting) -> None:
        """End the process if it still reads this body: it has been silent for too long, or the client has left."""
        if self._reading is waiting and self._reader is not None:
            self._reader.kill()

    def _left(self, waiting: _Waiting) -> None:
        """The client has left: its body is not read, or the reading is given up."""
        waiting.left = True
        self._counted("client_left")
        queue = self._waiting.get(waiting.tenant)
        if queue is not None and waiting in queue:
            queue.remove(waiting)
            if not queue:
                del self._waiting[waiting.tenant]
        elif self._reading is waiting:
            self._loop.call_later(LEFT_S, self._silent, waiting)

    def _answer(self, waiting: _Waiting, reply: Reply) -> None:
        found = reply.found
        if waiting.left:
            return
        if found is None:
            self._end(waiting, Refusal(500, "internal error", code="internal_error"))
        elif isinstance(found, Refused):
            self._end(waiting, found.refusal())
        else:
            self._counted("read")
            read = self._read(waiting.exchange.request, waiting.shared, waiting.caller, found)
            self._go_on(waiting, read, found.translated)

    def _read(self, request: Request, shared: SharedBytes, caller: Caller, found: LargeAnswer) -> ReadRequest:
        request.body = b""  # drops a view of the memory, because `rewritten` and `was_read` need all views gone
        if found.size is not None:
            shared.rewritten(found.size)
        shared.was_read(found.sha256)
        request.body = shared.view() if request.shared is shared else b""
        parsed = replace(found.read.parsed, tenant=caller.tenant)
        if found.read.converses:
            parsed = conversing(parsed, found.read.identity, found.read.prompt, caller, self._callers)
        return ReadRequest(parsed, LargeBody(shared.view(), found.spans))

    def _end(self, waiting: _Waiting, refusal: Refusal) -> None:
        self._counted("refused")
        self._go_on(waiting, refusal, None)

    def _go_on(self, waiting: _Waiting, found: ReadRequest | Refusal, translated: TranslatedBody | None) -> None:
        """Continue the request of a body. An error in it must not keep the other bodies waiting."""
        if waiting.left:
            return
        waiting.exchange.on_gone = None
        try:
            waiting.on_read(found, translated)
        except Exception as error:
            log.error("answering a large request failed: %s", type(error).__name__)
            waiting.exchange.fail()

    def _counted(self, outcome: str) -> None:
        self._metrics.add(declared.LARGE_BODIES_TOTAL, 1, (("outcome", outcome),))


def allowed_s(size: int) -> float:
    """The CPU seconds that a body of this size may take."""
    return ALLOWED_S + size / BYTES_PER_S


def _takes_too_long(took_s: float) -> Refusal:
    problem = f"the request body takes more than {took_s:.1f} s to read: send fewer values"
    return Refusal(400, problem, code="invalid_value")


def _needed(config: Config) -> Config:
    """The part of a config that the process needs. It needs no tenants, only whether there is more than one: the start
    of a process would block the event loop while it reads thousands of tenants.
    """
    return dataclasses.replace(config, tenants=config.tenants[:2], tenant_by_name={})


def _unreadable() -> Refusal:
    return Refusal(503, "the process that reads large requests has ended", code="overloaded", retry_after_s=1)
