"""A bridge from the proxy's connections to an ASGI application, for the control plane.

The inference paths use no web framework. Pages and small JSON answers use FastAPI, on the ports of these connections
and within their limits. The bridge collects each answer, counts it in the memory budget for bodies (`body_memory`), and
sends it whole.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from warmroute_proxy.server.base.background import BackgroundTasks
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.turns import Turns
from warmroute_proxy.server.http.body_memory import BodyMemory
from warmroute_proxy.server.http.exchange import Exchange
from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class _Steps:
    """Runs a coroutine, and reports how long each of its steps holds the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], ran: Callable[..., None]) -> None:
        self._coroutine = coroutine
        self._ran = ran
        self._begun = False

    def __await__(self) -> Generator[Any, Any, None]:
        error: BaseException | None = None
        while True:
            began_s, first, self._begun = time.perf_counter(), not self._begun, True
            try:
                waits_for = self._coroutine.throw(error) if error is not None else self._coroutine.send(None)
            except StopIteration:
                return
            finally:
                self._ran(time.perf_counter() - began_s, first=first)
            error = None
            try:
                yield waits_for
            except BaseException as raised:
                error = raised

    def close(self) -> None:
        """Close the coroutine after its task has ended, even if no step has run."""
        self._coroutine.close()
        if not self._begun:
            self._begun = True
            self._ran(0.0, first=True)


async def _awaited(steps: _Steps) -> None:
    await steps


class Bridge:
    def __init__(self, app: App, state: dict[str, Any], memory: BodyMemory, turns: Turns) -> None:
        self._app = app
        self._state = state
        self._memory = memory
        self._turns = turns
        self._tasks = BackgroundTasks()  # bounded, since each connection has one exchange at a time

    def handle(
        self, exchange: Exchange, extra: dict[str, Any] | None = None, done: Callable[[], None] | None = None
    ) -> None:
        """Have the application answer one exchange. `extra`: added to the request's state. `done`: called after it."""
        if exchange.request.shared is not None:
            problem = f"{exchange.request.path[:200]} takes at most {LARGE_BYTES} bytes"
            exchange.refuse(Refusal(413, problem, code="request_too_large"))
            if done is not None:
                done()
            return
        self._turns.task_begun()
        ran = partial(self._turns.task_ran, exchange.request.tenant)
        steps = _Steps(self._run(exchange, extra or {}), ran)
        task = self._tasks.start(_awaited(steps))
        task.add_done_callback(lambda _task: steps.close())
        if done is not None:
            task.add_done_callback(lambda _task: done())

        def gone() -> None:
            task.cancel()

        exchange.on_gone = gone

    async def _run(self, exchange: Exchange, extra: dict[str, Any]) -> None:
        status, headers, parts = 500, [], list[bytes]()
        received = False

        async def receive() -> Message:
            nonlocal received
            if received:
                return {"type": "http.disconnect"}
            received = True
            return {"type": "http.request", "body": exchange.request.body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            else:
                parts.append(message.get("body", b""))

        try:
            await self._app(self._scope(exchange, extra), receive, send)
        except Exception:
            log.exception("control plane: %s %s failed", exchange.request.method, exchange.request.path)
            exchange.refuse(Refusal(500, "internal error", code="internal_error"))
            return
        request, body = exchange.request, b"".join(parts)
        if request.body_reservation is None:
            request.body_reservation = self._memory.reserve(request.tenant, 0)
        if request.body_reservation.add_answer(len(body)):
            exchange.respond(status, [(n, v) for n, v in headers if n.lower() != "content-length"], body)
        else:
            exchange.refuse(self._memory.refusal())

    def _scope(self, exchange: Exchange, extra: dict[str, Any]) -> Message:
        request = exchange.request
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.version,
            "method": request.method,
            "scheme": "http",
            "path": unquote(request.path),
            "raw_path": request.path.encode(),
            "query_string": request.query,
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()],
            "client": None,
            "server": None,
            "state": {**self._state, **extra},
        }
