"""Limits that proxies share in Redis: requests and tokens per minute, and concurrent requests.

Concurrent requests: the script `_HOLD` divides a limit's places among the processes as `core/queue/slots.py` says. The
remainder of the division goes to the processes in turn, for a second each, so that each process gets a place from time
to time even if there are fewer places than processes. The entry of a process that no longer asks expires by the clock
of Redis. Commands: EVAL, EVALSHA, TIME, HGETALL, HSET, HDEL, PEXPIRE.

Requests and tokens per minute: the script `_TAKE` takes an amount from what is left of a minute, or gives it back, in
one step, so that two proxies never get the same amount. Its keys hold only numbers, and expire after `KEPT_S`.
Commands: EVAL, EVALSHA, GET, INCRBY, EXPIRE.
"""

import math
from typing import Final

from warmroute_proxy.core.queue.budget import Budget, Span, Taken
from warmroute_proxy.core.queue.slots import LEASE_S, Held, SlotLimit
from warmroute_proxy.server.redis.calls import RedisCalls

_HOLD: Final = """
local me, running, wanted, limit, lease_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local others, wants = 0, {}
local fields = redis.call('HGETALL', KEYS[1])
for at = 1, #fields, 2 do
  local held, want, ends_ms = string.match(fields[at + 1], '^(%d+) (%d+) (%d+)$')
  if tonumber(ends_ms) <= now_ms then
    redis.call('HDEL', KEYS[1], fields[at])
  elseif fields[at] ~= me then
    others = others + tonumber(held)
    table.insert(wants, {tonumber(want), fields[at]})
  end
end
table.sort(wants, function(one, other) return one[1] < other[1] end)
local rest, parts, first = limit, #wants + 1, 1
while first <= #wants and wants[first][1] <= math.floor(rest / parts) do
  rest, parts, first = rest - wants[first][1], parts - 1, first + 1
end
local before = 0
for at = first, #wants do
  if wants[at][2] < me then before = before + 1 end
end
local share = math.floor(rest / parts)
if (before + time[1]) % parts < rest % parts then share = share + 1 end
local held = math.max(0, math.min(wanted, share, limit - others))
local recorded = math.max(running, held)
if wanted == 0 and running == 0 then
  redis.call('HDEL', KEYS[1], me)
else
  redis.call('HSET', KEYS[1], me, string.format('%d %d %d', recorded, wanted, now_ms + lease_ms))
  redis.call('PEXPIRE', KEYS[1], lease_ms)
end
return {held, math.max(0, limit - others - recorded)}
"""


KEPT_S: Final = 180
"""How long a minute's key is kept: longer than the minute itself."""

_TAKE: Final = """
local used = tonumber(redis.call('GET', KEYS[1]) or '0')
local taken = math.max(-used, math.min(tonumber(ARGV[1]), math.max(0, tonumber(ARGV[2]) - used)))
used = redis.call('INCRBY', KEYS[1], string.format('%d', taken))
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {math.max(0, taken), tonumber(ARGV[2]) - used}
"""


class RedisWindows:
    """Takes parts of limits per minute for this process. Used in the event loop of requests."""

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls

    async def take(self, budget: Budget, span: Span, amount: int, least: int = 0) -> Taken:
        """Take `amount` from a minute's limit, or what is left of it. If `amount` is negative, give it back.

        Raises: RedisAway.
        """
        del least  # always 0 for limits per minute
        key = f"warmroute:{budget.unit}:{budget.scope.kind}:{span.starts_s}:{budget.name}"
        taken, left = await self._calls.run(_TAKE, (key,), math.trunc(amount), budget.limit, KEPT_S)
        return Taken(int(taken), int(left))


class RedisSlots:
    """Asks for places under limits of concurrent requests, for one process."""

    def __init__(self, calls: RedisCalls, process: str, lease_s: float = LEASE_S) -> None:
        """`process`: a name that no other process of any proxy has."""
        self._lease_ms = math.ceil(lease_s * 1000)
        self._calls = calls
        self._process = process

    async def hold(self, slots: SlotLimit, running: int, wanted: int) -> Held:
        """Hold `wanted` places, or as many as this process may have. Raises: RedisAway.

        `running`: how many requests of this process run under the limit.
        """
        key = f"warmroute:slots:{slots.scope.kind}:{slots.scope.name}"
        values = self._process, running, wanted, slots.limit, self._lease_ms
        held, left = await self._calls.run(_HOLD, (key,), *values)
        return Held(int(held), int(left))
