"""Sets markers in Redis for requests with an Idempotency-Key: a process computes the answer, or has ended it.

    (no marker) ──claim──▶ running ──ended──▶ ended ──expires──▶ (no marker)

    running ──dropped, since the request failed and was charged nothing──▶ (no marker)
    running, by a process that is dead ──claim──▶ running, by the process that claims

A process shows that it is alive by a separate key, which expires `PROCESS_KEPT_S` after it was last set. So a killed
process gives up all its requests at once. A marker holds a keyed hash of the request's body, the region, and the id of
the receipt, but neither a client's key nor anything of a prompt. If Redis does not confirm that a marker was ended or
dropped, the change is sent again. Commands: EVAL, EVALSHA, SET, GET, EXISTS, DEL.
"""

import contextlib
import time
from typing import Final, NamedTuple

from warmroute_proxy.server.base.background import BackgroundTasks
from warmroute_proxy.server.redis.call_markers import Marker
from warmroute_proxy.server.redis.calls import RedisAway, RedisCalls

# A forward token lets another region's proxy forward one request, so the token's nonce (a random number) must be used
# only once. Redis has a key for each nonce that any proxy with this Redis has accepted; each token takes one call. A
# key has an empty value, and expires once its token is invalid anyway. Commands: EVAL, EVALSHA, SET with NX.

_SPEND: Final = "return redis.call('SET', KEYS[1], '', 'NX', 'PX', ARGV[1])"


class RedisNonces:
    """Marks nonces as used in Redis. Used in the event loop of requests."""

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls

    async def spend(self, nonce: str, kept_s: float) -> bool:
        """Use a nonce. Returns whether it was not used before within `kept_s`. Raises: RedisAway."""
        return await self._calls.run(_SPEND, (f"warmroute:forward:{nonce}",), round(kept_s * 1000)) is not None


PROCESS_KEPT_S: Final = 5.0
HEARTBEAT_S: Final = 1.0
MAX_UNSENT: Final = 10_000
"""How many changes of markers may wait for Redis; beyond this, the oldest are forgotten."""

_RUNNING: Final = "running"
CLAIM: Final = """
local found = redis.call('GET', KEYS[1])
if found then
  local process = string.match(found, '^running (%x+) ')
  local lives = process and 'warmroute:process:' .. process
  if not process or (lives ~= KEYS[2] and redis.call('EXISTS', lives) == 1) then return found end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
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
    """The change of one marker that has ended or is dropped."""

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
        """The names whose markers this process has set, or may have set if Redis did not answer."""

        self._unsent: dict[str, _Change] = {}
        self._sending = False
        self._shown_s = 0.0
        self._tasks = BackgroundTasks()

    async def claim(self, name: str, fingerprint: str, kept_s: float) -> Marker | None:
        """Mark a key to show that this process runs its request, unless another live process has the key, or the key's
        request has ended. Returns the marker that the key has already, or None if the new marker was set. Raises:
        RedisAway.

        `kept_s`: how long the new marker is kept at most.
        """
        keys = _CALL + name, _PROCESS + self._process
        times = _ms(kept_s), _ms(PROCESS_KEPT_S)
        self._unsent.pop(name, None)  # a change that waits belongs to an earlier request
        try:
            found = await self._calls.run(CLAIM, keys, self._value(fingerprint), *times)
        except RedisAway:
            self._running.add(name)  # Redis may have set the marker
            raise
        if found is None:
            self._running.add(name)
            return None
        state, of, theirs, region = found.decode().split(" ")
        return Marker(theirs, region, "" if state == _RUNNING else of)

    def ended(self, name: str, fingerprint: str, receipt_id: str, kept_s: float) -> None:
        """Mark in the background that the request has ended and may have been charged."""
        self._running.discard(name)
        ended = f"ended {receipt_id} {fingerprint} {self._region}"
        values = self._value(fingerprint), ended, _ms(kept_s)
        self._tasks.start(self._send(_Change(name, _END, values)))

    def dropped(self, name: str, fingerprint: str) -> None:
        """Delete in the background the marker that `claim` has set, since the request was not charged."""
        if name in self._running:
            self._running.discard(name)
            self._tasks.start(self._send(_Change(name, _DROP, (self._value(fingerprint),))))

    def sweep(self) -> None:
        """Show that this process is alive, as long as it runs a request with a key, and send unanswered changes again.

        While Redis is away, this process also tries to show that it is alive, by which it learns when Redis is back.
        Called a few times a second.
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
        """Change a marker, unless a newer request of this process has it. If Redis is away, keep the change and return
        False.
        """
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
