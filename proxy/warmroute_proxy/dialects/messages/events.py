"""The events of a chat stream as Anthropic's: blocks that begin, grow and end, one at a time."""

from typing import Any, Final

import msgspec

from warmroute_proxy.dialects.messages.answer import Call, Function, Output, Usage, message_start, stop_of, usage_of
from warmroute_proxy.dialects.messages.blocks import encode
from warmroute_proxy.dialects.messages.errors import error

MAX_EVENT_BYTES: Final = 16_777_216
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_NO_USAGE: Final = {
    "input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0
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


class _Choice(msgspec.Struct):
    delta: Output | None = None
    finish_reason: str | None = None
    matched_stop: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode


class EventTranslator:
    """One stream. `feed` takes any bytes of it, and gives the events that are whole by then."""

    def __init__(self, message_id: str, model: str, stop_sequences: tuple[str, ...]) -> None:
        self._id = message_id
        self._model = model
        self._stop_sequences = stop_sequences
        self._carry = b""
        self._begun = False
        self._open = ""  # the kind of the block that is open
        self._index = -1  # of the newest block
        self._call = -1  # the index of the call that is open
        self._stop: dict[str, str | None] = stop_of(None, None, ())
        self._usage: Usage | None = None
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """Translate some bytes. Raises: ValueError, where they are no chat stream."""
        *whole, self._carry = (self._carry + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._carry) > MAX_EVENT_BYTES:
            raise ValueError(f"an event exceeds {MAX_EVENT_BYTES} bytes")
        out: list[bytes] = []
        for each in whole:
            if each.startswith(b"data:"):
                self._event(each[5:].strip(), out)
            elif each.startswith(b":"):
                self._begin(out)
                out.append(_PING)
        return b"".join(out)

    def _event(self, payload: bytes, out: list[bytes]) -> None:
        if self.ended:
            return
        if payload == b"[DONE]":
            self._end(out)
            return
        try:
            chunk = _decode(payload)
        except (msgspec.DecodeError, RecursionError):
            raise ValueError("the engine's event is no chunk of a chat completion") from None
        if isinstance(chunk.error, dict):
            self.ended = True
            text, code = str(chunk.error.get("message")), chunk.error.get("code")
            out.append(error_event(_status(chunk.error), text, code))
            return
        self._begin(out)
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices:
            if choice.delta is not None:
                self._add(choice.delta, out)
            if choice.finish_reason is not None:
                self._stop = stop_of(choice.finish_reason, choice.matched_stop, self._stop_sequences)

    def _begin(self, out: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            start = {**message_start(self._id, self._model), "stop_reason": None, "stop_sequence": None}
            out.append(_event("message_start", {"message": {**start, "usage": _NO_USAGE}}))

    def _add(self, output: Output, out: list[bytes]) -> None:
        if output.reasoning_content:
            self._grow("thinking", output.reasoning_content, out)
        if output.content:
            self._grow("text", output.content, out)
        for call in output.tool_calls or ():
            self._called(call, out)

    def _grow(self, kind: str, text: str, out: list[bytes]) -> None:
        if self._open != kind:
            self._start(kind, _STARTS[kind], out)
        delta, name = _DELTAS[kind]
        content = {"index": self._index, "delta": {"type": delta, name: text}}
        out.append(_event("content_block_delta", content))

    def _called(self, call: Call, out: list[bytes]) -> None:
        function = call.function or Function()
        if self._open != "tool" or call.index != self._call:
            if call.index <= self._call:
                raise ValueError("the engine went back to a tool call that it had ended")
            self._call = call.index
            call_id, name = call.id or f"toolu_{call.index}", function.name or ""
            self._start("tool", {"type": "tool_use", "id": call_id, "name": name, "input": {}}, out)
        if function.arguments:
            self._grow("tool", function.arguments, out)

    def _start(self, kind: str, block: dict[str, Any], out: list[bytes]) -> None:
        self._close(out)
        self._open = kind
        self._index += 1
        out.append(_event("content_block_start", {"index": self._index, "content_block": block}))

    def _close(self, out: list[bytes]) -> None:
        if self._open:
            out.append(_event("content_block_stop", {"index": self._index}))
            self._open = ""

    def _end(self, out: list[bytes]) -> None:
        self.ended = True
        self._begin(out)
        self._close(out)
        out.append(_event("message_delta", {"delta": self._stop, "usage": usage_of(self._usage)}))
        out.append(_event("message_stop", {}))


def error_event(status: int, message: str, code: object) -> bytes:
    """An error that ends a stream."""
    return b"event: error\ndata: %b\n\n" % error(status, message, code)


def _event(name: str, members: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **members}))


def _status(found: dict[str, Any]) -> int:
    """The status of an error that has none any more: by its type and code."""
    kind = found.get("type")
    if kind == "rate_limit_error":
        return 429
    return 400 if kind == "invalid_request_error" else 503 if found.get("code") in _BUSY else 502


_BUSY: Final = frozenset({"no_worker", "draining", "overloaded", "shutting_down", "ledger_unavailable"})
