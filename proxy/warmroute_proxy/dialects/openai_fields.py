"""The fields of OpenAI's chat completions and completions that may reach an engine, with SGLang's extensions.

Sources: OpenAI's API reference, and the request schemas and checks of SGLang 0.5.23
(`srt/entrypoints/openai/protocol.py`, `srt/sampling/sampling_params.py`). SGLang's bounds apply if they are narrower.
Fields that steer an engine (`warmroute.contract.steering`) are refused or removed before this list applies.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypedDict

from msgspec import Meta

from warmroute_proxy.dialects.fields import Field
from warmroute_proxy.dialects.work import MAX_TOOLS_BYTES

MAX_CHOICES: Final = 128
MAX_TOP_LOGPROBS: Final = 20
"""OpenAI's bound. SGLang has no bound, and its process ends if the number exceeds the vocabulary."""

MAX_COUNT: Final = 2**31 - 1
MAX_TOP_K: Final = 1 << 30
"""SGLang's `TOP_K_ALL`."""

MIN_REPETITION_PENALTY: Final = 0.01
"""SGLang takes any penalty above 0 and divides logits by it in 32 bits. Its process ends if they overflow:
`tests.hostile.field_fuzz` found this with 1e-300.
"""

MAX_STOPS: Final = 32
"""SGLang's `MAX_STOP_COUNT`."""

MAX_STOP_CHARS: Final = 1024
MAX_SUFFIX_CHARS: Final = 262_144
MAX_BIASES: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 128
MAX_SCHEMA_BYTES: Final = 65_536
MAX_SCHEMA_DEPTH: Final = 32
MAX_SCHEMA_PATTERNS: Final = 32
MAX_SCHEMA_REPEATS: Final = 65_536
"""The maximum number of patterns in a schema, and the maximum sum of its lengths and counts (`maxLength`, `minItems`,
...). XGrammar compiles patterns, lengths and counts slowly. For a vocabulary of 96,000 tokens, XGrammar 0.2.8 took 2.7
s of CPU time for 32 patterns, and more than 100 s for 128.
"""

MAX_PATTERN_CHARS: Final = 4096
MAX_SMALL_BYTES: Final = 16_384
MAX_SMALL_DEPTH: Final = 8

_Flag = bool
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Name = Annotated[str, Meta(max_length=1024)]
_Stop = Annotated[str, Meta(max_length=MAX_STOP_CHARS)]
_Pattern = Annotated[str, Meta(max_length=MAX_PATTERN_CHARS)]
_TokenIds = Annotated[list[int], Meta(max_length=MAX_STOP_TOKEN_IDS)]


class _StreamOptions(TypedDict, total=False):
    """The members of `stream_options` that are read; others are dropped if the answer is a stream."""

    include_usage: bool | None
    include_obfuscation: bool | None
    continuous_usage_stats: bool | None


_TEMPLATE_NAMES: Final = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length",
        "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize",
        "tokenizer_kwargs", "tools", "truncation",
    }
)  # fmt: skip
"""Parameters of the renderer itself, which `chat_template_kwargs` must not set."""


def _template_arguments(value: Any) -> str | None:
    taken = sorted(_TEMPLATE_NAMES.intersection(value))
    return f"may not set {taken[0]!r}: the engine sets it itself" if taken else None


def _bias_ids(value: Any) -> list[int]:
    """The token ids that `logit_bias` names; -1 for a key that is not a number."""
    return [int(key) if key.isascii() and key.isdigit() and len(key) < 12 else -1 for key in value]


def _prompt_ids(value: Any) -> list[int]:
    """The token ids of a prompt that is a list, including those in nested lists."""
    if not isinstance(value, list):
        return []
    ids = []
    for each in value:
        if isinstance(each, int):
            ids.append(each)
        elif isinstance(each, list):
            ids += each
    return ids


_REPEATS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def _response_format(value: Any) -> str | None:
    """Refuse formats that let an engine compile a client's own grammar, and schemas that are out of bounds."""
    kind = value.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        return f"has the type {str(kind)[:40]!r}; it must be text, json_object or json_schema"
    return schema_problem(value.get("json_schema"))


def schema_problem(schema: Any) -> str | None:
    """Refuse short schemas that take an engine's grammar compiler seconds or longer."""
    patterns, repeats, left = 0, 0.0, [schema]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += each.values()
            patterns += isinstance(each.get("pattern"), str) + len(_mapping(each.get("patternProperties")))
            repeats += sum(max(0, count) for name in _REPEATS if isinstance(count := each.get(name), int | float))
    if patterns > MAX_SCHEMA_PATTERNS:
        return f"has {patterns} patterns in its schema, at most {MAX_SCHEMA_PATTERNS} are taken"
    if repeats > MAX_SCHEMA_REPEATS:
        return f"has lengths and counts of {repeats:.0f} in all in its schema, at most {MAX_SCHEMA_REPEATS} are taken"
    return None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _any(max_bytes: int, max_depth: int) -> Field:
    """A field with any JSON value, bounded in size and depth."""
    return Field(None, max_bytes=max_bytes, max_depth=max_depth)


_SMALL: Final = _any(MAX_SMALL_BYTES, MAX_SMALL_DEPTH)
_FLAG: Final = Field(_Flag)
_TEXT: Final = Field(_Name)

_SAMPLING: Final[Mapping[str, Field]] = {
    "temperature": Field(Annotated[float, Meta(ge=0, le=100)]),
    "top_p": Field(Annotated[float, Meta(ge=0, le=1)]),
    "top_k": Field(Annotated[int, Meta(ge=-1, le=MAX_TOP_K)]),
    "min_p": Field(Annotated[float, Meta(ge=0, le=1)]),
    "frequency_penalty": Field(_Penalty),
    "presence_penalty": Field(_Penalty),
    "repetition_penalty": Field(Annotated[float, Meta(ge=MIN_REPETITION_PENALTY, le=2)]),
    "seed": Field(Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]),
    "n": Field(Annotated[int, Meta(ge=1, le=MAX_CHOICES)]),
    "max_tokens": Field(Annotated[int, Meta(ge=0, le=MAX_COUNT)]),
    "min_tokens": Field(Annotated[int, Meta(ge=0, le=MAX_COUNT)]),
    "stop": Field(_Stop | Annotated[list[_Stop], Meta(max_length=MAX_STOPS)]),
    "stop_token_ids": Field(_TokenIds, token_ids=list),
    "logit_bias": Field(
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)], token_ids=_bias_ids
    ),
    "no_stop_trim": _FLAG,
    "ignore_eos": _FLAG,
    "skip_special_tokens": _FLAG,
    "response_format": Field(
        dict[str, Any], max_bytes=MAX_SCHEMA_BYTES, max_depth=MAX_SCHEMA_DEPTH, check=_response_format
    ),
    "regex": Field(_Pattern, needs_grant=True),
    "ebnf": Field(_Pattern, needs_grant=True),
    "structural_tag": Field(_Pattern, needs_grant=True),
    "stop_regex": Field(_Pattern | Annotated[list[_Pattern], Meta(max_length=MAX_STOPS)], needs_grant=True),
}
"""Sampling fields, which chat completions and completions take."""

_REQUEST: Final[Mapping[str, Field]] = {
    "model": _TEXT,
    "stream": _FLAG,
    "stream_options": Field(_StreamOptions, max_bytes=MAX_SMALL_BYTES),
    "user": _TEXT,
    "metadata": Field(dict[str, Any], max_bytes=MAX_SMALL_BYTES, max_depth=MAX_SMALL_DEPTH),
    "store": _FLAG,
    "service_tier": _TEXT,
    "safety_identifier": _TEXT,
    "return_cached_tokens_details": _FLAG,
    "prompt_cache_key": _TEXT,
    "promptCacheKey": _TEXT,
    "prompt_cache_retention": _TEXT,
    "session_id": _TEXT,
    "conversation": _SMALL,
}
"""Fields of chat completions and completions that identify the user or session, or choose the form of the answer."""

CHAT_FIELDS: Final[Mapping[str, Field]] = {
    **_SAMPLING,
    **_REQUEST,
    "messages": Field(None),
    "tools": _any(MAX_TOOLS_BYTES, MAX_SCHEMA_DEPTH),
    "tool_choice": _SMALL,
    "parallel_tool_calls": _FLAG,
    "functions": _any(MAX_TOOLS_BYTES, MAX_SCHEMA_DEPTH),
    "function_call": _SMALL,
    "max_completion_tokens": _SAMPLING["max_tokens"],
    "logprobs": _FLAG,
    "top_logprobs": Field(Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]),
    "reasoning_effort": Field(Annotated[str, Meta(max_length=16)] | Annotated[float, Meta(ge=0, lt=1)]),
    "reasoning": _SMALL,
    "thinking": _SMALL,
    "verbosity": _TEXT,
    "modalities": Field(list[Literal["text"]]),
    "prediction": _any(MAX_SCHEMA_BYTES, MAX_SMALL_DEPTH),
    "web_search_options": _SMALL,
    "separate_reasoning": _FLAG,
    "stream_reasoning": _FLAG,
    "continue_final_message": _FLAG,
    "add_generation_prompt": _FLAG,
    "chat_template_kwargs": Field(
        dict[str, Any], max_bytes=MAX_SMALL_BYTES, max_depth=MAX_SMALL_DEPTH, check=_template_arguments
    ),
}
"""`POST /v1/chat/completions`."""

COMPLETION_FIELDS: Final[Mapping[str, Field]] = {
    **_SAMPLING,
    **_REQUEST,
    "prompt": Field(str | list[str | int | list[int]], token_ids=_prompt_ids),
    "echo": _FLAG,
    "suffix": Field(Annotated[str, Meta(max_length=MAX_SUFFIX_CHARS)]),
    "best_of": _SAMPLING["n"],
    "logprobs": Field(Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]),
}
"""`POST /v1/completions`."""

FIELDS_OF_ROUTE: Final = {"/v1/chat/completions": CHAT_FIELDS, "/v1/completions": COMPLETION_FIELDS}

GRANTABLE_FIELDS: Final = frozenset(name for name, field in CHAT_FIELDS.items() if field.needs_grant)
"""The fields that need a tenant's permission."""
