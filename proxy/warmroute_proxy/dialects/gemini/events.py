"""Translates the events of a chat stream to Gemini's partial answers: events, or elements of one JSON array.

Gemini's Python client would parse an SSE comment as JSON, so the keep-alive is an empty line. A call has to be one
part, so all calls come whole, with the last partial answer.
"""

from typing import Final

from warmroute_proxy.dialects.chat_answers import Output, reason_of
from warmroute_proxy.dialects.chat_calls import CallPieces
from warmroute_proxy.dialects.chat_stream import ChatStream, Kind, TextPieces, whole_text
from warmroute_proxy.dialects.gemini.answer import AnswerTerms, Json, call_pieces, finish_reason, generated, usage_of
from warmroute_proxy.dialects.gemini.errors import error
from warmroute_proxy.dialects.raw_json import encode

_ALIVE: Final = b"\n"


class EventTranslator(ChatStream):
    """One stream. `array`: write one JSON array, for clients that do not ask for events."""

    def __init__(self, asked: AnswerTerms, *, array: bool) -> None:
        super().__init__()
        self._asked = asked
        self._array = array
        self._empty = True
        self._thoughts = TextPieces()
        self._calls = CallPieces(asked.call_ids)
        self._text = self._around({"text": ""})
        self._thought = self._around({"text": "", "thought": True})

    def waits(self, out: list[bytes]) -> None:
        out.append(_ALIVE)

    def added(self, output: Output, out: list[bytes]) -> None:
        """Write text and thoughts; gather calls for the end."""
        if output.reasoning_content:
            out.append(self.grew("thinking", encode(output.reasoning_content)[1:-1]))
        out += [self.grew("text", encode(text)[1:-1]) for text in (output.text(), output.refusal) if text]
        for call in output.tool_calls or ():
            self._calls.gather(call)

    def grew(self, kind: Kind, text: bytes) -> bytes:
        """A partial answer with one part: text, or thoughts if the client wants them."""
        if kind == "text":
            return self._written(self._text % text)
        self._thoughts.pieces.append(text)
        return self._written(self._thought % text) if self._asked.shows_thoughts else b""

    def completed(self, out: list[bytes]) -> None:
        pieces = call_pieces(self._asked, self._calls.whole(), whole_text(self._thoughts.pieces))
        reason = reason_of(self.finish_reason, calls=self._calls.has_some, cut=self._calls.are_cut())
        reason = finish_reason(reason, refused=self.refused)
        ending = generated(self._asked, pieces or [{"text": ""}], finishReason=reason)
        out.append(self._written(encode({**ending, "usageMetadata": usage_of(self.usage)})))
        if self._array:
            out.append(b"]")

    def check(self) -> None:
        super().check()
        whole_text(self._thoughts.pieces)

    def gathered_bytes(self) -> int:
        return super().gathered_bytes() + self._thoughts.size_bytes() + self._calls.size_bytes()

    def failed(self, status: int, message: str, code: object, out: list[bytes]) -> None:
        out.append(self._written(error(status, message, code)))
        if self._array:
            out.append(b"]")

    def _written(self, answer: bytes) -> bytes:
        if not self._array:
            return b"data: %b\n\n" % answer
        start, self._empty = b"[" if self._empty else b",\r\n", False
        return start + answer

    def _around(self, piece: Json) -> bytes:
        """A template of an answer with one part; `%b` stands for the part's text."""
        return encode(generated(self._asked, [piece])).replace(b"%", b"%%").replace(b'"text":""', b'"text":"%b"', 1)
