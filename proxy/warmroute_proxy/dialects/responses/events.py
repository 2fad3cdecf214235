"""The events of a chat stream as those of a response, numbered from 0: one item after the other is added and done."""

from typing import Final

from msgspec import Raw

from warmroute_proxy.dialects.chat_answers import Output, reason_of
from warmroute_proxy.dialects.chat_calls import WENT_BACK, CallPieces, Piece
from warmroute_proxy.dialects.chat_stream import ChatStream, Kind, whole_text
from warmroute_proxy.dialects.raw_json import encode
from warmroute_proxy.dialects.responses.answer import (
    Json,
    Response,
    ended,
)
from warmroute_proxy.dialects.responses.item_events import (
    DELTA_ENDS,
    MANY_DELTAS,
    OpenItem,
    delta_end,
    open_call,
    open_message,
    open_reasoning,
)

_ALIVE: Final = b": the prompt is being computed\n\n"


class EventTranslator(ChatStream):
    """One stream."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self._response = response
        self._number = 0  # of the next event
        self._out: list[bytes] = []
        self._output: list[Json] = []  # the items that are done
        self._open: OpenItem | None = None
        self._kind = ""  # of the open item
        self._texts: list[bytes] = []  # of the open item, if it has a text
        self._delta_begins = b""  # likewise
        self._calls = CallPieces(response.named("call"))
        self._call = -1  # the number of the newest call
        self._waiting: list[tuple[str, str]] = []  # kinds and texts that came between pieces of a call
        self._is_whole = False

    @property
    def response_id(self) -> str:
        return self._response.named("resp")

    @property
    def output(self) -> list[Json] | None:
        """The items of a response that has ended as it should; None of any other."""
        return self._output if self._is_whole else None

    def began(self, out: list[bytes]) -> None:
        self._out = out
        snapshot = Raw(encode(self._response.snapshot("in_progress", [])))
        self._emit("response.created", {"response": snapshot})
        self._emit("response.in_progress", {"response": snapshot})

    def waits(self, out: list[bytes]) -> None:
        """A comment, which clients ignore: Responses have no event for it."""
        out.append(_ALIVE)

    def added(self, output: Output, out: list[bytes]) -> None:
        self._out = out
        texts = (("thinking", output.reasoning_content), ("text", output.text()), ("refusal", output.refusal))
        for kind, text in texts:
            if not text:
                continue
            if self._calls.interrupted:
                self._waiting.append((kind, text))
            else:
                self._grow(kind, text)
        for call in output.tool_calls or ():
            for piece in self._calls.take(call):
                self._called(piece)
        if self._waiting and not self._calls.interrupted:
            self._write_waiting()

    def grew(self, kind: Kind, text: bytes) -> bytes | None:
        """A delta of the item that is open, its text as it came."""
        if kind != self._kind:
            return None
        self._texts.append(text)
        number = self._number
        self._number = number + 1
        end = DELTA_ENDS[number] if number < MANY_DELTAS else delta_end(number)
        return self._delta_begins + text + end

    def completed(self, out: list[bytes]) -> None:
        """The last item is done, and the response with its usage."""
        self._out = out
        for piece in self._calls.rest():
            self._called(piece)
        self._write_waiting()
        self._close()
        reason = reason_of(self.finish_reason, calls=self._calls.has_some, cut=self._calls.are_cut())
        response = ended(self._response, self._output, reason, self.usage)
        self._emit(f"response.{response['status']}", {"response": response})
        self._is_whole = True

    def check(self) -> None:
        """Raises: ValueError, where what has come so far is not an answer that can be completed."""
        super().check()
        if self._open is not None:
            whole_text(self._open.texts)

    def failed(self, status: int, message: str, code: object, out: list[bytes]) -> None:  # noqa: ARG002
        """The response has failed. The event has no status, so the code says what it was."""
        self._out = out
        error = {"code": code if isinstance(code, str) else "server_error", "message": message}
        self._emit("response.failed", {"response": self._response.snapshot("failed", self._output, error=error)})

    def _emit(self, name: str, members: Json) -> None:
        event = encode({"type": name, **members, "sequence_number": self._number})
        self._out.append(b"event: %b\ndata: %b\n\n" % (name.encode(), event))
        self._number += 1

    def _write_waiting(self) -> None:
        for kind, text in self._waiting:
            self._grow(kind, text)
        self._waiting.clear()

    def _grow(self, kind: str, text: str) -> None:
        if self._kind != kind:
            self._close()
            response, index = self._response, len(self._output)
            if kind == "thinking":
                item = open_reasoning(self._emit, index, response)
            else:
                item = open_message(self._emit, index, response, refused=kind == "refusal")
            self._open = item
            self._kind, self._texts, self._delta_begins = kind, item.texts, item.delta_begins
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

    def _close(self) -> None:
        if self._open is not None:
            self._output.append(self._open.end(self._emit))
            self._open, self._kind = None, ""
