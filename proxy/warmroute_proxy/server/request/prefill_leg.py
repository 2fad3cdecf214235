"""The prefill leg of an attempt: the request to the prefill engine of a pair."""

from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.server.base.engine_refusals import NO_WAITS, Waits
from warmroute_proxy.server.engines.leg import Leg, in_parts
from warmroute_proxy.server.http.body_memory import UNCOUNTED_BYTES, BodyReservation
from warmroute_proxy.server.http.header_lines import Line

MAX_PREFILL_ANSWER_BYTES: Final = 4_194_304


class PrefillOwner(Protocol):
    def prefill_answered(self, status: int, body: bytes, waits: Waits) -> None: ...
    def prefill_failed(self, cause: Cause, reason: str) -> None: ...


class PrefillLeg:
    """Gathers the answer of a prefill engine. The answer's one token is dropped; its usage is read."""

    def __init__(self, owner: PrefillOwner, crashed: Callable[[], None], memory: BodyReservation | None) -> None:
        """`crashed`: called if the proxy itself fails. `memory`: counts the answer; if None, it is not counted."""
        self.leg = Leg(self)
        self.status = 0
        self.parts: list[bytes] = []
        self._size = 0
        self._waits = NO_WAITS
        self._owner: PrefillOwner | None = owner  # dropped at the end, since the two refer to each other
        self._crashed = crashed
        self._memory = memory

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        if status != 200:
            self._waits = Waits.of(headers)

    def on_body(self, data: bytes) -> None:
        """Keep a part of the answer, unless the answer is too long or memory is lacking: then its usage is unknown."""
        self._size += len(data)
        if self._size > MAX_PREFILL_ANSWER_BYTES:
            return
        if self._size > UNCOUNTED_BYTES and self._memory is not None and not self._memory.add_answer(len(data)):
            self._size += MAX_PREFILL_ANSWER_BYTES
            return
        self.parts.append(data)

    def holds(self, size_bytes: int) -> None:
        """Do nothing, since `on_body` bounds the whole answer."""

    def streams(self) -> None:
        """Always None, since the answer is gathered and not passed on as a stream."""

    def on_end(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.prefill_answered(self.status, b"".join(self.parts), self._waits)

    def on_whole(self, lines: list[Line], body: bytes, now_s: float) -> None:  # noqa: ARG002
        in_parts(self, lines, body)

    def on_fail(self, cause: Cause, reason: str) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.prefill_failed(cause, reason)

    def on_crash(self) -> None:
        self._crashed()

    def close(self) -> None:
        self._owner = None
        self.leg.close()
