"""What stands around a request's body costs the event loop no more than a chat of as many bytes: heads, chunks."""

import asyncio
import time

import pytest

from tests.field.fuzz.http1 import Echo, Transport
from tests.hostile.reading import read
from tests.hostile.test_worst_bodies import CHAT_BODY
from tests.subjects.body_memory import plenty
from tests.subjects.reading import receive
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.http1 import Connection
from warmroute_proxy.server.http.open_connections import OpenConnections
from warmroute_proxy.server.intake.parsed_request import CHAT

SIZE = len(CHAT_BODY)
MOST = 3.0
HEAD = b"POST /x HTTP/1.1\r\nhost: x\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
LIMITS = Limits()


class Short(Echo):
    """It answers in few bytes."""

    def handle(self, request: Request, exchange: Exchange) -> None:
        exchange.respond(200, [("content-type", "text/plain")], b"ok")


def many(head: bytes) -> bytes:
    return head * (SIZE // len(head) + 1)


ATTACKS: dict[str, bytes] = {
    "chunks of one byte": CHUNKED + b"1\r\nx\r\n" * (SIZE // 6),
    "chunks with extensions": CHUNKED + b"1;a=b;c=d;e=ffffffffffffffffffffff\r\nx\r\n" * (SIZE // 40),
    "chunks that are just large enough": CHUNKED + (b"100\r\n" + b"x" * 256 + b"\r\n") * (SIZE // 263),
    "an extension without end": CHUNKED + b"1;" + b"a" * SIZE,
    "a trailer without end": CHUNKED + b"0\r\n" + b"a: b\r\n" * (SIZE // 6),
    "a header without end": HEAD + b"a: " + b"b" * SIZE,
    "headers without end": HEAD + b"a: b\r\n" * (SIZE // 6),
    "heads of many bytes": many(HEAD + b"a: " + b"b" * 60_000 + b"\r\ncontent-length: 0\r\n\r\n"),
}


def cost_s(data: bytes) -> float:
    """CPU seconds of all that a connection is sent, until it is closed."""
    endpoint, transport = Short(), Transport()
    connections = OpenConnections(endpoint, LIMITS, time.monotonic, plenty())
    connections.endpoint, connections.handle = endpoint, endpoint.handle
    connection = Connection(connections)
    connection.connection_made(transport)  # type: ignore[arg-type]
    began_s = time.process_time()
    for at in range(0, len(data), 65_536):
        if transport.open:
            receive(connection, data[at : at + 65_536])
    took_s = time.process_time() - began_s
    connection.connection_lost(None)
    return took_s


@pytest.mark.parametrize("attack", ATTACKS)
async def test_it_costs_no_more_than_three_chats(attack: str) -> None:
    """2 MB of chunks of one byte took 0.4 s in one iteration of the loop."""
    await asyncio.sleep(0)
    ratio = min(cost_s(ATTACKS[attack]) / read(CHAT, CHAT_BODY).cost_s for _ in range(3))
    assert ratio <= MOST
