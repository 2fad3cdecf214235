"""A connection after its upgrade: messages from frames, its limits and deadlines, and how it ends."""

import struct
from typing import Any

import pytest
from tests.subjects.body_memory import plenty
from tests.subjects.read_slices import Lines
from websockets.frames import Frame, Opcode

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.body_memory import BodyMemory, BodyReservation
from warmroute_proxy.server.http.frames import MAX_FRAMES, MAX_LATE_BYTES, text_frame
from warmroute_proxy.server.http.open_connections import BUSY, OpenConnections
from warmroute_proxy.server.http.websocket import AT_ONCE, FRAMES_AT_ONCE, MAX_OPEN_S, PING_S, WebSocket

from .test_arrival import Endpoint

LIMITS = Limits(body_bytes=100_000, body_timeout_s=10.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Transport:
    """Keeps what is written. A mock, for its clock and for a client that does not read."""

    def __init__(self) -> None:
        self.written = b""
        self.writes = 0
        self.how = ""
        self.reads = True
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.written += data
        self.writes += 1

    def write_eof(self) -> None:
        self.how = "eof"

    def close(self) -> None:
        self.how = "close"

    def abort(self) -> None:
        self.how = "abort"

    def is_closing(self) -> bool:
        return self.how != ""

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_extra_info(self, _name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Application:
    """Keeps what it is told."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self.busy = False
        self.messages: list[bytes] = []
        self.told: list[Any] = []

    def message(self, raw: bytes, began_s: float, reservation: BodyReservation) -> None:
        assert reservation.body_bytes >= len(raw)
        assert raw != b"an error of ours"
        self.messages.append(raw)

    def refused(self, refusal: Refusal) -> None:
        self.told.append(refusal.code)

    def expired(self) -> None:
        self.told.append("expired")

    def pause(self, paused: bool) -> None:
        self.told.append(paused)

    def gone(self, *, by_client: bool) -> None:
        self.told.append("left by its client" if by_client else "gone")


class Scene:
    """One connection."""

    def __init__(self, memory: BodyMemory | None = None) -> None:
        self.clock = Clock()
        self.memory = memory or plenty()
        self.connections = OpenConnections(Endpoint(), LIMITS, self.clock, self.memory)
        self.lines = self.connections.reads = Lines()
        self.transport = Transport()
        self.made: list[Application] = []
        self.connections.use("tenant")
        self.socket = WebSocket(self.connections, "tenant", self._application)
        self.socket.connection_made(self.transport)  # type: ignore[arg-type]

    def _application(self, socket: WebSocket) -> Application:
        self.made.append(Application(socket))
        return self.made[0]

    @property
    def application(self) -> Application:
        return self.made[0]

    def later(self, seconds: float) -> None:
        """Let time pass; a sweep looks each second."""
        self.clock.now_s += seconds
        self.connections.sweep()

    def close_code(self) -> int:
        """The code of the close frame that was written last."""
        at = self.transport.written.rindex(b"\x88")
        return int(struct.unpack("!H", self.transport.written[at + 2 : at + 4])[0])


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


PING = frame(b"are you there", Opcode.PING)
PIECES = frame(b"one ", fin=False) + PING + frame(b"two ", Opcode.CONT, fin=False) + frame(b"three", Opcode.CONT)

LONG_HEAD = b"\x81\xff" + struct.pack("!Q", 3) + bytes(4) + b"odd"
"""A length in eight bytes that one would do for."""


@pytest.mark.parametrize("size", [1, 3, 10_000, 60_000])
def test_messages_come_whole_however_they_are_cut(size: int) -> None:
    scene = Scene()
    data = frame(b"first") + PIECES + frame(b"x" * 70_000) + LONG_HEAD + frame(b"")
    for at in range(0, len(data), size):
        scene.socket.data_received(data[at : at + size])
    assert scene.application.messages == [b"first", b"one two three", b"x" * 70_000, b"odd", b""]
    assert scene.transport.written == Frame(Opcode.PONG, b"are you there").serialize(mask=False)
    assert scene.memory.budget.used == 0


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_a_message_is_written_as_the_library_would(size: int) -> None:
    text = b"x" * size
    assert text_frame(text) == Frame(Opcode.TEXT, text).serialize(mask=False)


LEAVES = {
    "by a close frame": ([frame(b"\x03\xe8", Opcode.CLOSE)], True),
    "by one that has no code": ([frame(b"", Opcode.CLOSE)], True),
    "without a word": ([], True),
    "for an error of its own": ([frame(b"\x03\xf3", Opcode.CLOSE)], False),
    "for an error of the frames": ([text_frame(b"x"), frame(b"\x03\xea", Opcode.CLOSE)], False),
}


@pytest.mark.parametrize("how", LEAVES)
def test_it_is_known_whether_a_client_is_done_with_a_connection(how: str) -> None:
    scene = Scene()
    pieces, leaves = LEAVES[how]
    for piece in pieces:
        scene.socket.data_received(piece)
    scene.socket.connection_lost(None)
    assert scene.application.told[-1] == ("left by its client" if leaves else "gone")


@pytest.mark.parametrize("how", ["an error", "a shutdown", "another connection", "a client that does not read"])
def test_a_connection_that_its_client_has_not_ended_is_only_gone(how: str) -> None:
    scene = Scene()
    if how == "a shutdown":
        scene.socket.close_when_idle()
        scene.socket.data_received(frame(b"\x03\xe9", Opcode.CLOSE))
    elif how == "another connection":
        scene.socket.make_way()
    elif how == "a client that does not read":
        scene.socket.abort()
    scene.socket.connection_lost(ConnectionResetError() if how == "an error" else None)
    assert scene.application.told[-1] == "gone"


BROKEN = {
    "not masked": (text_frame(b"x"), 1002),
    "reserved bits": (b"\xf1\x80\0\0\0\0", 1002),
    "an unknown opcode": (b"\x83\x80\0\0\0\0", 1002),
    "nothing to continue": (frame(b"x", Opcode.CONT), 1002),
    "a message within a message": (frame(b"x", fin=False) + frame(b"y"), 1002),
    "a fragmented ping": (b"\x09\x81\0\0\0\0x", 1002),
    "a long ping": (b"\x89\xfe\x00\xff\0\0\0\0" + b"x" * 255, 1002),
    "too large": (b"\x81\xff" + struct.pack("!Q", 2**62) + bytes(4), 1009),
    "too large in pieces": (frame(b"x" * 60_000, fin=False) + frame(b"x" * 60_000, Opcode.CONT), 1009),
    "not a text": (frame(b"x", Opcode.BINARY), 1003),
    "many small frames": (frame(b"", fin=False) + frame(b"", Opcode.CONT, fin=False) * MAX_FRAMES, 1008),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_message_ends_the_connection(name: str) -> None:
    scene = Scene()
    data, code = BROKEN[name]
    scene.socket.data_received(data)
    scene.lines.go_on()
    assert (scene.application.messages, scene.close_code(), scene.transport.how) == ([], code, "eof")
    scene.socket.data_received(frame(b"more"))  # is dropped for a moment
    scene.later(3.0)
    assert (scene.application.messages, scene.transport.how) == ([], "abort")


def test_what_is_too_large_is_told_behind_what_came_before() -> None:
    scene = Scene()
    scene.socket.data_received(frame(b"first") + frame(b"x" * (LIMITS.body_bytes + 1)))
    assert (scene.application.messages, scene.application.told) == ([b"first"], ["request_too_large"])
    assert scene.close_code() == 1009


def test_messages_of_one_read_are_taken_by_and_by() -> None:
    scene = Scene()
    texts = [b"%d" % number for number in range(3 * AT_ONCE)]
    scene.socket.data_received(b"".join(map(frame, texts)) + frame(b"x" * 500)[:300])
    assert (len(scene.application.messages), scene.transport.reads) == (AT_ONCE, False)
    assert scene.memory.budget.used > 300  # what waits counts
    assert scene.socket.idle_since_s == BUSY
    scene.lines.go_on()
    assert (scene.application.messages, scene.transport.reads) == (texts, True)
    scene.socket.connection_lost(None)
    assert scene.memory.budget.used == 0


def test_what_waits_is_taken_once_the_client_reads() -> None:
    scene = Scene()
    scene.socket.data_received(frame(b"x") * (2 * AT_ONCE) + Frame(Opcode.CLOSE, b"").serialize(mask=True))
    scene.socket.pause_writing()
    scene.lines.go_on()
    assert (len(scene.application.messages), scene.transport.reads) == (AT_ONCE, False)
    scene.socket.resume_writing()
    scene.lines.go_on()
    assert (len(scene.application.messages), scene.transport.how) == (2 * AT_ONCE, "eof")


def test_pings_are_answered_in_few_writes() -> None:
    scene = Scene()
    scene.socket.data_received(PING * 200)
    scene.lines.go_on()
    assert scene.transport.written.count(b"are you there") == 200
    assert scene.transport.writes <= 200 / FRAMES_AT_ONCE + 1


def test_an_error_of_ours_ends_one_connection() -> None:
    scene = Scene()
    scene.socket.data_received(frame(b"x") * AT_ONCE + frame(b"an error of ours"))
    scene.lines.go_on()  # as for all others that wait
    assert scene.transport.how == "abort"


def test_nothing_piles_up_behind_the_end() -> None:
    scene = Scene(BodyMemory(50_000, 2, [0]))
    whole = frame(b"x" * 90_000)
    for at in range(0, 80_000, 1_000):
        scene.socket.data_received(whole[at : at + 1_000])
    assert scene.close_code() == 1013
    assert len(scene.socket._protocol.reader.buffer) <= 30_000 + MAX_LATE_BYTES


def test_the_end_of_the_client_is_found_behind_that_of_the_server() -> None:
    scene = Scene()
    scene.socket.close_when_idle()
    assert (scene.close_code(), scene.transport.how) == (1001, "")
    scene.socket.data_received(frame(b"too late") + Frame(Opcode.CLOSE, struct.pack("!H", 1001)).serialize(mask=True))
    assert (scene.application.messages, scene.transport.how) == ([], "eof")


def test_memory_of_an_answer_is_given_back_once_it_is_read() -> None:
    scene = Scene()
    scene.transport.unsent = 100_000
    scene.socket.release(scene.memory.reserve("tenant", 1000))
    scene.connections.sweep()
    assert scene.memory.budget.used == 2000 + 100_000
    scene.transport.unsent = 8_000
    scene.connections.sweep()
    assert (scene.memory.budget.used, scene.connections.unread) == (0, set())


def test_a_client_that_closes_is_answered() -> None:
    scene = Scene()
    scene.socket.data_received(Frame(Opcode.CLOSE, struct.pack("!H", 1000)).serialize(mask=True))
    assert (scene.close_code(), scene.transport.how) == (1000, "eof")
    scene.socket.connection_lost(None)
    assert scene.application.told == ["left by its client"]
    assert not scene.connections.members


def test_a_message_that_is_slow_ends_the_connection() -> None:
    scene = Scene()
    whole = frame(b"x" * 5000)
    scene.socket.data_received(whole[:100])
    for _ in range(9):
        scene.later(1.0)
        scene.socket.data_received(whole[100:101])
    assert scene.transport.how == ""
    scene.later(2.0)
    assert scene.close_code() == 1008


def test_bytes_of_a_message_count_as_they_come() -> None:
    scene = Scene(BodyMemory(50_000, 2, [0]))
    whole = frame(b"x" * 90_000)
    scene.socket.data_received(whole[:20_000])
    assert 39_900 <= scene.memory.budget.used <= 50_000
    scene.socket.data_received(whole[20_000:40_000])
    assert (scene.application.told, scene.close_code()) == (["overloaded"], 1013)
    scene.socket.connection_lost(None)
    assert scene.memory.budget.used == 0


def test_a_message_counts_that_begins_behind_another_one() -> None:
    scene = Scene()
    scene.socket.data_received(frame(b"first") + frame(b"x" * 5000)[:4000])
    assert scene.application.messages == [b"first"]
    assert scene.memory.budget.used > 3900
    scene.later(LIMITS.body_timeout_s - 1)
    scene.socket.data_received(frame(b"x" * 5000)[4000:] + frame(b"y" * 100)[:50])  # a client that is always ahead
    scene.later(LIMITS.body_timeout_s - 1)
    assert scene.transport.how == ""
    scene.later(2.0)
    assert scene.close_code() == 1008


def test_a_silent_client_is_pinged_and_kept_though_it_says_nothing() -> None:
    scene = Scene()
    scene.later(PING_S - 1)
    assert scene.transport.written == b""
    for number in range(1, 4):
        scene.later(PING_S)
        assert scene.transport.written == Frame(Opcode.PING, b"").serialize(mask=False) * number
    assert scene.transport.how == ""


def test_it_ends_after_an_hour_behind_what_it_is_busy_with() -> None:
    scene = Scene()
    scene.application.busy = True
    scene.later(MAX_OPEN_S + 1)
    assert scene.application.told == []
    assert scene.socket.ending
    scene.application.busy = False
    scene.socket.idle()
    assert (scene.application.told, scene.close_code()) == (["expired"], 1001)
    scene.socket.data_received(frame(b"too late"))
    assert scene.application.messages == []
    scene.later(3.0)
    assert scene.transport.how == "abort"


def test_a_client_that_does_not_read_is_not_read_and_given_up() -> None:
    scene = Scene()
    scene.transport.unsent = 100_000
    scene.socket.pause_writing()
    assert (scene.transport.reads, scene.application.told) == (False, [True])
    scene.transport.unsent = 50_000  # it reads slowly
    scene.later(61.0)
    assert scene.transport.how == ""
    scene.later(61.0)
    assert scene.transport.how == "abort"


def test_a_client_that_reads_less_than_is_written_is_not_given_up() -> None:
    scene = Scene()
    scene.transport.unsent = 70_000
    scene.socket.pause_writing()
    scene.socket.send([b"x" * 20_000])
    scene.transport.unsent = 80_000  # it has read 10,000 bytes
    scene.later(61.0)
    assert scene.transport.how == ""
    scene.socket.send([b"x" * 20_000])
    scene.transport.unsent = 100_000  # it has read less than the head of a frame
    scene.later(61.0)
    scene.later(61.0)
    assert scene.transport.how == "abort"


def test_a_client_that_reads_on_is_read() -> None:
    scene = Scene()
    scene.socket.pause_writing()
    scene.socket.resume_writing()
    assert (scene.transport.reads, scene.application.told) == (True, [True, False])


def test_the_one_that_was_idle_longest_makes_way() -> None:
    scene = Scene()
    assert scene.socket.idle_since_s == 1000.0
    scene.application.busy = True
    assert scene.socket.idle_since_s == BUSY
    scene.application.busy = False
    scene.socket.data_received(frame(b"half of it", fin=False))
    assert scene.socket.idle_since_s == BUSY
    scene.socket.make_way()
    assert (scene.application.told, scene.close_code(), scene.transport.how) == (["expired"], 1001, "close")
