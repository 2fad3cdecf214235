"""Calls scripts in Redis or Valkey. Each call has a deadline, and after a failure no call is made for `RETRY_S`."""

import asyncio
import logging
import time
from functools import cache
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import NoPermissionError, NoScriptError, RedisError, ResponseError

RETRY_S: Final = 1.0
MAX_CONNECTIONS: Final = 16
"""Further calls wait for a free connection, within their deadline."""

PROBE: Final = """
for _, step in ipairs({'SET _ 1 NX PX 1000', 'GET _', 'EXISTS _', 'INCRBY _ 1', 'EXPIRE _ 1', 'DEL _',
    'HSET _ a 1', 'HGETALL _', 'PEXPIRE _ 1000', 'HDEL _ a', 'TIME'}) do
  local words = {}
  for word in string.gmatch(step, '%S+') do table.insert(words, word == '_' and KEYS[1] or word) end
  redis.call(unpack(words))
end
"""
"""Runs each command that any script uses, on one key that it deletes again."""

PROBE_KEY: Final = "warmroute:probe"

_LOG: Final = logging.getLogger(__name__)
_FAILURES: Final = (RedisError, OSError, TimeoutError)


class RedisAway(RuntimeError):
    """Redis did not answer in time. The script may or may not have run."""


class RedisCalls:
    """The connections of one process. Used in the event loop of requests."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """`timeout_s`: the deadline of a call, including the time to connect. Raises: ValueError, if `url` is not the
        address of a Redis.
        """
        self._timeout_s = timeout_s
        self._url = url
        self._redis = self._client(url)
        self._moving: asyncio.Task[None] | None = None
        self._not_before_s = 0.0
        self.away = False
        """Whether Redis did not answer the last call."""

    def move_to(self, url: str) -> None:
        """Use another address as soon as a Redis answers there; until then, calls go to the old address. Raises:
        ValueError, as `__init__` does.
        """
        if url == self._url:
            return
        made = self._client(url)
        self._url = url
        if self._moving is not None:
            self._moving.cancel()
        self._moving = asyncio.get_running_loop().create_task(self._move(made))

    async def run(self, script: str, keys: tuple[str, ...], *values: str | int) -> Any:
        """Run a script, and return its result. Raises: RedisAway, if the call fails. For `RETRY_S` after a failure, it
        is raised without a call.
        """
        if time.monotonic() < self._not_before_s:
            raise RedisAway("it has just not answered")
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._evaluated(script, (len(keys), *keys, *values))
        except _FAILURES as error:
            text = _failure_text(error)
            if not self.away:
                _LOG.error("redis is away: %s", text)
            self.away, self._not_before_s = True, time.monotonic() + RETRY_S
            if isinstance(error, ResponseError):  # the address may lead to another server by now: this one is a replica
                for connection in [*self._redis.connection_pool._available_connections]:
                    await connection.disconnect(nowait=True)  # `pool.disconnect` waits for silent peers, and may raise
            raise RedisAway(text) from None
        if self.away:
            _LOG.info("redis answers again")
            self.away = False
        return found

    async def _evaluated(self, script: str, values: tuple[str | int, ...]) -> Any:
        """Send a script's hash; send the script itself if the server lacks it or allows only EVAL (by an ACL)."""
        try:
            return await self._redis.evalsha(_sha1(script), *values)
        except (NoScriptError, NoPermissionError):
            return await self._redis.eval(script, *values)

    async def close(self) -> None:
        if self._moving is not None:
            self._moving.cancel()
        await _close(self._redis)

    def _client(self, url: str) -> Any:
        timeout_s = self._timeout_s
        options: dict[str, Any] = {"socket_connect_timeout": timeout_s, "socket_timeout": timeout_s, "retry": None}
        pool = BlockingConnectionPool.from_url(url, max_connections=MAX_CONNECTIONS, timeout=timeout_s, **options)
        return Redis(connection_pool=pool)

    async def _move(self, made: Any) -> None:
        unused = made
        try:
            await self._until_answered(made)
            unused, self._redis, self._not_before_s = self._redis, made, 0.0
            _LOG.info("redis is used at its new address")
            await asyncio.sleep(self._timeout_s)  # until calls under way over the old client have ended
        finally:  # also if a move to another address cancels this one
            await _close(unused)

    async def _until_answered(self, made: Any) -> None:
        logged = False
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await made.eval("return 1", 0)
                return
            except Exception as error:  # any error: some bad addresses are noticed only when connecting
                if not logged:
                    _LOG.error("redis does not answer at its new address: %s", _failure_text(error))
                    logged = True
            await asyncio.sleep(RETRY_S)


async def _close(client: Any) -> None:
    await client.aclose()
    await client.connection_pool.disconnect()


def _failure_text(error: BaseException) -> str:
    text = "it does not answer in time" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0][:300]


@cache
def _sha1(script: str) -> str:
    """The hash by which Redis knows a script. Cached, since scripts are constants."""
    return sha1(script.encode(), usedforsecurity=False).hexdigest()
