"""Limits by the minute over several proxies: slices of each minute are taken from one number.

A script takes or gives back, so that two proxies never take the same. Its keys hold nothing but numbers, and end by
themselves some minutes later. Commands: EVAL, EVALSHA, GET, INCRBY, EXPIRE.
"""

import math
from typing import Final

from warmroute_proxy.core.queue.budget import Budget, Span, Taken
from warmroute_proxy.server.redis.calls import RedisCalls

KEPT_S: Final = 180
_TAKE: Final = """
local used = tonumber(redis.call('GET', KEYS[1]) or '0')
local taken = math.max(-used, math.min(tonumber(ARGV[1]), math.max(0, tonumber(ARGV[2]) - used)))
used = redis.call('INCRBY', KEYS[1], string.format('%d', taken))
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {math.max(0, taken), tonumber(ARGV[2]) - used}
"""


class RedisWindows:
    """Takes slices. Used in the event loop of requests."""

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls

    async def take(self, budget: Budget, span: Span, amount: int, least: int = 0) -> Taken:
        """Take so much of a minute, or what is left; below 0: give it back. Raises: RedisAway."""
        del least  # what is in debt has to be taken, whatever is left
        key = f"warmroute:{budget.unit}:{budget.scope.kind}:{span.starts_s}:{budget.name}"
        taken, left = await self._calls.run(_TAKE, (key,), math.trunc(amount), budget.limit, KEPT_S)
        return Taken(int(taken), int(left))
