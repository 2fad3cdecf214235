"""Lets processes and proxies know of each other's requests with an Idempotency-Key, by markers in Redis.

Before a request with a key begins, it waits until Redis has set a marker for the key, `[redis] timeout_s` at most. If
Redis does not answer in that time, the request begins without a marker, and a metric counts it. If another process has
set a marker for the key, the request is refused, since only that process has the answer.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from warmroute_proxy.core.accounting.idempotency import IdempotentCall
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.background import BackgroundTasks
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics

LONGER_S: Final = 60.0
"""The marker of a running request is kept for the longest time that the request may take, plus this time."""


class Marker(NamedTuple):
    """A process' note in Redis that it has a key. `receipt_id`: empty as long as the request runs."""

    fingerprint: str
    region: str
    receipt_id: str


class MarkerStore(Protocol):
    """The store of markers, which is `RedisMarkers`."""

    async def claim(self, name: str, fingerprint: str, kept_s: float) -> Marker | None: ...
    def ended(self, name: str, fingerprint: str, receipt_id: str, kept_s: float) -> None: ...
    def dropped(self, name: str, fingerprint: str) -> None: ...


class CallMarkers:
    def __init__(self, store: MarkerStore, secret: bytes, limits: Limits, ended_s: float, metrics: Metrics) -> None:
        """`secret`: one secret for all proxies, by which keys and bodies are hashed. `ended_s`: how long the marker of
        an ended request is kept.
        """
        self.secret = secret
        self._store = store
        self._running_s = limits.total_timeout_s + LONGER_S
        self._ended_s = ended_s
        self._metrics = metrics
        self._tasks = BackgroundTasks()

    def claim(self, call: IdempotentCall, answered: Callable[[Refusal | None], None]) -> None:
        """Ask whether the request of a call may begin. `answered` gets None if it may, otherwise a refusal."""
        self._tasks.start(self._claim(call, answered))

    def ended(self, call: IdempotentCall, receipt_id: str) -> None:
        """Mark a call's request as ended. The request may have been charged."""
        self._store.ended(*self._names(call), receipt_id, self._ended_s)

    def dropped(self, call: IdempotentCall) -> None:
        self._store.dropped(*self._names(call))

    async def _claim(self, call: IdempotentCall, answered: Callable[[Refusal | None], None]) -> None:
        name, fingerprint = self._names(call)
        refusal = None
        try:
            marker = await self._store.claim(name, fingerprint, self._running_s)
        except Exception:  # no error of Redis keeps a request from beginning
            self._metrics.add(declared.MARKERS_MISSED_TOTAL)
        else:
            refusal = None if marker is None else _refusal(marker, fingerprint)
        if refusal is not None:
            self._metrics.add(declared.MARKER_REFUSALS_TOTAL, labels=(("code", refusal.code or ""),))
        answered(refusal)

    def _names(self, call: IdempotentCall) -> tuple[str, str]:
        body = blake2b(call.key + call.body.to_bytes(8, "big"), digest_size=8, key=self.secret)
        return call.key.hex(), body.hexdigest()


def _refusal(marker: Marker, fingerprint: str) -> Refusal:
    if marker.fingerprint != fingerprint:
        return body_differs()
    if not marker.receipt_id:
        problem = (
            f"another proxy process (region {marker.region}) computes the answer under this Idempotency-Key; a retry"
            " that reaches it joins, and if it fails the next retry is a new try"
        )
        return Refusal(409, problem, code="idempotency_key_running", retry_after_s=1)
    problem = (
        f"another proxy process (region {marker.region}) has answered under this Idempotency-Key, with the receipt"
        f" {marker.receipt_id}; send a new key to have it computed, and charged, again"
    )
    return Refusal(409, problem, code="idempotency_key_spent", headers=(("x-warmroute-receipt", marker.receipt_id),))


def body_differs() -> Refusal:
    """The refusal of a request that uses a known key with another body."""
    problem = "another body was sent under this Idempotency-Key; a retry repeats the body, a new call has a new key"
    return Refusal(422, problem, code="idempotency_key_reused")
