"""What translators read of chat's answers: whole ones, the chunks of a stream, their settled usage, and errors."""

from typing import Any, Final

import msgspec
from msgspec import Raw


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


class Details(msgspec.Struct):
    """Of the tokens of a prompt or an answer."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_tokens: int | None = None


class Usage(msgspec.Struct):
    """The settled usage of a chat answer, with its cost and receipt."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    reasoning_tokens: int | None = None
    cost: Raw = Raw()
    warmroute: Raw = Raw()

    def cached(self) -> int:
        """How many tokens of the prompt were cached."""
        return (self.prompt_tokens_details.cached_tokens or 0) if self.prompt_tokens_details is not None else 0

    def written(self) -> int:
        """How many of the others a server wrote to its cache, by the name that OpenRouter or LiteLLM has for that."""
        details = self.prompt_tokens_details
        stated = 0 if details is None else details.cache_write_tokens or details.cache_creation_tokens or 0
        return min(max(stated, 0), max(self.prompt_tokens - self.cached(), 0))

    def reasoning(self) -> int:
        """How many tokens of the answer are reasoning. SGLang has the number in either place."""
        details = self.completion_tokens_details
        nested = details.reasoning_tokens if details is not None else None
        return nested if nested is not None else self.reasoning_tokens or 0

    def receipt(self) -> dict[str, Raw]:
        """Cost and receipt, which stand beside the usage of each dialect."""
        found = {}
        if self.cost:
            found["cost"] = self.cost
        if self.warmroute:
            found["warmroute"] = self.warmroute
        return found


class ChunkChoice(msgspec.Struct):
    """The choice of a chunk."""

    delta: Output | None = None
    finish_reason: str | None = None
    matched_stop: Any = None


class Chunk(msgspec.Struct):
    """One event of a stream."""

    choices: list[ChunkChoice] = []
    usage: Usage | None = None
    error: Any = None


class Choice(msgspec.Struct):
    """The choice of a whole answer."""

    message: Output
    finish_reason: str | None = None
    matched_stop: Any = None


class Answer(msgspec.Struct):
    """A whole answer."""

    choices: list[Choice]
    usage: Usage | None = None


class ChatError(msgspec.Struct):
    """An error of chat."""

    message: str = "internal error"
    code: Any = None
    param: Any = None


class _ErrorBody(msgspec.Struct):
    error: ChatError


_decode_answer: Final = msgspec.json.Decoder(Answer).decode
_decode_error: Final = msgspec.json.Decoder(_ErrorBody).decode
decode_chunk: Final = msgspec.json.Decoder(Chunk).decode


def read_answer(raw: bytes) -> tuple[Choice, Usage]:
    """The choice and the usage of a whole answer. Raises: ValueError, where it is none that can be read."""
    try:
        answer = _decode_answer(raw)
        choice = answer.choices[0]
    except (msgspec.DecodeError, IndexError, RecursionError):
        raise ValueError("the engine's answer is no chat completion") from None
    return choice, answer.usage or Usage()


def read_error(body: bytes) -> ChatError:
    """The error object in a body."""
    try:
        return _decode_error(body).error
    except (msgspec.DecodeError, RecursionError):
        return ChatError()


def error_status(found: dict[str, Any]) -> int:
    """The status of an error inside a stream, which has none any more: by its type and code."""
    kind = found.get("type")
    if kind == "rate_limit_error":
        return 429
    return 400 if kind == "invalid_request_error" else 503 if found.get("code") in _BUSY else 502


_BUSY: Final = frozenset({"no_worker", "draining", "overloaded", "shutting_down", "ledger_unavailable"})
