"""Calls of Redis while the server behind the address changes its role."""

import asyncio
from typing import Final

import pytest

from warmroute_proxy.server.redis import calls
from warmroute_proxy.server.redis.calls import RedisAway, RedisCalls

READ_ONLY: Final = b"-READONLY You can't write against a read only replica.\r\n"


async def test_after_a_failover_the_new_primary_is_used_though_the_old_one_keeps_its_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "RETRY_S", 0.0)
    servers = 0
    demoted = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal servers
        servers += 1
        first = servers == 1
        while count := (await reader.readline())[1:]:
            name, *_ = [await reader.readexactly(int((await reader.readline())[1:]) + 2) for _ in range(int(count))]
            evaluated = READ_ONLY if first and demoted else b":1\r\n"
            writer.write(evaluated if name.startswith(b"EVAL") else b"+OK\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        made = RedisCalls(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", 30.0)
        assert await made.run("return 1", ()) == 1
        demoted = True
        with pytest.raises(RedisAway, match="ReadOnly"):
            await made.run("return 1", ())
        assert await made.run("return 1", ()) == 1
        await made.close()
