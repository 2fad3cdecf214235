"""Reads a chat stream for translation: a dialect's subclass of `ChatStream` gets each event (`event_reader`).

Most events of one stream differ only in a short text. So an event that begins and ends like one that was parsed before,
with plain text between, is not parsed: the dialect gets the text as it stands in the JSON. Without this short cut, a
chunk takes twice as many instructions (`python -m bench instructions --workloads w2m`).
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Raw

from warmroute_proxy.dialects.chat_answers import (
    Chunk,
    Output,
    Usage,
    error_status,
    has_surrogate,
    read_chunk,
    read_text,
    read_usage,
)
from warmroute_proxy.dialects.event_reader import EventReader

_QUOTE: Final = 0x22
_LINE_FEED: Final = 0x0A
_BACKSLASH: Final = 0x5C
_NULL: Final = 0x6E
_DIGITS: Final = b"0123456789"
Kind = Literal["text", "thinking"]
_NAMES: Final[Mapping[Kind, tuple[bytes, ...]]] = {
    "text": (b'"content":"', b'"content": "'),
    "thinking": (b'"reasoning_content":"', b'"reasoning":"', b'"reasoning_content": "', b'"reasoning": "'),
}


def whole_text(texts: list[bytes]) -> str:
    """Join the contents of JSON strings, without their quotes. Raises: ValueError, if one is not valid JSON text."""
    return read_text(b'"%b"' % b"".join(texts))


class TextPieces:
    """The pieces of a text that is kept until it has ended, mostly as JSON strings without their quotes.

    A piece of one token takes ten times the memory of its text, so each call of `size_bytes` joins the new pieces.
    """

    __slots__ = ("_merged", "_merged_bytes", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._merged = 0  # how many pieces are joined
        self._merged_bytes = 0

    def size_bytes(self) -> int:
        """The size of the text. Only pieces that came since the last call are joined and measured."""
        more = self.pieces[self._merged :]
        if more:
            piece = b"".join(more)
            self.pieces[self._merged :] = [piece]
            self._merged += 1
            self._merged_bytes += len(piece)
        return self._merged_bytes


def _is_plain(text: bytes) -> bool:
    """Whether these bytes are the inside of one JSON string, and may be passed on as they are."""
    # The constants are integers: to find a bytes object in bytes takes CPython 3.11 ten times as long.
    if not text or _QUOTE in text or _LINE_FEED in text or text[-1] == _BACKSLASH:
        return False
    return _BACKSLASH not in text or not has_surrogate(text)


def _has_only_roles(chunk: Chunk) -> bool:
    for choice in chunk.choices or ():
        output = choice.delta
        if choice.finish_reason is not None:
            return False
        if output is not None and (output.content or output.reasoning_content or output.tool_calls or output.refusal):
            return False
    return True


class _Shape:
    """The bytes around the text of an event: `head` and `tail`. `end`: the tail with the blank line.

    `least`: the length of head and end. `counted`: the end without its digits, if the event counts tokens; else empty.
    """

    __slots__ = ("counted", "end", "head", "kind", "least", "tail", "text_at", "text_end")

    def __init__(self, kind: Kind, head: bytes, tail: bytes, *, counts: bool = False) -> None:
        self.kind: Kind = kind
        self.head = head
        self.tail = tail
        self.counted = (tail + b"\n\n").translate(None, _DIGITS) if counts else b""
        self.end = tail + b"\n\n"
        self.text_at = len(head)
        self.text_end = -len(self.end)
        self.least = len(head) + len(self.end)


def _payload(event: bytes) -> bytes:
    return event[event.index(b"data:") + 5 :].strip()


class ChatStream:
    """One stream. `feed` takes its next bytes, and returns all events that are whole by then, in the dialect.

    A dialect overrides `began`, `added`, `completed` and `failed`, and `waits` if its streams have a keep-alive.
    """

    def __init__(self) -> None:
        self._reader = EventReader()
        self._begun = False
        self._shape = _Shape("text", b"\n", b"\n")  # matches no event
        self.ended = False
        self._usage = Raw()
        self._counts = b""  # the newest event that only `_counted` has read
        self._has_choice = False
        self.refused = False
        """Whether the model has refused to answer."""

        self.finish_reason: str | None = None
        self.matched_stop: object = None
        """The client's stop text, or the token, that ended the answer."""

    def feed(self, data: bytes) -> bytes:
        """Translate some bytes. Raises: ValueError, if they are not a chat stream."""
        shape = self._shape
        if data.endswith(shape.end) and data.startswith(shape.head) and not self._reader.held and not self.ended:
            text = data[shape.text_at : shape.text_end]
            # The condition of `_is_plain`, written out: a call would add a tenth to a chunk's work.
            if (
                _QUOTE not in text
                and _LINE_FEED not in text
                and text
                and text[-1] != _BACKSLASH
                and (_BACKSLASH not in text or not has_surrogate(text))
            ):
                grown = self.grew(shape.kind, text)
                if grown is not None:
                    return grown
        if shape.counted and not self._reader.held and data.startswith(shape.head):
            grown = self._counted(data, shape)
            if grown is not None:
                return grown
        out: list[bytes] = []
        for each in self._reader.feed(data):
            shape = self._shape
            if each.endswith(shape.end) and each.startswith(shape.head) and len(each) >= shape.least:
                grown = self._grown(each[shape.text_at : shape.text_end], shape.kind)
                if grown is not None:
                    out.append(grown)
                    continue
            if each.startswith(b":"):
                self._begin(out)
                self.waits(out)
            else:
                self._event(each, out)
        return b"".join(out)

    def check(self) -> None:
        """Raises: ValueError, if what has come so far is not an answer that can be completed."""
        if not self._has_choice:
            raise ValueError("it has no choices")

    def gathered_bytes(self) -> int:
        return len(self._reader.held)

    @property
    def usage(self) -> Usage:
        """The settled (final) usage, once it has come; before that, the engine's count so far, if it sends one."""
        if self._counts:
            chunk = read_chunk(_payload(self._counts))
            self._usage, self._counts = Raw(bytes(chunk.usage)), b""
        return read_usage(self._usage)

    def error(self, status: int, message: str, code: object) -> bytes:
        out: list[bytes] = []
        self.ended = True
        self.failed(status, message, code, out)
        return b"".join(out)

    def began(self, out: list[bytes]) -> None:
        """The answer begins. Called once, before all other methods but `failed`."""

    def waits(self, out: list[bytes]) -> None:
        """The prompt is still being computed."""

    def added(self, output: Output, out: list[bytes]) -> None:
        raise NotImplementedError

    def completed(self, out: list[bytes]) -> None:
        """The answer is complete: `usage`, `finish_reason` and `matched_stop` are known."""
        raise NotImplementedError

    def failed(self, status: int, message: str, code: object, out: list[bytes]) -> None:
        raise NotImplementedError

    def _begin(self, out: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            self.began(out)

    def grew(self, kind: Kind, text: bytes) -> bytes | None:  # noqa: ARG002
        """Translate more text, given as JSON without quotes; None if the event has to be parsed."""
        return None

    def _grown(self, text: bytes, kind: Kind) -> bytes | None:
        return None if self.ended or not _is_plain(text) else self.grew(kind, text)

    def _counted(self, event: bytes, shape: _Shape) -> bytes | None:
        """Translate an event that differs from `shape` only in its text and its token counts; None for others."""
        end = event.find(b'"', shape.text_at)
        if event[end:].translate(None, _DIGITS) != shape.counted:
            return None
        grown = self._grown(event[shape.text_at : end], shape.kind)
        if grown is not None:
            self._counts = event
        return grown

    def _event(self, event: bytes, out: list[bytes]) -> None:
        if self.ended:
            return
        payload = _payload(event)
        if payload == b"[DONE]":
            self.ended = True
            self._begin(out)
            self.completed(out)
            return
        chunk = read_chunk(payload)
        if isinstance(chunk.error, dict):
            text, code = str(chunk.error.get("message")), chunk.error.get("code")
            out.append(self.error(error_status(chunk.error), text, code))
            return
        if chunk.usage and memoryview(chunk.usage)[0] != _NULL:
            self._usage, self._counts = Raw(bytes(chunk.usage)), b""
        elif not self._begun and _has_only_roles(chunk):
            self._has_choice = self._has_choice or bool(chunk.choices)
            return  # do not begin yet: the next event may have the prompt's token count
        self._begin(out)
        self._take(chunk, out)
        self._learn(event, chunk)

    def _take(self, chunk: Chunk, out: list[bytes]) -> None:
        for choice in chunk.choices or ():
            self._has_choice = True
            if choice.delta is not None:
                self.refused = self.refused or bool(choice.delta.refusal)
                self.added(choice.delta, out)
            if choice.finish_reason is not None:
                self.finish_reason, self.matched_stop = choice.finish_reason, choice.stopped_at()

    def _learn(self, event: bytes, chunk: Chunk) -> None:
        """Keep the bytes around the text of a parsed event, if the event has one text, found once, and nothing else."""
        if chunk.choices is None or len(chunk.choices) != 1:
            return
        counts = bool(chunk.usage) and memoryview(chunk.usage)[0] != _NULL
        choice = chunk.choices[0]
        output = choice.delta
        if output is None or choice.finish_reason is not None or output.tool_calls or output.refusal:
            return
        thought, content = output.reasoning_content, output.text()
        if bool(thought) == bool(content):
            return
        kind: Kind = "thinking" if thought else "text"
        text = (thought or content or "").encode("utf-8", "replace")
        names = [name for name in _NAMES[kind] if event.count(name + text + b'"') == 1]
        if len(names) != 1 or event.count(names[0]) != 1:
            return
        at = event.find(names[0]) + len(names[0])
        self._shape = _Shape(kind, event[:at], event[at + len(text) : -2], counts=counts)
