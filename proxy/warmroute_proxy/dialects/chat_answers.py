"""Reads chat answers for the translators: whole answers, the chunks of a stream, their usage, and errors.

Engines write some members differently from OpenAI: content as a list of parts, arguments as an object, a call without
an index, text with half of a surrogate pair. The meaning of these forms is plain, so they are read. Any other form
counts as an engine's error.
"""

import json
import re
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.work import MAX_CALLS, MAX_PARTS, check_answer

_encode: Final = msgspec.json.Encoder().encode


class Function(msgspec.Struct):
    """A called function, or a piece of one in a stream. `text` gives the arguments as text, even if they came as an
    object.
    """

    name: str | None = None
    arguments: str | dict[str, Raw] | None = None

    def text(self) -> str:
        given = self.arguments
        if given is None or isinstance(given, str):
            return given or ""
        return str(_encode(given), "utf-8", "replace")


class ToolCall(msgspec.Struct):
    """A tool call, or a piece of one in a stream."""

    index: int | str | None = None
    id: str | None = None
    function: Function | None = None
    name: str | None = None
    arguments: str | dict[str, Raw] | None = None
    """Some engines write `name` and `arguments` here, without a `function`."""

    extra_content: Raw = Raw()
    """What the engine wants back with the call, such as a thought signature."""

    def number(self) -> int | None:
        """The index as a number, even if it came as text; None if it cannot be read."""
        given = self.index
        if isinstance(given, str):
            return int(given) if given.isdecimal() and len(given) < 10 else None
        return given

    def called(self) -> Function:
        return Function(self.name, self.arguments) if self.function is None else self.function


class _Piece(msgspec.Struct):
    """A part of content that came as a list."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None
    thinking: str | list["_Piece"] | None = None


class Output(msgspec.Struct):
    """The model's output, or a piece of it in a stream. Content that came as a list is joined to one text."""

    content: str | list[_Piece] | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    """vLLM's and OpenRouter's name for `reasoning_content`."""

    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    """OpenAI's older member, from before an answer could have several calls."""

    def __post_init__(self) -> None:
        """Move values under other names to the usual members, and split parts into text, reasoning and refusal."""
        if self.reasoning_content is None and isinstance(self.reasoning, str):
            self.reasoning_content = self.reasoning
        if self.function_call is not None and not self.tool_calls:
            self.tool_calls = [ToolCall(0, None, self.function_call)]
        if self.tool_calls is not None and len(self.tool_calls) > MAX_CALLS:
            raise ValueError(f"it calls more than {MAX_CALLS} tools")
        parts = self.content
        if not isinstance(parts, list):
            return
        if len(parts) > MAX_PARTS:
            raise ValueError(f"its content has more than {MAX_PARTS} parts")
        self.content = "".join([piece.text or "" for piece in parts if piece.thinking is None])
        thoughts = "".join([_thought(piece.thinking) for piece in parts])
        self.reasoning_content = (self.reasoning_content or "") + thoughts or None
        self.refusal = (self.refusal or "") + "".join([piece.refusal or "" for piece in parts]) or None

    def text(self) -> str:
        return self.content if isinstance(self.content, str) else ""


def _thought(thinking: str | list[_Piece] | None) -> str:
    if isinstance(thinking, list):
        return "".join([piece.text or "" for piece in thinking])
    return thinking or ""


class Details(msgspec.Struct):
    """Details of the tokens of a prompt or an answer."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_tokens: int | None = None


class Usage(msgspec.Struct):
    """The usage of a chat answer. Once it is settled (final), it has the cost and the receipt that explains it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    reasoning_tokens: int | None = None
    cost: Raw = Raw()
    warmroute: Raw = Raw()

    def cached(self) -> int | None:
        """How many tokens of the prompt were cached; None if they were not counted."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details is not None else None

    def written(self) -> int:
        """How many uncached prompt tokens a server wrote to its cache, as OpenRouter or LiteLLM reports them."""
        details = self.prompt_tokens_details
        stated = 0 if details is None else details.cache_write_tokens or details.cache_creation_tokens or 0
        return min(max(stated, 0), max(self.prompt_tokens - (self.cached() or 0), 0))

    def reasoning(self) -> int:
        """How many tokens of the answer are reasoning. SGLang writes the count in the details, or beside them."""
        details = self.completion_tokens_details
        nested = details.reasoning_tokens if details is not None else None
        return nested if nested is not None else self.reasoning_tokens or 0

    def receipt(self) -> dict[str, Raw]:
        """The cost and the receipt, as members for the usage of any dialect."""
        found = {}
        if self.cost:
            found["cost"] = self.cost
        if self.warmroute:
            found["warmroute"] = self.warmroute
        return found


class ChunkChoice(msgspec.Struct):
    """One choice in a chunk of a stream."""

    delta: Output | None = None
    message: Output | None = None
    """Some engines write this instead of a `delta`."""

    finish_reason: str | None = None
    matched_stop: Any = None
    stop_reason: Any = None

    def __post_init__(self) -> None:
        if self.delta is None:
            self.delta = self.message

    def stopped_at(self) -> object:
        """See `Choice.stopped_at`."""
        return self.stop_reason if self.matched_stop is None else self.matched_stop


class Chunk(msgspec.Struct):
    """One event of a stream. The proxy writes a stream's last `usage`; earlier ones come from the engine unchecked."""

    choices: list[ChunkChoice] | None = None
    usage: Raw = Raw()
    error: Any = None


class Choice(msgspec.Struct):
    """One choice of a whole answer."""

    message: Output
    finish_reason: str | None = None
    matched_stop: Any = None
    stop_reason: Any = None

    def stopped_at(self) -> object:
        """The client's stop text or the token that ended the choice: SGLang's `matched_stop`, vLLM's `stop_reason`."""
        return self.stop_reason if self.matched_stop is None else self.matched_stop


_CALLED: Final = frozenset({"tool_calls", "function_call"})
CONTEXT_FULL: Final = "model_context_window_exceeded"
"""Anthropic's and Zhipu's reason of an answer that ended where the context did."""

_STOPPED_SHORT: Final = frozenset({"length", "content_filter", CONTEXT_FULL})
_OTHER_NAMES: Final = {
    "max_tokens": "length", "model_length": "length", "sensitive": "content_filter", "safety": "content_filter",
    "refusal": "content_filter",
}  # fmt: skip
"""Reasons of Mistral, Zhipu, Google and Anthropic, in small letters, and those of OpenAI with the same meaning."""


def reason_of(stated: str | None, *, calls: bool, cut: bool) -> str | None:
    """The finish reason of an answer: `stated` by the engine, but corrected by the content. Some engines state `stop`
    after a forced tool call, or `tool_calls` without a call or with a `cut` one, whose arguments break off.
    """
    stated = _OTHER_NAMES.get((stated or "").lower(), stated)
    if stated in _STOPPED_SHORT:
        return stated
    if cut:
        return "length"
    if calls:
        return "tool_calls"
    return "stop" if stated in _CALLED else stated


class ChatAnswer(msgspec.Struct):
    """A whole answer."""

    choices: list[Choice]
    usage: Raw = Raw()


class ChatError(msgspec.Struct):
    """An error in chat's format."""

    message: str = "internal error"
    code: Any = None
    param: Any = None


class _ErrorBody(msgspec.Struct):
    error: ChatError


_decode_answer: Final = msgspec.json.Decoder(ChatAnswer)
_decode_error: Final = msgspec.json.Decoder(_ErrorBody).decode
_decode_chunk: Final = msgspec.json.Decoder(Chunk)
_decode_usage: Final = msgspec.json.Decoder(Usage | None)
_decode_text: Final = msgspec.json.Decoder(str)
_HALVES: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_REPLACEMENT: Final = rb"\ufffd"
_BACKSLASH: Final = 0x5C
_PAIR_BYTES: Final = 12
_T = TypeVar("_T")


def has_surrogate(text: bytes) -> bool:
    """Whether JSON text contains an escaped surrogate."""
    return _BACKSLASH in text and (b"\\ud" in text or b"\\uD" in text)


def whole_pairs(raw: bytes) -> bytes:
    """JSON in which U+FFFD replaces each lone half of a surrogate pair."""
    return _HALVES.sub(lambda found: found[0] if len(found[0]) in (2, _PAIR_BYTES) else _REPLACEMENT, raw)


def _decoded(decoder: "msgspec.json.Decoder[_T]", raw: bytes, what: str) -> _T:
    """Decode `raw`. Raises: ValueError, which says that `raw` is not a `what`."""
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return decoder.decode(whole_pairs(raw) if has_surrogate(raw) else with_null(raw))
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise ValueError(f"it is not a {what}") from None


def with_null(raw: bytes) -> bytes:
    """JSON in which null replaces NaN and infinities, which Python writes. Raises: ValueError, if it is not JSON."""
    return json.dumps(json.loads(raw, parse_constant=_no_number)).encode()


def _no_number(_name: str) -> None: ...


def read_answer(raw: bytes) -> tuple[Choice, Usage]:
    """The choice and the usage of a whole answer. Copilot writes announced calls into further choices: they belong to
    the first one. Raises: ValueError, if it cannot be read.
    """
    check_answer(raw)
    answer = _decoded(_decode_answer, raw, "chat completion")
    if not answer.choices:
        raise ValueError("it has no choices")
    first = answer.choices[0]
    if first.finish_reason in _CALLED and not first.message.tool_calls:
        first.message.tool_calls = [call for each in answer.choices for call in each.message.tool_calls or ()]
        if len(first.message.tool_calls) > MAX_CALLS:
            raise ValueError(f"it calls more than {MAX_CALLS} tools")
    return first, read_usage(answer.usage)


def read_chunk(raw: bytes) -> Chunk:
    """An event of a stream. Raises: ValueError, if it cannot be read."""
    check_answer(raw)
    return _decoded(_decode_chunk, raw, "chunk of a chat completion")


def read_text(raw: bytes) -> str:
    """Decode a JSON string, given with its quotes. Raises: ValueError, if it is not a text."""
    return _decoded(_decode_text, raw, "text")


def read_usage(raw: Raw) -> Usage:
    """The usage; an empty one if `raw` is missing or cannot be read."""
    try:
        found = _decode_usage.decode(raw) if raw else None
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found or Usage()


def read_error(body: bytes) -> ChatError:
    try:
        return _decode_error(body).error
    except (msgspec.DecodeError, RecursionError):
        return ChatError()


def error_status(found: dict[str, Any]) -> int:
    """The HTTP status for an error inside a stream, from the error's type and code."""
    kind = found.get("type")
    if kind == "rate_limit_error":
        return 429
    return 400 if kind == "invalid_request_error" else 503 if found.get("code") in _BUSY else 502


_BUSY: Final = frozenset({"no_worker", "draining", "overloaded", "shutting_down", "ledger_unavailable"})
