"""Asks Redis whether another proxy of the region has already accepted the token of a forwarded request.

A forwarded request waits for Redis before it begins, `[redis] timeout_s` at most. If Redis does not answer in that
time, the request begins, a metric counts it, and only this proxy knows that its token was used. So until Redis is back,
anybody who has read a token can use it once more at each other proxy, for 30 s.
"""

from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.background import BackgroundTasks
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.regions.forward_claim import CLOCKS_APART_S, VALID_S, Forward

KEPT_S: Final = 2 * VALID_S + CLOCKS_APART_S
"""How long a token's nonce is kept. A proxy whose clock lags accepts a token for `2 * VALID_S` or a little longer."""


class NonceStore(Protocol):
    """The store of used nonces, which is `RedisNonces`."""

    async def spend(self, nonce: str, kept_s: float) -> bool: ...


class RegionNonces:
    def __init__(self, store: NonceStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._tasks = BackgroundTasks()

    def spend(self, claim: Forward, answered: Callable[[bool], None]) -> None:
        """Mark a claim's nonce as used. `answered` gets False if another proxy has used it before, otherwise True."""
        self._tasks.start(self._spend(claim.nonce, answered))

    async def _spend(self, nonce: str, answered: Callable[[bool], None]) -> None:
        try:
            fresh = await self._store.spend(nonce, KEPT_S)
        except Exception:  # no error of Redis keeps a request from beginning
            self._metrics.add(declared.NONCES_MISSED_TOTAL)
            fresh = True
        answered(fresh)
