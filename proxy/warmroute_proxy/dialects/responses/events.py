"""Translates a chat stream into the events of a response, numbered from 0. Items are added and done one by one."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.chat_answers import Output, reason_of
from warmroute_proxy.dialects.chat_calls import WENT_BACK, CallPieces, Piece
from warmroute_proxy.dialects.chat_stream import ChatStream, Kind, TextPieces, whole_text
from warmroute_proxy.dialects.raw_json import encode
from warmroute_proxy.dialects.responses.answer import (
    INCOMPLETE,
    Json,
    Response,
    call_item,
    ended,
    message_item,
    reasoning_item,
    refusal_part,
    text_part,
    usage_of,
)
from warmroute_proxy.dialects.responses.tools import INPUT, called

# The events of one item of a stream: it is added, grows by deltas, and is done.
#
# The delta events of an item differ only in text and number, so all other bytes of them are encoded once per item.

Emit = Callable[[str, Json], None]
"""Writes an event, given its type and its members without `type` and `sequence_number`."""

_Of = Callable[[str], Json]


class _Kind(NamedTuple):
    """Types of an item's events, and the member `text`. `piece`: event prefix and index member of its part, if any.
    `is_late`: whether the item is added only when it is whole.
    """

    delta: str
    done: str
    text: str
    piece: tuple[str, str] | None = None
    is_late: bool = False


_MESSAGE: Final = _Kind(
    "response.output_text.delta", "response.output_text.done", "text", ("response.content_part", "content_index")
)
_REFUSAL: Final = _Kind(
    "response.refusal.delta", "response.refusal.done", "refusal", ("response.content_part", "content_index")
)
_REASONING: Final = _Kind(
    "response.reasoning_text.delta", "response.reasoning_text.done", "text", ("response.content_part", "content_index")
)
_SUMMARY: Final = _Kind(
    "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done", "text",
    ("response.reasoning_summary_part", "summary_index"),
)  # fmt: skip
_FUNCTION: Final = _Kind("response.function_call_arguments.delta", "response.function_call_arguments.done", "arguments")
_CUSTOM: Final = _Kind("response.custom_tool_call_input.delta", "response.custom_tool_call_input.done", INPUT)
_SEARCH: Final = _Kind("", "", "")  # a search has no delta events, only those that all items have
_TYPED: Final = _Kind("", "", "", is_late=True)  # clients read the members of such an item as soon as it is added


ITEM_BYTES: Final = 1024  # memory of an item without its text
MANY_DELTAS: Final = 1024
DELTA_ENDS: Final = [b'","sequence_number":%d}\n\n' % number for number in range(MANY_DELTAS)]


def delta_end(number: int) -> bytes:
    """The bytes after the text of a delta event. For the first `MANY_DELTAS` numbers they are made in advance."""
    return DELTA_ENDS[number] if number < MANY_DELTAS else b'","sequence_number":%d}\n\n' % number


class OpenItem:
    """An item that grows. `texts`: its text so far. `delta_begins`: the bytes before a delta's text."""

    def __init__(self, emit: Emit, index: int, kind: _Kind, begun: Json, piece: _Of | None, whole: _Of) -> None:
        """`begun`: the item while it is empty. `piece`, `whole`: make its part and the whole item from the text."""
        self._index = index
        self._kind = kind
        self._piece = piece
        self._whole = whole
        self.texts = TextPieces()
        self.item_id: str = begun["id"]
        self._position: Json = {"item_id": begun["id"], "output_index": index}
        self.is_added = not kind.is_late
        if self.is_added:
            emit("response.output_item.added", {"output_index": index, "item": begun})
        if kind.piece is not None and piece is not None:
            event, counter = kind.piece
            self._position[counter] = 0
            emit(f"{event}.added", {**self._position, "part": piece("")})
        more: Json = {"logprobs": []} if kind is _MESSAGE else {}
        begins = encode({"type": kind.delta, **self._position, **more})[:-1]
        self.delta_begins = b'event: %b\ndata: %b,"delta":"' % (kind.delta.encode(), begins)

    @property
    def text(self) -> str:
        return whole_text(self.texts.pieces)

    def grow(self, text: bytes, number: int) -> bytes:
        """The event of a delta; empty for a call whose text is shown only at the end.

        `text`: the content of a JSON string. `number`: the event's sequence number.
        """
        self.texts.pieces.append(text)
        return b"" if self._kind is _CUSTOM or not self._kind.delta else self.delta_begins + text + delta_end(number)

    def end(self, emit: Emit, *, is_whole: bool = True) -> Json:
        """Write the events that end the item, and return the item. `is_whole`: False if the answer was cut in it."""
        kind, position, text = self._kind, self._position, self.text
        item = self._whole(text)
        if not is_whole:
            item["status"] = "incomplete"
        if kind is _FUNCTION and text != item["arguments"]:  # the model left them out
            text = item["arguments"]
            emit(kind.delta, {**position, "delta": text})
        if not self.is_added:
            begun = {**item, "status": "in_progress"}
            if item["type"] == "function_call":  # its arguments are not those of the tool
                kind, begun["arguments"], text = _FUNCTION, "", item["arguments"]
            emit("response.output_item.added", {"output_index": self._index, "item": begun})
            if kind is _FUNCTION:
                emit(kind.delta, {**position, "delta": text})
        if kind is _CUSTOM:
            text = item[INPUT]
            emit(kind.delta, {**position, "delta": text})
        done: dict[str, Any] = {**position, kind.text: text}
        if kind is _MESSAGE:
            done["logprobs"] = []
        elif kind is _FUNCTION:
            done["name"] = item["name"]
        if kind.done:
            emit(kind.done, done)
        if kind.piece is not None and self._piece is not None:
            emit(f"{kind.piece[0]}.done", {**position, "part": self._piece(text)})
        emit("response.output_item.done", {"output_index": self._index, "item": item})
        return item


def open_message(emit: Emit, index: int, response: Response, *, refused: bool) -> OpenItem:
    """Begin a message. `refused`: its text says why the model would not answer."""
    begun = {**message_item(response, index, text_part("")), "status": "in_progress", "content": []}
    kind, piece = (_REFUSAL, refusal_part) if refused else (_MESSAGE, text_part)
    return OpenItem(emit, index, kind, begun, piece, lambda text: message_item(response, index, piece(text)))


def open_reasoning(emit: Emit, index: int, response: Response) -> OpenItem:
    """Begin an item of reasoning. Its sealed form is added when it ends."""
    summarised = response.found.summarised
    name = "summary_text" if summarised else "reasoning_text"
    begun: Json = {"id": response.named("rs", index), "type": "reasoning", "summary": [], "status": "in_progress"}
    if not summarised:
        begun["content"] = []
    kind = _SUMMARY if summarised else _REASONING
    piece: _Of = lambda text: {"type": name, "text": text}  # noqa: E731
    return OpenItem(emit, index, kind, begun, piece, partial(reasoning_item, response, index))


def open_call(emit: Emit, index: int, response: Response, number: int, call_id: str, name: str) -> OpenItem:
    tool = called(response.found.tools, name)
    kind = _TYPED if tool.is_typed else _SEARCH if tool.searches else _CUSTOM if tool.custom else _FUNCTION
    whole = partial(call_item, response, number, call_id, name)
    begun = {**whole(""), "status": "in_progress"}
    if kind is _FUNCTION:
        begun["arguments"] = ""
    return OpenItem(emit, index, kind, begun, None, whole)


_ALIVE: Final = b": the prompt is being computed\n\n"


class EventTranslator(ChatStream):
    def __init__(self, response: Response) -> None:
        super().__init__()
        self._response = response
        self._number = 0  # sequence number of the next event
        self._out: list[bytes] = []
        self._output: list[Json] = []  # the items that are done
        self._output_bytes = 0
        self._open: OpenItem | None = None
        self._kind = ""  # the kind of the open item
        self._texts: list[bytes] = []  # pieces of the open item, if it is text or reasoning
        self._delta_begins = b""  # the bytes before a delta's text in the open item
        self._calls = CallPieces(response.named("call"))
        self._call = -1  # the number of the newest call
        self._waiting: list[tuple[str, str]] = []  # kinds and texts that came between pieces of a call
        self._waiting_bytes = 0
        self._is_whole = False

    @property
    def response_id(self) -> str:
        return self._response.named("resp")

    @property
    def output(self) -> list[Json] | None:
        """The items of the response; None unless the response is complete, or the client has interrupted it."""
        return self._output if self._is_whole else None

    def began(self, out: list[bytes]) -> None:
        self._out = out
        snapshot = Raw(encode(self._response.snapshot("in_progress", [])))
        self._emit("response.created", {"response": snapshot})
        self._emit("response.in_progress", {"response": snapshot})

    def waits(self, out: list[bytes]) -> None:
        """Write an SSE comment, which clients ignore: the Responses API has no event for a wait."""
        out.append(_ALIVE)

    def added(self, output: Output, out: list[bytes]) -> None:
        self._out = out
        texts = (("thinking", output.reasoning_content), ("text", output.text()), ("refusal", output.refusal))
        for kind, text in texts:
            if not text:
                continue
            if self._calls.interrupted:
                self._waiting.append((kind, text))
                self._waiting_bytes += sys.getsizeof(text)
            else:
                self._grow(kind, text)
        for call in output.tool_calls or ():
            for piece in self._calls.take(call):
                self._called(piece)
        if self._waiting and not self._calls.interrupted:
            self._write_waiting()

    def grew(self, kind: Kind, text: bytes) -> bytes | None:
        """The event of a delta for the open item, with the text as it came; None if another kind of item is open."""
        if kind != self._kind:
            return None
        self._texts.append(text)
        number = self._number
        self._number = number + 1
        end = DELTA_ENDS[number] if number < MANY_DELTAS else delta_end(number)
        return self._delta_begins + text + end

    def completed(self, out: list[bytes]) -> None:
        """Write the end of the last item, and the whole response with its usage."""
        self._out = out
        for piece in self._calls.rest():
            self._called(piece)
        reason = reason_of(self.finish_reason, calls=self._calls.has_some, cut=self._calls.are_cut())
        if self._waiting and self._calls.are_cut():
            self._close(is_whole=False)
        self._write_waiting()
        self._close(is_whole=reason not in INCOMPLETE)
        response = ended(self._response, self._output, reason, self.usage)
        self._emit(f"response.{response['status']}", {"response": response})
        self._is_whole = True

    def interrupted(self) -> bytes:
        """The events that end the response before the answer's end. The open item is not part of the response."""
        out: list[bytes] = []
        self._out = out
        self.ended = True
        response: Json = {"response_id": self.response_id}
        self._emit("response.interrupt.accepted", response)
        if self._open is not None and self._open.is_added:
            position = {"item_id": self._open.item_id, "output_index": len(self._output)}
            self._emit("response.output_item.interrupted", {**response, **position})
        usage = usage_of(self.usage) if self._usage else None
        details = {"reason": "interrupted"}
        snapshot = self._response.snapshot("incomplete", self._output, incomplete_details=details, usage=usage)
        self._emit("response.incomplete", {"response": snapshot})
        self._is_whole = True
        return b"".join(out)

    def check(self) -> None:
        super().check()
        if self._open is not None:
            whole_text(self._open.texts.pieces)

    def gathered_bytes(self) -> int:
        size = super().gathered_bytes() + self._output_bytes + self._calls.size_bytes() + self._waiting_bytes
        return size if self._open is None else size + self._open.texts.size_bytes()

    def failed(self, status: int, message: str, code: object, out: list[bytes]) -> None:  # noqa: ARG002
        """Write `response.failed`. The event has no HTTP status, so only its code tells the cause."""
        self._out = out
        error = {"code": code if isinstance(code, str) else "server_error", "message": message}
        self._emit("response.failed", {"response": self._response.snapshot("failed", self._output, error=error)})

    def _emit(self, name: str, members: Json) -> None:
        event = encode({"type": name, **members, "sequence_number": self._number})
        self._out.append(b"event: %b\ndata: %b\n\n" % (name.encode(), event))
        self._number += 1

    def _write_waiting(self) -> None:
        """Write the texts that came between pieces of a call, which is whole now."""
        for kind, text in self._waiting:
            self._grow(kind, text)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _grow(self, kind: str, text: str) -> None:
        if self._kind != kind:
            self._close()
            response, index = self._response, len(self._output)
            if kind == "thinking":
                item = open_reasoning(self._emit, index, response)
            else:
                item = open_message(self._emit, index, response, refused=kind == "refusal")
            self._open = item
            self._kind, self._texts, self._delta_begins = kind, item.texts.pieces, item.delta_begins
        self._delta(encode(text)[1:-1])

    def _called(self, piece: Piece) -> None:
        if self._kind != "call" or piece.number != self._call:
            if piece.number <= self._call:
                raise ValueError(WENT_BACK)
            self._close()
            number = self._call = piece.number
            index = len(self._output)
            self._open = open_call(self._emit, index, self._response, number, piece.call_id, piece.name)
            self._kind = "call"
        if piece.arguments:
            self._delta(encode(piece.arguments)[1:-1])

    def _delta(self, text: bytes) -> None:
        assert self._open is not None
        event = self._open.grow(text, self._number)
        if event:
            self._out.append(event)
            self._number += 1

    def _close(self, *, is_whole: bool = True) -> None:
        if self._open is not None:
            self._output.append(self._open.end(self._emit, is_whole=is_whole))
            self._output_bytes += ITEM_BYTES + 2 * self._open.texts.size_bytes()  # twice: the text, and its sealed form
            self._open, self._kind, self._texts = None, "", []
