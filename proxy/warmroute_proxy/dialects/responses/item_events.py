"""The events of one item of a stream: it is added, grows by deltas, and is done.

The events of a delta differ only in the text and in the number of the event, so what stands around them is written
once an item.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from warmroute_proxy.dialects.chat_stream import whole_text
from warmroute_proxy.dialects.raw_json import encode
from warmroute_proxy.dialects.responses.answer import (
    Json,
    Response,
    call_item,
    message_item,
    reasoning_item,
    refusal_part,
    text_part,
)
from warmroute_proxy.dialects.responses.tools import INPUT, called

Emit = Callable[[str, Json], None]
"""Writes an event: its type, and its members but for `type` and `sequence_number`."""

_Of = Callable[[str], Json]


class _Kind(NamedTuple):
    """Names of an item's events and members. `piece`: what it has one of, with the member that counts them."""

    delta: str
    done: str
    text: str
    piece: tuple[str, str] | None = None


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
_SEARCH: Final = _Kind("", "", "")  # has no events of its own


MANY_DELTAS: Final = 1024
DELTA_ENDS: Final = [b'","sequence_number":%d}\n\n' % number for number in range(MANY_DELTAS)]


def delta_end(number: int) -> bytes:
    """What stands behind the text of a delta; that of most events is written once."""
    return DELTA_ENDS[number] if number < MANY_DELTAS else b'","sequence_number":%d}\n\n' % number


class OpenItem:
    """An item that grows. `texts`: what it has, as JSON without quotes; `delta_begins`: what is in front of a text."""

    def __init__(self, emit: Emit, index: int, kind: _Kind, begun: Json, piece: _Of | None, whole: _Of) -> None:
        """`begun`: the item with nothing in it; `piece`, `whole`: its part and itself, given the text."""
        self._index = index
        self._kind = kind
        self._piece = piece
        self._whole = whole
        self.texts: list[bytes] = []
        self._position: Json = {"item_id": begun["id"], "output_index": index}
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
        return whole_text(self.texts)

    def grow(self, text: bytes, number: int) -> bytes:
        """The event of a delta, with the `number` of the event; none where it is shown only at the end.

        `text`: as JSON, without its quotes.
        """
        self.texts.append(text)
        return b"" if self._kind in (_CUSTOM, _SEARCH) else self.delta_begins + text + delta_end(number)

    def end(self, emit: Emit) -> Json:
        """Write the events at its end, and return the whole item."""
        kind, position, text = self._kind, self._position, self.text
        item = self._whole(text)
        if kind is _CUSTOM:
            text = item[INPUT]
            emit(kind.delta, {**position, "delta": text})
        done: dict[str, Any] = {**position, kind.text: text}
        if kind is _MESSAGE:
            done["logprobs"] = []
        elif kind is _FUNCTION:
            done["name"] = item["name"]
        if kind is not _SEARCH:
            emit(kind.done, done)
        if kind.piece is not None and self._piece is not None:
            emit(f"{kind.piece[0]}.done", {**position, "part": self._piece(text)})
        emit("response.output_item.done", {"output_index": self._index, "item": item})
        return item


def open_message(emit: Emit, index: int, response: Response, *, refused: bool) -> OpenItem:
    """A message begins; `refused`: it says why the model would not answer."""
    begun = {**message_item(response, index, text_part("")), "status": "in_progress", "content": []}
    kind, piece = (_REFUSAL, refusal_part) if refused else (_MESSAGE, text_part)
    return OpenItem(emit, index, kind, begun, piece, lambda text: message_item(response, index, piece(text)))


def open_reasoning(emit: Emit, index: int, response: Response) -> OpenItem:
    """Reasoning begins. What it is sealed to is known at its end."""
    summarised = response.found.summarised
    name = "summary_text" if summarised else "reasoning_text"
    begun: Json = {"id": response.named("rs", index), "type": "reasoning", "summary": [], "status": "in_progress"}
    if not summarised:
        begun["content"] = []
    kind = _SUMMARY if summarised else _REASONING
    piece: _Of = lambda text: {"type": name, "text": text}  # noqa: E731
    return OpenItem(emit, index, kind, begun, piece, partial(reasoning_item, response, index))


def open_call(emit: Emit, index: int, response: Response, number: int, call_id: str, name: str) -> OpenItem:
    """A call begins; its name is known."""
    tool = called(response.found.tools, name)
    kind = _SEARCH if tool.searches else _CUSTOM if tool.custom else _FUNCTION
    whole = partial(call_item, response, number, call_id, name)
    return OpenItem(emit, index, kind, {**whole(""), "status": "in_progress"}, None, whole)
