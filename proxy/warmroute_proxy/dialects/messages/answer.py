"""Translates a whole chat answer to a message. Streams use its functions for usage and stop reason."""

from typing import Any, Final

from warmroute_proxy.dialects.chat_answers import CONTEXT_FULL, Output, Usage, read_answer, reason_of
from warmroute_proxy.dialects.chat_calls import Piece, arguments_object, is_cut, whole_calls
from warmroute_proxy.dialects.messages.signatures import signature_of
from warmroute_proxy.dialects.raw_json import encode

_REASONS: Final = {
    "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal", CONTEXT_FULL: CONTEXT_FULL,
}  # fmt: skip


def stop_of(
    reason: str | None, matched: object, stop_sequences: tuple[str, ...], *, refused: bool
) -> dict[str, str | None]:
    """`stop_reason` and `stop_sequence`. `reason`: the result of `reason_of`; `matched`: what stopped the model;
    `refused`: the model has refused to answer, and its content says why.
    """
    if refused:
        return {"stop_reason": "refusal", "stop_sequence": None}
    if reason == "stop" and isinstance(matched, str) and matched in stop_sequences:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": _REASONS.get(reason or "", "end_turn"), "stop_sequence": None}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Usage in Anthropic's terms, with cost and receipt beside it. `input_tokens` are the prompt's tokens that were
    neither read from a cache nor written to one. `cache_read_input_tokens` is null if cached tokens were not counted.
    """
    cached, written = usage.cached(), usage.written()
    return {
        "input_tokens": max(usage.prompt_tokens - (cached or 0) - written, 0),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
        **usage.receipt(),
    }


def message_start(message_id: str, model: str) -> dict[str, Any]:
    return {"id": message_id, "type": "message", "role": "assistant", "model": model, "content": []}


def message(raw: bytes, message_id: str, model: str, stop_sequences: tuple[str, ...], key: bytes) -> bytes:
    """A whole answer; `key` signs its reasoning. Raises: ValueError, if it cannot be read."""
    choice, usage = read_answer(raw)
    output = choice.message
    calls = whole_calls(output.tool_calls or (), ids_of(message_id))
    found = message_start(message_id, model)
    found["content"] = _blocks(output, calls, key)
    reason = reason_of(choice.finish_reason, calls=bool(calls), cut=bool(calls) and is_cut(calls[-1].arguments))
    found |= stop_of(reason, choice.stopped_at(), stop_sequences, refused=bool(output.refusal))
    return encode({**found, "usage": usage_of(usage)})


def ids_of(message_id: str) -> str:
    """The prefix of new ids, for calls without a usable id."""
    return message_id.replace("msg_", "toolu_", 1)


def _blocks(output: Output, calls: list[Piece], key: bytes) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if output.reasoning_content:
        thought = output.reasoning_content
        blocks.append({"type": "thinking", "thinking": thought, "signature": signature_of(key, thought)})
    blocks += [{"type": "text", "text": text} for text in (output.text(), output.refusal) if text]
    for call in calls:
        called = arguments_object(call.arguments)
        blocks.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": called})
    return blocks
