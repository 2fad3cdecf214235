"""Token counts in the `usage` of an answer of any API or server.

    OpenAI chat     prompt_tokens, prompt_tokens_details.cached_tokens, completion_tokens
    Responses       input_tokens, input_tokens_details.cached_tokens, output_tokens
    Anthropic       input_tokens + cache_read_input_tokens + cache_creation_input_tokens (input_tokens excludes both)
    DeepSeek        prompt_tokens, prompt_cache_hit_tokens
    Moonshot        prompt_tokens, cached_tokens
    LiteLLM         prompt_tokens, cache_read_input_tokens
    Gemini          promptTokenCount, cachedContentTokenCount (absent if 0), candidatesTokenCount
    OpenTelemetry   gen_ai.usage.input_tokens, gen_ai.usage.cache_read.input_tokens, gen_ai.usage.output_tokens

Servers may send anything, so every number is checked before it is added to a sum: a count is absent unless it is a
whole number from 0 to `MAX_COUNT`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

MAX_COUNT: Final = 2**53  # a float is not exact above this

_Names = tuple[str, ...]
_GEMINI_PROMPT: Final[_Names] = ("promptTokenCount", "prompt_token_count")
_OTEL: Final = "gen_ai.usage."
_PROMPT: Final[_Names] = ("prompt_tokens", *_GEMINI_PROMPT, f"{_OTEL}input_tokens", f"{_OTEL}prompt_tokens")
_PROMPT_PARTS: Final[_Names] = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_CACHED: Final[_Names] = (
    "prompt_tokens_details/cached_tokens", "input_tokens_details/cached_tokens", "prompt_cache_hit_tokens",
    "cached_tokens", "cache_read_input_tokens", "cachedContentTokenCount", "cached_content_token_count",
    f"{_OTEL}cache_read.input_tokens", f"{_OTEL}cache_read_input_tokens",
    f"{_OTEL}prompt_tokens_details.cached_tokens",
)  # fmt: skip
_COMPLETION: Final[_Names] = (
    "completion_tokens", "output_tokens", f"{_OTEL}output_tokens", f"{_OTEL}completion_tokens"
)  # fmt: skip
_COMPLETION_PARTS: Final[_Names] = (
    "candidatesTokenCount", "thoughtsTokenCount", "candidates_token_count", "thoughts_token_count"
)  # fmt: skip
_TOTAL: Final[_Names] = ("total_tokens", "totalTokenCount", "total_token_count")
_WRITTEN: Final[_Names] = ("prompt_tokens_details/cache_write_tokens", "cache_creation_input_tokens")
_WRITTEN_FOR_AN_HOUR: Final[_Names] = ("cache_creation/ephemeral_1h_input_tokens",)


class Counts(NamedTuple):
    """The counts in a usage; an absent count is None. `prompt` includes cached and written tokens."""

    prompt: int | None
    cached: int | None
    completion: int | None
    total: int | None = None
    written: int | None = None


class Tokens(NamedTuple):
    """The tokens of a turn. `prompt` includes cached and written tokens."""

    prompt: int
    cached: int | None
    completion: int
    written: int = 0
    written_for_an_hour: int = 0
    """The part of `written` that went to a cache that lives an hour, for which Anthropic's price is higher."""


def usage_in(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The usage in an answer or in an event of a stream; empty if there is none."""
    for outer in (data, data.get("response"), data.get("message")):
        found = (outer.get("usage") or outer.get("usageMetadata")) if isinstance(outer, Mapping) else None
        if isinstance(found, Mapping):
            return found
    return {}


def counts_of(usage: Mapping[str, Any], *, signed: bool = False) -> Counts:
    """The counts as the usage states them. `signed`: include counts below 0, which `receipt.check` reports."""
    least = -MAX_COUNT if signed else 0
    prompt, completion = _first(usage, _PROMPT, least), _first(usage, _COMPLETION, least)
    return Counts(
        prompt=_sum(usage, _PROMPT_PARTS, least) if prompt is None else prompt,
        cached=_first(usage, _CACHED, least),
        completion=_sum(usage, _COMPLETION_PARTS, least) if completion is None else completion,
        total=_first(usage, _TOTAL, least),
        written=_first(usage, _WRITTEN, least),
    )


def tokens_of(usage: Mapping[str, Any]) -> Tokens:
    """The counts made consistent: an absent count is 0, and no part is larger than its whole."""
    counts = counts_of(usage)
    prompt, cached = counts.prompt or 0, counts.cached
    if cached is None and (counts.written is not None or any(name in usage for name in _GEMINI_PROMPT)):
        cached = 0  # these usages omit the count if nothing was cached
    cached = None if cached is None else min(cached, prompt)
    written = min(counts.written or 0, prompt - (cached or 0))
    hour = min(_first(usage, _WRITTEN_FOR_AN_HOUR, 0) or 0, written)
    return Tokens(prompt, cached, counts.completion or 0, written, hour)


def whole(value: object, least: int = 0) -> int | None:
    """A number from `least` to `MAX_COUNT`; None for anything else."""
    return value if type(value) is int and least <= value <= MAX_COUNT else None


def _first(usage: Mapping[str, Any], names: _Names, least: int) -> int | None:
    return next(_counts(usage, names, least), None)


def _sum(usage: Mapping[str, Any], names: _Names, least: int) -> int | None:
    found = list(_counts(usage, names, least))
    return sum(found) if found else None


def _counts(usage: Mapping[str, Any], names: _Names, least: int) -> Iterator[int]:
    """The counts at these names. `object/name` is a member of a nested object."""
    for name in names:
        outer, _, inner = name.partition("/")
        value = usage.get(outer)
        if inner:
            value = value.get(inner) if isinstance(value, Mapping) else None
        if (count := whole(value, least)) is not None:
            yield count
