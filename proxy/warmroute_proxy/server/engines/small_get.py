"""Small requests to a server, whose answers are gathered whole."""

import asyncio
from collections.abc import Callable
from typing import Final

from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.server.base.patience import Patience
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.engines.upstream import Upstream
from warmroute_proxy.server.http.body_memory import UNCOUNTED_BYTES, BodyReservation
from warmroute_proxy.server.http.header_lines import Line

LIMIT_BYTES: Final = 4_194_304
SMALL_BYTES: Final = 65_536
"""The limit of an answer of which the status matters, or a few fields."""

OWN_FAULT: Final = -1
"""The status if the proxy itself could not send the request, which says nothing about the other server."""


class Collector:
    """Gathers a small answer whole, and calls `done(status, body)`. Status 0: the answer is missing or too long, or
    there is no memory for it.
    """

    def __init__(
        self,
        done: Callable[[int, bytes], None],
        limit_bytes: int = LIMIT_BYTES,
        memory: BodyReservation | None = None,
    ) -> None:
        """`memory`: counts an answer above `UNCOUNTED_BYTES`, and nothing else; if None, no answer is counted."""
        self.leg = Leg(self)
        self._done = done
        self._limit_bytes = limit_bytes
        self._memory = memory
        self._status = 0
        self._size = 0
        self._parts: list[bytes] = []

    def on_head(self, status: int, headers: dict[str, str]) -> None:  # noqa: ARG002
        self._status = status

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._may_have(self._size):
            self._parts.append(data)
        else:
            self.leg.close()
            self._done(0, b"")

    def _may_have(self, size_bytes: int) -> bool:
        """Whether the answer may have `size_bytes`. Reserves memory for them."""
        if size_bytes > self._limit_bytes:
            return False
        return size_bytes <= UNCOUNTED_BYTES or self._memory is None or self._memory.cover(size_bytes)

    def holds(self, size_bytes: int) -> None:
        """Do nothing, since the size of the whole answer is bounded."""

    def streams(self) -> None:
        """Return None: the answer is gathered, not streamed."""

    def on_end(self) -> None:
        self._done(self._status, b"".join(self._parts))

    def on_whole(self, lines: list[Line], body: bytes, now_s: float) -> None:  # noqa: ARG002
        if self._may_have(len(body)):
            self._done(200, body)
        else:
            self._done(0, b"")

    def on_fail(self, cause: Cause, reason: str) -> None:  # noqa: ARG002
        self._done(OWN_FAULT if cause is Cause.OURS else 0, b"")

    def on_crash(self) -> None:
        """Do nothing, since the request will time out."""


async def ask(
    upstream: Upstream,
    path: str,
    headers: str = "",
    timeout_s: float = 2.0,
    limit_bytes: int = LIMIT_BYTES,
    memory: BodyReservation | None = None,
    *,
    method: str = "GET",
    body: bytes = b"",
) -> tuple[int, bytes]:
    """Send a request with a small body or without a body. Returns the status and body.

    Returns the status 0 and an empty body if no answer came in time, or its body exceeds `limit_bytes` or finds no
    memory; the status `OWN_FAULT` if the proxy could not send the request. `memory`: counts that body, for as long as
    the caller holds the reservation.
    """
    answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def done(status: int, body: bytes) -> None:
        if not answered.done():
            answered.set_result((status, body))

    leg = Collector(done, limit_bytes, memory).leg
    upstream.send(method, path, headers, [body] if body else [], leg)
    try:
        async with Patience(timeout_s):  # not wait_for, which in 3.11 can lose a cancellation, even at shutdown
            return await answered
    except TimeoutError:
        if answered.done() and not answered.cancelled():  # the answer came after all, while this process was held up
            return answered.result()
        leg.close()
        return 0, b""
    except asyncio.CancelledError:
        leg.close()
        raise
