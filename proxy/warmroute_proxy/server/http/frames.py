"""WebSocket framing: parses a client's bytes into messages, within limits, and writes frames for the answers.

Most messages are one frame and come in one read. These messages are found here, in a quarter of the time that the
library `websockets` takes. The library, without its I/O, reads all other frames. A message is taken from its frame in
one piece, which costs the event loop a few ms for each MB, so a message has `MAX_MESSAGE_BYTES` at most. An empty frame
takes a few us, so one read may hold `MAX_FRAMES` at most. The caller says after how many frames it is the turn of other
connections, and counts the memory of bytes that were read but not taken as messages (`held_bytes`).
"""

import logging
from collections import deque
from typing import Final

from websockets.datastructures import Headers
from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode, apply_mask  # type: ignore[attr-defined]
from websockets.http11 import Request as Handshake
from websockets.protocol import State
from websockets.server import ServerProtocol

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.exchange import Request

MAX_MESSAGE_BYTES: Final = 4_194_304
MAX_FRAMES: Final = 1_024
SLICE_BYTES: Final = 512  # how many bytes the library parses at once, unless a frame is larger
MAX_LATE_BYTES: Final = 16_384

_SHORT: Final = 125
_MIDDLE: Final = 65_535
_WHOLE_TEXT: Final = 0x81  # the first byte of a frame that contains a whole text message
_MASKED: Final = 0x80
_MASK_BYTES: Final = 4
_LEAVES: Final = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RCVD)
_CONTINUED: Final = (Opcode.TEXT, Opcode.CONT)
_log: Final = logging.getLogger(__name__)
_log.setLevel(logging.ERROR)  # at lower levels the library would log the contents of frames


def handshake(request: Request) -> tuple[int, bytes]:
    """The status and the head of the answer to an upgrade request.

    No extension is accepted. For a proxy near its clients, the CPU time of deflate outweighs the bytes that it saves,
    and deflate lets small frames become large messages.
    """
    names = ("connection", "upgrade", "sec-websocket-key", "sec-websocket-version", "origin")
    headers = Headers([(name, request.headers[name]) for name in names if name in request.headers])
    protocol = ServerProtocol(logger=_log)
    response = protocol.accept(Handshake(request.path, headers, method=request.method))
    protocol.parser.close()  # see `Messages.end`
    return response.status_code, response.serialize()


def text_frame(text: bytes) -> bytes:
    """The frame of a text, made in a tenth of the time that the library's `Frame` takes: each delta needs a frame."""
    size = len(text)
    if size <= _SHORT:
        return b"\x81%c%b" % (size, text)
    if size <= _MIDDLE:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), text)


def _payload(read: bytes, at: int) -> tuple[int, int]:
    """Where the payload of a client's frame begins and ends; (0, 0) if the frame's head is incomplete."""
    head = read[at : at + 10]
    size = head[1] & 0x7F if len(head) > 1 else _SHORT + 2
    begins = at + 2 + _MASK_BYTES
    if size > _SHORT:
        length_bytes = 2 if size == _SHORT + 1 else 8
        if len(head) < 2 + length_bytes:
            return 0, 0
        size = int.from_bytes(head[2 : 2 + length_bytes], "big")
        begins += length_bytes
    return begins, begins + size


def _frame_bytes(data_bytes: int) -> int:
    length_bytes = 0 if data_bytes <= _SHORT else 2 if data_bytes <= _MIDDLE else 8
    return 2 + length_bytes + _MASK_BYTES + data_bytes


class Messages:
    """The messages of one connection. `protocol`: the library's parser, whose answers to control frames the caller
    writes to the client.
    """

    def __init__(self, body_bytes: int) -> None:
        """`body_bytes`: the limit of a request's body, which holds for a message, too."""
        self._max_bytes = min(body_bytes, MAX_MESSAGE_BYTES)
        self.protocol = ServerProtocol(state=State.OPEN, max_size=self._max_bytes, logger=_log)
        self._read = b""
        self._parsed = 0  # how many bytes of `_read` were parsed
        self._frames: deque[Frame] = deque()  # frames that were found and not taken yet
        self.found = 0
        """How many frames were found in the last read."""

        self._begun = 0  # bytes of an unfinished frame in `protocol`; inexact if the frame's length field is padded
        self._rest = 0  # how many bytes the unfinished frame lacks, if known
        self._parts = bytearray()  # what has come of an unfinished message
        self._goes_on = False  # whether a message is unfinished
        self._late_bytes = 0

    @property
    def wait(self) -> bool:
        """Whether there may be another message without another read."""
        return bool(self._read or self._frames)

    @property
    def may_flush(self) -> bool:
        """Whether the protocol's bytes may be written. The answer to a close frame waits until all messages that came
        before the frame are taken.
        """
        return not self._frames

    @property
    def is_left(self) -> bool:
        """Whether the client has closed the connection with a normal code, or has gone without a close frame."""
        protocol = self.protocol
        if protocol.close_sent is None:
            return True
        code = None if protocol.close_rcvd is None else protocol.close_rcvd.code
        return bool(protocol.close_rcvd_then_sent) and code in _LEAVES

    @property
    def held_bytes(self) -> int:
        """How many bytes were read and not taken as messages."""
        unparsed = len(self._read) + len(self.protocol.reader.buffer)
        return unparsed + len(self._parts) + sum([len(frame.data) for frame in self._frames])

    def read(self, data: bytes) -> None:
        self._read, self._parsed, self.found = self._read[self._parsed :] + data, 0, 0

    def read_late(self, data: bytes) -> None:
        """Look for the client's close frame after the server's close frame. Messages before it are ignored."""
        data = data[: MAX_LATE_BYTES - self._late_bytes]
        self._late_bytes += len(data)
        if data and not self.protocol.eof_sent:
            self.protocol.receive_data(data)
            self.protocol.events_received()

    def next(self, most: int = MAX_FRAMES) -> bytes | None:
        """The next whole message, or None. `most`: stop looking for frames once `found` is `most`. Raises: Refusal, for
        the client, if no more messages can be read; `protocol` then has the frame that closes the connection.
        """
        while True:
            if self._frames:
                whole = self._take(self._frames.popleft())
                if whole is not None:
                    return whole
            elif self.protocol.parser_exc is not None:
                raise self._broken(self.protocol.parser_exc)
            elif self._parsed < len(self._read):
                if self.found >= most:
                    return None
                whole = self._whole() if not self._begun else None
                if whole is not None:
                    return whole
                self._parse()
            else:
                return None

    def drop(self) -> None:
        self._read, self._parsed, self._parts = b"", 0, bytearray()
        for frame in self._frames:
            frame.data = b""
        self._frames.clear()

    def end(self) -> None:
        """Free the memory of a lost connection.

        The protocol and its parser refer to each other, and hold the bytes of an unfinished frame. The garbage
        collector would free these bytes late, and no limit would count them until then.
        """
        self.drop()
        self.protocol.parser.close()
        self.protocol.reader.buffer.clear()

    def _whole(self) -> bytes | None:
        """The next message, if the next frame is a whole text that came in one read."""
        read, at = self._read, self._parsed
        begins, ends = _payload(read, at)
        self._rest = max(ends - at, 0)
        is_plain = read[at] == _WHOLE_TEXT and 0 < begins <= ends <= len(read) and read[at + 1] & _MASKED
        if not is_plain or self._goes_on or ends - begins > self._max_bytes or self.protocol.state is not State.OPEN:
            return None
        self._take_read(ends)
        self._count_found(1)
        return bytes(apply_mask(memoryview(read)[begins:ends], read[begins - _MASK_BYTES : begins]))

    def _parse(self) -> None:
        """Find the frames in the next slice. `protocol` answers control frames."""
        data = self._read[self._parsed : self._parsed + max(self._rest, SLICE_BYTES)]
        self._take_read(self._parsed + len(data))
        self.protocol.receive_data(data)
        found = [event for event in self.protocol.events_received() if isinstance(event, Frame)]
        self._begun += len(data) - sum([_frame_bytes(len(frame.data)) for frame in found])
        self._rest = max(self._rest - len(data), 0)
        self._frames.extend(found)
        self._count_found(len(found))

    def _take_read(self, end: int) -> None:
        self._parsed = end
        if end == len(self._read):
            self._read, self._parsed = b"", 0

    def _count_found(self, frames: int) -> None:
        self.found += frames
        if self.found > MAX_FRAMES:
            raise self._failed(CloseCode.POLICY_VIOLATION, "too many small frames")

    def _take(self, frame: Frame) -> bytes | None:
        if frame.opcode is Opcode.BINARY:
            raise self._failed(CloseCode.UNSUPPORTED_DATA, "events are texts")
        if frame.opcode not in _CONTINUED:
            return None
        self._goes_on = not frame.fin
        data, frame.data = frame.data, b""  # else the bytes would stay in memory: `protocol` keeps its last frame
        if frame.fin and not self._parts:
            return bytes(data)
        self._parts += data
        if not frame.fin:
            return None
        whole, self._parts = bytes(self._parts), bytearray()
        return whole

    def _failed(self, code: CloseCode, reason: str) -> Refusal:
        self.protocol.fail(code, reason)
        return Refusal(400, reason, code="bad_request")

    def _broken(self, error: Exception) -> Refusal:
        if isinstance(error, PayloadTooBig):
            problem = f"a message has more than {self._max_bytes} bytes: send the turn by POST"
            return Refusal(413, problem, code="request_too_large")
        return Refusal(400, "the frames of the connection are not valid", code="bad_request")
