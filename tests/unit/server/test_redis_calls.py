"""Calls of Redis while the server behind the address changes its role."""

import asyncio
from pathlib import Path
from typing import Final

import pytest
from tests.certificates import make

from warmroute_proxy.server.http.tls import Tls
from warmroute_proxy.server.redis import calls
from warmroute_proxy.server.redis.calls import RedisAway, RedisCalls

READ_ONLY: Final = b"-READONLY You can't write against a read only replica.\r\n"


async def test_after_a_failover_the_new_primary_is_used_though_the_old_one_keeps_its_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The old one answers on one connection, and does not even close the other one."""
    monkeypatch.setattr(calls, "RETRY_S", 0.0)
    old: list[asyncio.StreamWriter] = []
    demoted = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not demoted:
            old.append(writer)
        while count := (await reader.readline())[1:]:
            name, *_ = [await reader.readexactly(int((await reader.readline())[1:]) + 2) for _ in range(int(count))]
            evaluated = b":1\r\n"
            if demoted and writer in old:
                evaluated = READ_ONLY
                next(each for each in old if each is not writer).transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(evaluated if name.startswith(b"EVAL") else b"+OK\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", ssl=Tls(*make(tmp_path, "redis")).context) as server:
        port = server.sockets[0].getsockname()[1]
        made = RedisCalls(f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=none&ssl_check_hostname=false", 30.0)
        assert await asyncio.gather(*[made.run("return 1", ()) for _ in range(2)]) == [1, 1]
        assert len(old) == 2
        demoted = True
        with pytest.raises(RedisAway, match="ReadOnly"):
            await made.run("return 1", ())
        assert await made.run("return 1", ()) == 1
        await made.close()
        for each in old:
            each.transport.abort()
