"""A whole chat answer as a message, and what a message and a stream have in common: usage and the stop reason."""

from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.messages.blocks import encode

_REASONS: Final = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
NO_INPUT: Final = Raw(b"{}")


class Function(msgspec.Struct):
    """A called function; in a stream some of it."""

    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    """A tool call; in a stream some of it."""

    index: int = 0
    id: str | None = None
    function: Function | None = None


class Output(msgspec.Struct):
    """What the model said; in a stream some of it."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """The settled usage of a chat answer, with its receipt."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    cost: Raw = Raw()
    warmroute: Raw = Raw()


class _Choice(msgspec.Struct):
    message: Output
    finish_reason: str | None = None
    matched_stop: Any = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: Usage | None = None


_decode: Final = msgspec.json.Decoder(_Answer).decode
_decode_object: Final = msgspec.json.Decoder(dict[str, Raw]).decode


def stop_of(reason: str | None, matched: object, stop_sequences: tuple[str, ...]) -> dict[str, str | None]:
    """`stop_reason` and `stop_sequence`."""
    if reason == "stop" and isinstance(matched, str) and matched in stop_sequences:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": _REASONS.get(reason or "", "end_turn"), "stop_sequence": None}


def usage_of(usage: Usage | None) -> dict[str, Any]:
    """Usage in Anthropic's terms: `input_tokens` are those that were not cached. Cost and receipt stay beside them."""
    if usage is None:
        usage = Usage()
    cached = (usage.prompt_tokens_details.cached_tokens or 0) if usage.prompt_tokens_details is not None else 0
    found: dict[str, Any] = {
        "input_tokens": max(usage.prompt_tokens - cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }
    if usage.cost:
        found["cost"] = usage.cost
    if usage.warmroute:
        found["warmroute"] = usage.warmroute
    return found


def message_start(message_id: str, model: str) -> dict[str, Any]:
    """A message that has nothing yet."""
    return {"id": message_id, "type": "message", "role": "assistant", "model": model, "content": []}


def message(raw: bytes, message_id: str, model: str, stop_sequences: tuple[str, ...]) -> bytes:
    """A whole answer. Raises: ValueError, where it is none that can be read."""
    try:
        answer = _decode(raw)
        choice = answer.choices[0]
    except (msgspec.DecodeError, IndexError, RecursionError):
        raise ValueError("the engine's answer is no chat completion") from None
    found = message_start(message_id, model)
    found["content"] = list(_blocks(choice.message))
    found |= stop_of(choice.finish_reason, choice.matched_stop, stop_sequences)
    return encode({**found, "usage": usage_of(answer.usage)})


def _blocks(output: Output) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if output.reasoning_content:
        blocks.append({"type": "thinking", "thinking": output.reasoning_content, "signature": ""})
    if output.content:
        blocks.append({"type": "text", "text": output.content})
    for at, call in enumerate(output.tool_calls or ()):
        function = call.function or Function()
        blocks.append(
            {"type": "tool_use", "id": call.id or f"toolu_{at}", "name": function.name or "",
             "input": _input(function.arguments)}
        )  # fmt: skip
    return blocks


def _input(arguments: str | None) -> Raw:
    """The arguments as an object. A model may write some that are none: they are shown as they are."""
    if not arguments:
        return NO_INPUT
    try:
        _decode_object(arguments)
    except (msgspec.DecodeError, RecursionError):
        return Raw(encode({"arguments": arguments}))
    return Raw(arguments.encode())
