"""Many small frames over many WebSockets: an iteration of the event loop handles few of them.

What is counted is the frames that are found between two turns of the loop, since times depend on the machine.
"""

import asyncio

import pytest
import uvloop
from websockets.frames import Frame, Opcode

from tests.subjects.body_memory import plenty
from tests.unit.server.test_arrival import Endpoint
from tests.unit.server.test_websocket import LIMITS, Application, Clock, Transport
from warmroute_proxy.server.http.frames import MAX_FRAMES, SLICE_BYTES, Messages
from warmroute_proxy.server.http.open_connections import OpenConnections
from warmroute_proxy.server.http.read_slices import GO_ON
from warmroute_proxy.server.http.websocket import FRAMES_AT_ONCE, WebSocket

SOCKETS = 64
SMALLEST_FRAME_BYTES = 6
A_TURN = FRAMES_AT_ONCE + SLICE_BYTES // SMALLEST_FRAME_BYTES + 1
"""The most frames that one connection may have handled at once."""


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


SENT = {
    "pings": frame(Opcode.PING) * 1_000,
    "large pings": frame(Opcode.PING, b"x" * 125) * 500,
    "pongs": frame(Opcode.PONG) * 1_000,
    "parts of a message": frame(Opcode.TEXT, fin=False) + frame(Opcode.CONT, fin=False) * 999,
    "empty texts": frame(Opcode.TEXT) * 1_000,
    "pings before each text": (frame(Opcode.PING) * 31 + frame(Opcode.TEXT)) * 31,
    "too many pings": frame(Opcode.PING) * (2 * MAX_FRAMES),
}


class Place:
    """Connections of two tenants, and the frames that were found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections = OpenConnections(Endpoint(), LIMITS, Clock(), plenty())
        self.found = 0
        counts = Messages._count_found

        def counted(messages: Messages, frames: int) -> None:
            self.found += frames
            counts(messages, frames)

        monkeypatch.setattr(Messages, "_count_found", counted)

    def socket(self, tenant: str) -> tuple[WebSocket, list[bytes]]:
        """A connection, and the messages that it has brought."""
        made: list[Application] = []

        def application(socket: WebSocket) -> Application:
            made.append(Application(socket))
            return made[0]

        self.connections.use(tenant)
        socket = WebSocket(self.connections, tenant, application)
        socket.connection_made(Transport())  # type: ignore[arg-type]
        return socket, made[0].messages


@pytest.mark.parametrize("name", SENT)
def test_an_iteration_of_the_loop_handles_few_frames(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    async def flood() -> None:
        place = Place(monkeypatch)
        for _ in range(SOCKETS):
            place.socket("hostile")[0].data_received(SENT[name])
        assert place.found <= A_TURN
        innocent, messages = place.socket("innocent")
        innocent.data_received(frame(Opcode.TEXT, b"a turn"))
        assert messages == [b"a turn"]
        found, idle = place.found, 0
        while idle < 3:  # iterations in which no frame was found
            await asyncio.sleep(0)
            assert place.found - found <= GO_ON * A_TURN
            found, idle = place.found, 0 if place.found > found else idle + 1
        assert found > SOCKETS * MAX_FRAMES / 3

    uvloop.run(flood())
