"""Translates a whole chat answer to one of Gemini's. Streams use its functions for parts, usage and finish reason."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from warmroute_proxy.dialects.chat_answers import CONTEXT_FULL, Usage, read_answer, reason_of
from warmroute_proxy.dialects.chat_calls import Piece, arguments_object, is_cut, whole_calls
from warmroute_proxy.dialects.raw_json import encode

Json = dict[str, Any]

_REASONS: Final = {"length": "MAX_TOKENS", CONTEXT_FULL: "MAX_TOKENS", "content_filter": "SAFETY"}


class AnswerTerms(NamedTuple):
    """The inputs of an answer's translation. `seal`: encrypts thoughts, so that the client can send them back."""

    receipt_id: str
    model: str
    shows_thoughts: bool
    seal: Callable[[str], str]

    @property
    def call_ids(self) -> str:
        """The prefix of new ids, for calls without a usable id."""
        return f"call_{self.receipt_id}"


def generated(asked: AnswerTerms, pieces: list[Json], **ending: Any) -> Json:
    """An answer, or a piece of one in a stream. `ending`: further members of its candidate."""
    candidate = {"content": {"parts": pieces, "role": "model"}, **ending, "index": 0}
    return {"candidates": [candidate], "modelVersion": asked.model, "responseId": asked.receipt_id}


def finish_reason(reason: str | None, *, refused: bool) -> str:
    """Gemini's finish reason. An answer with calls ends with `STOP`. `refused`: the model has refused to answer."""
    return "SAFETY" if refused else _REASONS.get(reason or "", "STOP")


def usage_of(usage: Usage) -> Json:
    """Usage in Gemini's terms, with cost and receipt beside it. The candidate's tokens do not include thoughts. Cached
    tokens are left out if they were not counted.
    """
    thoughts, cached = min(usage.reasoning(), usage.completion_tokens), usage.cached()
    return {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - thoughts,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
        **({} if cached is None else {"cachedContentTokenCount": cached}),
        "thoughtsTokenCount": thoughts,
        **usage.receipt(),
    }


def call_pieces(asked: AnswerTerms, calls: list[Piece], thoughts: str) -> list[Json]:
    """The calls as parts; the signature of the first holds the thoughts before it."""
    pieces = [_call(call) for call in calls]
    if pieces and thoughts:
        pieces[0]["thoughtSignature"] = asked.seal(thoughts)
    return pieces


def _call(call: Piece) -> Json:
    return {"functionCall": {"id": call.call_id, "name": call.name, "args": arguments_object(call.arguments)}}


def whole(raw: bytes, asked: AnswerTerms) -> bytes:
    """A whole answer. Raises: ValueError, if it cannot be read."""
    choice, usage = read_answer(raw)
    output = choice.message
    thoughts = output.reasoning_content or ""
    pieces: list[Json] = []
    if thoughts and asked.shows_thoughts:
        pieces.append({"text": thoughts, "thought": True})
    pieces += [{"text": text} for text in (output.text(), output.refusal) if text]
    calls = whole_calls(output.tool_calls or (), asked.call_ids)
    pieces += call_pieces(asked, calls, thoughts)
    reason = reason_of(choice.finish_reason, calls=bool(calls), cut=bool(calls) and is_cut(calls[-1].arguments))
    reason = finish_reason(reason, refused=bool(output.refusal))
    answer = generated(asked, pieces or [{"text": ""}], finishReason=reason)
    return encode({**answer, "usageMetadata": usage_of(usage)})
