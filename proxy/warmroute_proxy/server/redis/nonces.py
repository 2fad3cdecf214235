"""Nonces of forward tokens that a proxy has accepted, over all that share a Redis: one call for each token.

A key holds nothing, and ends by itself once the token could not be used anyway. Commands: EVAL, EVALSHA, SET with NX.
"""

from typing import Final

from warmroute_proxy.server.redis.calls import RedisCalls

_SPEND: Final = "return redis.call('SET', KEYS[1], '', 'NX', 'PX', ARGV[1])"


class RedisNonces:
    """Used in the event loop of requests."""

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls

    async def spend(self, nonce: str, kept_s: float) -> bool:
        """Use a nonce: True the first time, False again within `kept_s`. Raises: RedisAway."""
        return await self._calls.run(_SPEND, (f"warmroute:forward:{nonce}",), round(kept_s * 1000)) is not None
