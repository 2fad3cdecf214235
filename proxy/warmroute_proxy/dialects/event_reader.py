"""Cuts the bytes of an event stream into events, by the grammar of server-sent events (html.spec.whatwg.org, 9.2.6).

Servers write events in many ways: with LF, CR or CRLF, with a byte order mark, with `id:`, `event:` or comments before
or after the data, with data in several lines. Each event comes out in a common form: one line `data: ` with the data
(after the line `event: error` if the event is named `error`), or a comment. So no other module has to know the grammar.
An event that has this form already is not changed.

Work is linear in the bytes, however small the pieces are. The held part of an unfinished event has a bound.
"""

from typing import Final

MAX_EVENT_BYTES: Final = 16_777_216
ERROR_EVENT: Final = b"event: error\ndata: "
"""The beginning of events that are named `error`: the name may be the only sign of the error."""

_BLANK: Final = b"\n\n"
_MARK: Final = b"\xef\xbb\xbf"
_ALIVE: Final = b": \n\n"
_LEAST: Final = len("data: ")
_SPACE: Final = 0x20


class EventReader:
    """One stream. `feed` takes its next bytes, and returns the events that are whole by then."""

    __slots__ = ("_after_cr", "_begun", "held")

    def __init__(self) -> None:
        self.held = bytearray()
        """The bytes of an unfinished event."""

        self._after_cr = False  # the last byte was a CR, so an LF next is part of that line end
        self._begun = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are whole now. Raises: ValueError, if one is too long."""
        if self._after_cr or b"\r" in data:
            data = self._with_line_feeds(data)
        held = self.held
        if held:
            start = len(held) - 1
            held += data
            if held.find(_BLANK, start) < 0:
                self._check(len(held))
                return []
            data = bytes(held)
            held.clear()
        *blocks, rest = data.split(_BLANK)
        if rest:
            self._check(len(rest))
            held += rest
        events = []
        for block in blocks:
            if len(block) > _LEAST and block[-1] > _SPACE and block.startswith(b"data:") and b"\n" not in block:
                events.append(block + _BLANK)
            elif event := self._in_order(block):
                events.append(event)
            self._begun = True
        return events

    def end(self) -> list[bytes]:
        """End the stream. Returns its last event, which may lack the blank line."""
        return self.feed(b"\n\n") if self.held else []

    def _with_line_feeds(self, data: bytes) -> bytes:
        """The bytes with LF for each line end."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _in_order(self, block: bytes) -> bytes:
        """An event in the common form; empty if its block is empty."""
        if not self._begun:
            block = block.removeprefix(_MARK)
        name, values, is_alive = b"", [], False
        for line in block.split(b"\n"):
            field, colon, value = line.partition(b":")
            is_alive = is_alive or bool(line)
            if field == b"data":
                values.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.removeprefix(b" ")
            elif field == b"error" and colon:  # llama.cpp wrote errors in this way until 2025
                name, values = field, [*values, value.removeprefix(b" ")]
        data = b" ".join(values)  # valid JSON has line ends only between its tokens
        if not data.strip():
            return (block.partition(b"\n")[0] + _BLANK if block.startswith(b":") else _ALIVE) if is_alive else b""
        return (ERROR_EVENT if name == b"error" else b"data: ") + data + _BLANK

    def _check(self, size: int) -> None:
        if size > MAX_EVENT_BYTES:
            raise ValueError(f"an event exceeds {MAX_EVENT_BYTES} bytes")
