"""Limits by the minute over several proxies, in Redis or Valkey: slices of each minute are taken from one number.

A script takes or gives back, so that two proxies never take the same. Its keys hold nothing but numbers, and end by
themselves some minutes later. Commands: EVAL, GET, INCRBY, EXPIRE.
"""

import asyncio
import math
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from warmroute_proxy.core.queue.budget import Budget, Span, Taken
from warmroute_proxy.server.stores.store_state import StoreAway

CALL_S: Final = 0.25
"""The deadline of a call; a request that waits for its first slice waits for no longer."""

KEPT_S: Final = 180
_TAKE: Final = """
local used = tonumber(redis.call('GET', KEYS[1]) or '0')
local taken = math.max(-used, math.min(tonumber(ARGV[1]), math.max(0, tonumber(ARGV[2]) - used)))
used = redis.call('INCRBY', KEYS[1], string.format('%d', taken))
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {math.max(0, taken), math.max(0, tonumber(ARGV[2]) - used)}
"""


class RedisWindows:
    """Takes slices. Used in the event loop of requests."""

    def __init__(self, url: str) -> None:
        """Raises: ValueError, where it is no address of a Redis."""
        self._redis: Any = Redis.from_url(url, socket_connect_timeout=CALL_S, socket_timeout=CALL_S, retry=None)

    async def take(self, budget: Budget, span: Span, amount: int) -> Taken:
        """Take so much of a minute, or what is left; below 0: give it back. Raises: StoreAway."""
        key = f"warmroute:{budget.unit}:{span.starts_s}:{budget.name}"
        try:
            async with asyncio.timeout(CALL_S):
                taken, left = await self._redis.eval(_TAKE, 1, key, math.trunc(amount), budget.limit, KEPT_S)
        except (RedisError, OSError, TimeoutError) as error:
            text = (
                "it does not answer in time" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
            )
            raise StoreAway(text.splitlines()[0][:300]) from None
        return Taken(int(taken), int(left))

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
