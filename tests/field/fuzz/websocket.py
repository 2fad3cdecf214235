"""Fuzz target: what a WebSocket of Responses makes of any bytes behind its handshake.

What must hold:
- no exception leaves the connection, and its memory is given back;
- the same bytes in other pieces are the same turns, and get the same events;
- all that is written is frames that `websockets`, as a client, reads without complaint, and each text an event;
- each turn that begins ends with one last event.
"""

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.field.fuzz.http1 import Transport
from tests.subjects.body_memory import plenty
from tests.subjects.read_slices import Lines
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from warmroute.contract import headers as names
from warmroute_proxy.dialects.work import TooMuch
from warmroute_proxy.server.arrival import translate
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.exchange import DialectExchange
from warmroute_proxy.server.dialects.open_conversations import OpenConversations
from warmroute_proxy.server.dialects.responses_socket import KeptConversations, ResponsesSocket
from warmroute_proxy.server.dialects.routes import dialect_for
from warmroute_proxy.server.dialects.socket_turn import TurnExchange
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.open_connections import OpenConnections
from warmroute_proxy.server.http.websocket import WebSocket
from warmroute_proxy.server.intake.caller import Caller

LIMITS = Limits(body_bytes=3_000)
SECRETS = Secrets(b"0123456789abcdef0123456789abcdef")
ENDS = ("response.completed", "response.failed", "response.incomplete")


class Tenant:
    """As much of a tenant and of a config as a translation looks at."""

    share_group = "t"
    unlisted_fields = "drop"

    def model_of(self, name: str) -> None: ...


class Echo:
    """Answers each turn with a word, or with why it is refused."""

    def __init__(self) -> None:
        here: Any = Tenant()
        self.terms = Terms(here, SECRETS, here)
        self.bodies: list[bytes] = []

    def on_head(self, request: Request) -> None:
        caller: Any = Caller.__new__(Caller)
        caller.tenant = self.terms.tenant
        request.caller = caller

    def handle(self, request: Request, exchange: Exchange) -> None:
        dialect = dialect_for(request)
        assert dialect is not None
        try:
            chat, found = translate(request, dialect, self.terms)
        except (Refusal, TooMuch) as error:
            exchange.refuse(error if isinstance(error, Refusal) else Refusal(413, "large", code="request_too_large"))
            return
        if isinstance(exchange, TurnExchange) and not exchange.dialect.asks:
            exchange.start(200, ())
            exchange.end(exchange.dialect.kept_answer())
            return
        self.bodies.append(bytes(chat.body))
        receipt = f"wr-{len(self.bodies):024}"
        answer = DialectExchange(exchange, chat, dialect, found)
        answer.start(200, [(names.RECEIPT, receipt)], b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
        answer.end(b"data: [DONE]\n\n")

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        return refusal

    def on_status(self, request: Request, status: int) -> None: ...


def run(pieces: list[bytes]) -> tuple[list[bytes], list[tuple[str, ...]], bytes]:
    """The chats of all turns, the kinds of the events, and what was written."""
    echo, transport, memory = Echo(), Transport(), plenty()
    connections = OpenConnections(echo, LIMITS, lambda: 0.0, memory)
    lines = connections.reads = Lines()
    kept, opened, offer = KeptConversations(memory), OpenConversations(lambda _: None, {}), Request(0.0)
    connections.use("t")
    socket = WebSocket(connections, "t", lambda made: ResponsesSocket(made, offer, kept, opened, lambda _: echo.terms))
    socket.connection_made(transport)  # type: ignore[arg-type]
    for piece in pieces:
        socket.data_received(piece)
        lines.go_on()
    socket.connection_lost(None)
    assert memory.budget.used == 0
    return echo.bodies, list(events_in(transport.written)), transport.written


def events_in(written: bytes) -> Iterator[tuple[str, ...]]:
    """What a client reads; frames that control have no place among them."""
    client = ClientProtocol(parse_uri("ws://x"), state=State.OPEN, max_size=None)
    client.receive_data(written)
    assert client.parser_exc is None, written
    for frame in client.events_received():
        assert isinstance(frame, Frame)
        if frame.opcode is Opcode.TEXT:
            event = json.loads(bytes(frame.data))
            error = event.get("error") or {}
            yield event["type"], event.get("stream_id", ""), str(error.get("code")), str(error.get("param"))


def check(data: bytes) -> None:
    """Raise `AssertionError` where the connection breaks a rule over `data`."""
    bodies, events, written = run([data])
    begun = sum(kind == "response.created" for kind, *_ in events)
    assert begun == sum(kind in ENDS for kind, *_ in events), (data, events)
    chance = random.Random(data[:64])
    edges = [0, *sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(1, 8))), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges) if start < end]
    assert run(pieces)[:2] == (bodies, events), (data, pieces)
    assert len(written) < 100_000 + 40 * len(data)
