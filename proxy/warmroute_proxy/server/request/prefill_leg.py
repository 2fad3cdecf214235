"""The leg of a pair that goes to its prefill engine."""

from typing import TYPE_CHECKING, Final

from warmroute_proxy.server.engines.leg import Leg

if TYPE_CHECKING:
    from warmroute_proxy.server.request.attempt import Attempt, Owner

MAX_PREFILL_ANSWER_BYTES: Final = 4_194_304


class PrefillLeg(Leg):
    """Its answer is one token that nobody reads."""

    status = 0
    _size = 0
    _retry_after: str | None = None

    def __init__(self, attempt: "Attempt", owner: "Owner") -> None:
        self.parts: list[bytes] = []
        self._attempt: Attempt | None = attempt  # until it is told the end: they know each other
        self._owner = owner

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        if status != 200:
            self._retry_after = headers.get("retry-after")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= MAX_PREFILL_ANSWER_BYTES:
            self.parts.append(data)

    def on_end(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.prefill_answered(self.status, b"".join(self.parts), self._retry_after)

    def on_fail(self, reason: str) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.prefill_failed(reason)

    def on_crash(self) -> None:
        self._owner.crashed()

    def close(self) -> None:
        """Nothing more is told; the connection is closed."""
        self._attempt = None
        super().close()
