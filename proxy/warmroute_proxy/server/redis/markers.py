"""Markers in Redis of requests with an Idempotency-Key: a process computes the answer, or has ended it.

    (none) ──claim──▶ running ──ended──▶ ended ──(its time)──▶ (none)
                      │    ▲
                      │    └──claim, where the process that runs it shows no life──┐
                      └──dropped: it failed, and was charged nothing──▶ (none)     └─ running, by another one

A process shows that it lives by a key of its own, which expires `PROCESS_KEPT_S` after it was last set. So a killed
process gives up all of its requests at once. A marker holds a keyed hash of the body, the region, and the id of the
receipt, but no key of a client, and nothing of a prompt. An end or a drop that Redis did not answer is sent again.
Commands: EVAL, EVALSHA, SET with NX and GET, GET, EXISTS, DEL.
"""

import contextlib
import time
from typing import Final, NamedTuple

from warmroute_proxy.server.base.background import BackgroundTasks
from warmroute_proxy.server.redis.call_markers import Marker
from warmroute_proxy.server.redis.calls import RedisAway, RedisCalls

# Nonces of forward tokens that any of the proxies with this Redis has accepted: one call for each token.
#
# A key has an empty value, and expires once its token is invalid anyway. Commands: EVAL, EVALSHA, SET with NX.

_SPEND: Final = "return redis.call('SET', KEYS[1], '', 'NX', 'PX', ARGV[1])"


class RedisNonces:
    """Spends nonces in Redis. Used in the event loop of requests."""

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls

    async def spend(self, nonce: str, kept_s: float) -> bool:
        """Use a nonce: True the first time, False again within `kept_s`. Raises: RedisAway."""
        return await self._calls.run(_SPEND, (f"warmroute:forward:{nonce}",), round(kept_s * 1000)) is not None


PROCESS_KEPT_S: Final = 5.0
HEARTBEAT_S: Final = 1.0
MAX_UNSENT: Final = 10_000
"""The most ends and drops that wait for Redis; beyond it, the oldest are forgotten."""

_RUNNING: Final = "running"
_CLAIM: Final = """
local found = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
if found then
  local process = string.match(found, '^running (%x+) ')
  local lives = process and 'warmroute:process:' .. process
  if not process or (lives ~= KEYS[2] and redis.call('EXISTS', lives) == 1) then return found end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
redis.call('SET', KEYS[2], '', 'PX', ARGV[3])
return false
"""
_END: Final = """
local found = redis.call('GET', KEYS[1])
if not found or found == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
"""
_DROP: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""
_LIVE: Final = "redis.call('SET', KEYS[1], '', 'PX', ARGV[1])"
_CALL: Final = "warmroute:call:"
_PROCESS: Final = "warmroute:process:"


class _Change(NamedTuple):
    """An end or a drop of one marker."""

    name: str
    script: str
    values: tuple[str | int, ...]


class RedisMarkers:
    """The markers of one process. Used in the event loop of requests."""

    def __init__(self, calls: RedisCalls, process: str, region: str) -> None:
        """`process`: a name in hex that no other process has."""
        self._calls = calls
        self._process = process
        self._region = region
        self._running: set[str] = set()
        """The names whose markers this process has set, or may have set."""

        self._unsent: dict[str, _Change] = {}
        self._sending = False
        self._shown_s = 0.0
        self._tasks = BackgroundTasks()

    async def claim(self, name: str, fingerprint: str, kept_s: float) -> Marker | None:
        """Mark a key to show that this process runs its request, unless the key has a marker. Raises: RedisAway.

        Returns the marker that the key has already, or None if the new one was set. `kept_s`: how long the new marker
        is kept at most.
        """
        keys = _CALL + name, _PROCESS + self._process
        times = _ms(kept_s), _ms(PROCESS_KEPT_S)
        self._unsent.pop(name, None)  # that change is of an earlier try
        try:
            found = await self._calls.run(_CLAIM, keys, self._value(fingerprint), *times)
        except RedisAway:
            self._running.add(name)  # Redis may have set it
            raise
        if found is None:
            self._running.add(name)
            return None
        state, of, theirs, region = found.decode().split(" ")
        return Marker(theirs, region, "" if state == _RUNNING else of)

    def ended(self, name: str, fingerprint: str, receipt_id: str, kept_s: float) -> None:
        """Mark in the background that the request has ended, and may be charged."""
        self._running.discard(name)
        ended = f"ended {receipt_id} {fingerprint} {self._region}"
        values = self._value(fingerprint), ended, _ms(kept_s)
        self._tasks.start(self._send(_Change(name, _END, values)))

    def dropped(self, name: str, fingerprint: str) -> None:
        """Delete in the background the marker that `claim` has set: the request was charged nothing."""
        if name in self._running:
            self._running.discard(name)
            self._tasks.start(self._send(_Change(name, _DROP, (self._value(fingerprint),))))

    def sweep(self) -> None:
        """Show that this process lives, while it runs a request with a key. Send unanswered changes again.

        While Redis is away, this process shows itself, too, so that it finds out when Redis is back. Called a few times
        a second.
        """
        now_s = time.monotonic()
        if (self._running or self._calls.away) and now_s - self._shown_s >= HEARTBEAT_S:
            self._shown_s = now_s
            self._tasks.start(self._show())
        if self._unsent and not self._sending and not self._calls.away:
            self._sending = True
            self._tasks.start(self._send_again())

    def _value(self, fingerprint: str) -> str:
        return f"{_RUNNING} {self._process} {fingerprint} {self._region}"

    async def _show(self) -> None:
        with contextlib.suppress(RedisAway):
            await self._calls.run(_LIVE, (_PROCESS + self._process,), _ms(PROCESS_KEPT_S))

    async def _send(self, change: _Change) -> bool:
        """Change a marker, unless a newer request has it. Returns False, and keeps the change, if Redis is away."""
        if change.name in self._running:
            return True
        try:
            await self._calls.run(change.script, (_CALL + change.name,), *change.values)
        except RedisAway:
            self._unsent[change.name] = change
            if len(self._unsent) > MAX_UNSENT:
                del self._unsent[next(iter(self._unsent))]
            return False
        return True

    async def _send_again(self) -> None:
        try:
            while self._unsent and await self._send(self._unsent.pop(next(iter(self._unsent)))):
                pass
        finally:
            self._sending = False


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
