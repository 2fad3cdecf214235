"""Translates the events of a chat stream to Anthropic's: blocks that begin, grow and end, one at a time.

Anthropic's clients decode the arguments of a call as they come, and fail unless they are an object. So the beginning of
arguments is held until it is known. Other arguments come whole, at the end of the call, as in an answer that is not
streamed.
"""

import sys
from typing import Any, Final

from warmroute_proxy.dialects.chat_answers import Output, reason_of
from warmroute_proxy.dialects.chat_calls import WENT_BACK, CallPieces, Piece, arguments_object
from warmroute_proxy.dialects.chat_stream import ChatStream, Kind
from warmroute_proxy.dialects.messages.answer import ids_of, message_start, stop_of, usage_of
from warmroute_proxy.dialects.messages.errors import error
from warmroute_proxy.dialects.messages.signatures import Signing
from warmroute_proxy.dialects.raw_json import encode

_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_NO_USAGE: Final = {
    "input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": None, "output_tokens": 0
}  # fmt: skip
_STARTS: Final[dict[str, dict[str, Any]]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTAS: Final = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool": ("input_json_delta", "partial_json"),
}
_DELTA_BEGINS: Final = {
    kind: b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%%d,"delta":{"type":"%b","%b":"'
    % (delta.encode(), name.encode())
    for kind, (delta, name) in _DELTAS.items()
    if kind != "tool"
}
_OBJECTS: Final = ('{"', "{}")
_BACKSLASH: Final = 0x5C
_DELTA_ENDS: Final = b'"}}\n\n'


class EventTranslator(ChatStream):
    def __init__(self, message_id: str, model: str, stop_sequences: tuple[str, ...], key: bytes) -> None:
        """`key`: the key that signs reasoning."""
        super().__init__()
        self._key = key
        self._signing = Signing(key)  # the signature of the open thinking block
        self._id = message_id
        self._model = model
        self._stop_sequences = stop_sequences
        self._delta = b""  # how a delta of the open block begins
        self._open = ""  # the kind of the open block
        self._index = -1  # the index of the newest block
        self._calls = CallPieces(ids_of(message_id))
        self._call = -1  # the number of the newest call
        self._held: list[str] = []  # arguments of the open call, unless they begin an object
        self._held_bytes = 0
        self._begins = ""  # their first two characters, without blanks
        self._waiting: list[tuple[str, str]] = []  # kinds and texts that came between pieces of a call
        self._waiting_bytes = 0

    def gathered_bytes(self) -> int:
        return super().gathered_bytes() + self._calls.size_bytes() + self._waiting_bytes + self._held_bytes

    def began(self, out: list[bytes]) -> None:
        """Start the message, with the prompt's tokens if the engine's first chunk has them."""
        start = {**message_start(self._id, self._model), "stop_reason": None, "stop_sequence": None}
        counted = self.usage
        usage = usage_of(counted) if counted.prompt_tokens else _NO_USAGE
        out.append(_event("message_start", {"message": {**start, "usage": usage}}))

    def waits(self, out: list[bytes]) -> None:
        out.append(_PING)

    def added(self, output: Output, out: list[bytes]) -> None:
        for kind, text in (("thinking", output.reasoning_content), ("text", output.text()), ("text", output.refusal)):
            if not text:
                continue
            if self._calls.interrupted:
                self._waiting.append((kind, text))
                self._waiting_bytes += sys.getsizeof(text)
            else:
                self._write(kind, text, out)
        for call in output.tool_calls or ():
            for piece in self._calls.take(call):
                self._called(piece, out)
        if self._waiting and not self._calls.interrupted:
            self._write_waiting(out)

    def grew(self, kind: Kind, text: bytes) -> bytes | None:
        """A delta of the open block, with its text as it came. Reasoning with escapes is parsed first: the signature
        covers the decoded text.
        """
        if kind != self._open:
            return None
        if kind == "thinking":
            if _BACKSLASH in text:
                return None
            self._signing.add_bytes(text)
        return self._delta + text + _DELTA_ENDS

    def completed(self, out: list[bytes]) -> None:
        """End the last block, and then the message, with its usage."""
        for piece in self._calls.rest():
            self._called(piece, out)
        self._write_waiting(out)
        self._close(out)
        reason = reason_of(self.finish_reason, calls=self._calls.has_some, cut=self._calls.are_cut())
        stop = stop_of(reason, self.matched_stop, self._stop_sequences, refused=self.refused)
        out.append(_event("message_delta", {"delta": stop, "usage": usage_of(self.usage)}))
        out.append(_event("message_stop", {}))

    def failed(self, status: int, message: str, code: object, out: list[bytes]) -> None:
        out.append(b"event: error\ndata: %b\n\n" % error(status, message, code))

    def _write(self, kind: str, text: str, out: list[bytes]) -> None:
        if kind == "thinking":
            self._think(text, out)
        else:
            self._grow(kind, text, out)

    def _write_waiting(self, out: list[bytes]) -> None:
        """Write the texts that came between pieces of a call, which is whole now."""
        for kind, text in self._waiting:
            self._write(kind, text, out)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _grow(self, kind: str, text: str, out: list[bytes]) -> None:
        if self._open != kind:
            self._start(kind, _STARTS[kind], out)
        delta, name = _DELTAS[kind]
        content = {"index": self._index, "delta": {"type": delta, name: text}}
        out.append(_event("content_block_delta", content))

    def _think(self, text: str, out: list[bytes]) -> None:
        if self._open != "thinking":
            self._close(out)
            self._signing = Signing(self._key)
        self._signing.add(text)
        self._grow("thinking", text, out)

    def _called(self, piece: Piece, out: list[bytes]) -> None:
        if self._open != "tool" or piece.number != self._call:
            if piece.number <= self._call:
                raise ValueError(WENT_BACK)
            self._call = piece.number
            self._start("tool", {"type": "tool_use", "id": piece.call_id, "name": piece.name, "input": {}}, out)
        if piece.arguments:
            self._argue(piece.arguments, out)

    def _argue(self, text: str, out: list[bytes]) -> None:
        """Take a piece of the open call's arguments, and write it if they are an object."""
        if len(self._begins) < 2:
            self._begins = (self._begins + "".join(text.split()))[:2]
        if self._begins not in _OBJECTS:
            self._held.append(text)
            self._held_bytes += sys.getsizeof(text)
            return
        self._grow("tool", "".join((*self._held, text)), out)
        self._held, self._held_bytes = [], 0

    def _end_arguments(self, out: list[bytes]) -> None:
        text = "".join(self._held)
        self._held, self._held_bytes = [], 0
        if self._begins:
            # An answer that ends here was cut: clients read the brace as the beginning of an object.
            self._grow("tool", text if self._begins == "{" else encode(arguments_object(text)).decode(), out)

    def _start(self, kind: str, block: dict[str, Any], out: list[bytes]) -> None:
        self._close(out)
        self._held, self._held_bytes, self._begins = [], 0, ""
        self._open = kind
        self._index += 1
        self._delta = _DELTA_BEGINS[kind] % self._index if kind in _DELTA_BEGINS else b""
        out.append(_event("content_block_start", {"index": self._index, "content_block": block}))

    def _close(self, out: list[bytes]) -> None:
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": self._signing.signature()}
            out.append(_event("content_block_delta", {"index": self._index, "delta": delta}))
        elif self._held:
            self._end_arguments(out)
        if self._open:
            out.append(_event("content_block_stop", {"index": self._index}))
            self._open = ""


def _event(name: str, members: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **members}))
