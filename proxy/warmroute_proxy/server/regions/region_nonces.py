"""Forward tokens over several proxies: before a forwarded request begins, Redis says whether it was sent before.

A forwarded request waits for that call, `[redis] timeout_s` at most. Where Redis does not answer in that time the
request begins, its token known to its own proxy alone, and is counted: the region serves what it is asked, and until
Redis is back, who has read a token can use it once more at each other proxy, for 30 s.
"""

from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.background import BackgroundTasks
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.regions.forward_claim import CLOCKS_APART_S, VALID_S, Forward

KEPT_S: Final = 2 * VALID_S + CLOCKS_APART_S
"""A receiver whose clock lags accepts a token for up to twice its lifetime, and one that lags further for longer."""


class NonceStore(Protocol):
    """Where nonces are kept: `RedisNonces`."""

    async def spend(self, nonce: str, kept_s: float) -> bool: ...


class RegionNonces:
    """Asks for those of this process."""

    def __init__(self, store: NonceStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._tasks = BackgroundTasks()

    def spend(self, claim: Forward, answered: Callable[[bool], None]) -> None:
        """Use a claim's nonce. `answered` gets whether no other proxy is known to have done so."""
        self._tasks.start(self._spend(claim.nonce, answered))

    async def _spend(self, nonce: str, answered: Callable[[bool], None]) -> None:
        try:
            fresh = await self._store.spend(nonce, KEPT_S)
        except Exception:  # whatever it is, the request goes on
            self._metrics.add(declared.NONCES_MISSED_TOTAL)
            fresh = True
        answered(fresh)
