"""A connection to a database that does not answer in time."""

import asyncio
import gc
from typing import Any

import asyncpg
import pytest
from tests.machine import seconds

from warmroute_proxy.server.stores import database as databases
from warmroute_proxy.server.stores.database import Database
from warmroute_proxy.server.stores.store_state import Connection, StoreAway


def test_a_call_that_ends_while_it_connects_leaves_no_error_in_the_log() -> None:
    said: list[str] = []

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def ask(port: int, timeout_s: float) -> None:
        database = Database(f"postgresql://someone:secret@127.0.0.1:{port}/ledger")
        try:
            await database.call(nothing, timeout_s)
        except StoreAway:
            pass
        finally:
            await database.close()

    async def run() -> None:
        def note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            said.append(f"{context['message']}: {context.get('exception')!r}")

        asyncio.get_running_loop().set_exception_handler(note)
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        async with server:
            for number in range(400):
                await ask(server.sockets[0].getsockname()[1], number % 200 * 1e-5)
            gc.collect()

    asyncio.run(run())
    assert said == []


@pytest.mark.parametrize(
    ("error", "is_logged"), [(asyncpg.ConnectionDoesNotExistError("closed"), False), (ValueError("other"), True)]
)
def test_of_futures_that_nobody_reads_only_those_of_lost_connections_are_not_logged(
    caplog: pytest.LogCaptureFixture, error: Exception, is_logged: bool
) -> None:
    async def run() -> None:
        database = Database("postgresql://someone:secret@127.0.0.1:1/ledger")
        with pytest.raises(StoreAway):
            await database.call(nothing, seconds(5))
        asyncio.get_running_loop().create_future().set_exception(error)
        gc.collect()

    asyncio.run(run())
    assert bool(caplog.records) == is_logged


class Silent:
    """A connection to a server that says nothing once it is connected."""

    terminated = False

    async def fetchval(self, _query: str) -> None:
        await asyncio.Event().wait()

    def terminate(self) -> None:
        self.terminated = True


@pytest.mark.parametrize("closed", [True, False])
def test_no_connection_is_left_of_a_new_address_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, *, closed: bool
) -> None:
    made: list[Silent] = []

    async def run() -> None:
        connected = asyncio.Event()

        async def connect(_dsn: str, timeout: float) -> Silent:  # noqa: ASYNC109 - as asyncpg has it
            assert timeout > 0
            made.append(Silent())
            if closed or len(made) > 1:
                connected.set()
            return made[-1]

        monkeypatch.setattr(asyncpg, "connect", connect)
        if not closed:
            monkeypatch.setattr(databases, "CONNECT_S", 0.01)
            monkeypatch.setattr(databases, "RETRY_S", 0.0)
        database = Database("postgresql://someone:one@127.0.0.1:1/ledger")
        database.move_to("postgresql://someone:two@127.0.0.1:1/ledger")
        async with asyncio.timeout(seconds(5)):
            await connected.wait()
        await database.close()

    asyncio.run(run())
    assert made
    assert all(each.terminated for each in made)


async def nothing(_connection: Connection) -> None:
    raise AssertionError("nobody was connected")
