"""Reads a request body into an `Ask`: everything the engine needs to know of a request, checked once.

Unknown fields are ignored and unknown model names are accepted, as engines of this protocol do.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from warmroute_backend.engine import prompt, text
from warmroute_backend.engine.errors import Refusal

Kind = Literal["chat", "completion", "generate"]
Body = Mapping[str, Any]

MAX_CHOICES = 128
MAX_STOPS = 64
MAX_LOGPROBS = 128
_decode = msgspec.json.Decoder().decode
_TYPE_NAMES = {bool: "a boolean", int: "an integer", str: "a string", dict: "an object", list: "a list"}


@dataclass(slots=True)
class Ask:
    """One request. `None` means that the client did not say."""

    kind: Kind
    rid: str
    model: str | None
    rendered: bytes
    namespace: bytes
    script: text.Script
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cached_details: bool
    n: int
    max_tokens: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    thinking: bool
    logprobs: int | None
    room: int | None
    bootstrap_host: str | None
    bootstrap_port: int | None
    dp_rank: int | None
    prefill_dp_rank: int | None


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request."""
    try:
        body = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"the request body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the request body must be a JSON object")
    return body


def read(kind: Kind, body: Body, dp_rank_header: bytes | None) -> Ask:
    """Check a body and take from it what the engine uses."""
    sampling = _typed(body, "sampling_params", dict) or {} if kind == "generate" else body
    options = _typed(body, "stream_options", dict) or {}
    stream = bool(_typed(body, "stream", bool))
    return Ask(
        kind=kind,
        rid=_typed(body, "rid", str) or os.urandom(16).hex(),
        model=_typed(body, "model", str),
        rendered=_rendered(kind, body),
        namespace=_namespace(body),
        script=text.read_script(body),
        stream=stream,
        include_usage=stream and bool(options.get("include_usage")),
        continuous_usage=stream and bool(options.get("continuous_usage_stats")),
        cached_details=bool(_typed(body, "return_cached_tokens_details", bool)),
        n=_integer(sampling, "n", 1, MAX_CHOICES) or 1,
        max_tokens=_max_tokens(kind, sampling),
        stops=_stops(sampling),
        ignore_eos=bool(_typed(sampling, "ignore_eos", bool)),
        thinking=kind == "chat" and _thinking(body),
        logprobs=_logprobs(kind, body),
        room=_integer(body, "bootstrap_room", None, (1 << 64) - 1),
        bootstrap_host=_typed(body, "bootstrap_host", str),
        bootstrap_port=_integer(body, "bootstrap_port", 1, 65_535),
        dp_rank=_dp_rank(body, dp_rank_header),
        prefill_dp_rank=_integer(body, "disagg_prefill_dp_rank", 0, None),
    )


def _rendered(kind: Kind, body: Body) -> bytes:
    if kind == "chat":
        _check_messages(body)
        return prompt.render(body)
    if kind == "completion":
        given = body.get("prompt")
    else:
        given = body.get("text") if body.get("text") is not None else body.get("input_ids")
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str) or _are_token_ids(given):
        return prompt.render_plain(given)
    raise Refusal(400, "the prompt must be one string or one list of token ids; batches are not modelled")


def _are_token_ids(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(token) is int and token >= 0 for token in given)


def _check_messages(body: Body) -> None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, "messages must be a list with at least one message", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refusal(400, f"messages[{i}] must be an object with a role", param="messages")
        if not isinstance(message.get("content"), str | list | None):
            raise Refusal(400, f"messages[{i}].content must be a string or a list of parts", param="messages")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise Refusal(400, f"messages[{i}].tool_calls must be a list of objects", param="messages")
        if any(not isinstance(call.get("function") or {}, dict) for call in calls or ()):
            raise Refusal(400, f"messages[{i}].tool_calls[].function must be an object", param="messages")
    _typed(body, "tools", list)


def _namespace(body: Body) -> bytes:
    """`cache_salt` and `extra_key` name separate trees: each with its length, so that no two pairs collide."""
    out = b""
    for name in ("cache_salt", "extra_key"):
        value = _typed(body, name, str)
        out += b"-" if value is None else b"%d:%b" % (len(value.encode()), value.encode())
    return out


def _max_tokens(kind: Kind, sampling: Body) -> int | None:
    if kind == "generate":
        return _integer(sampling, "max_new_tokens", 1, None)
    limit = _integer(sampling, "max_completion_tokens", 1, None)
    return limit if limit is not None else _integer(sampling, "max_tokens", 1, None)


def _stops(sampling: Body) -> tuple[str, ...]:
    stop = sampling.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(item, str) for item in stops):
        raise Refusal(400, "stop must be a string or a list of strings", param="stop")
    return tuple(stops)


def _thinking(body: Body) -> bool:
    kwargs = _typed(body, "chat_template_kwargs", dict) or {}
    for name in ("enable_thinking", "thinking"):
        if name in kwargs:
            return bool(kwargs[name])
    effort = body.get("reasoning_effort")
    return effort is not None and effort != "none"


def _logprobs(kind: Kind, body: Body) -> int | None:
    """How many top alternatives are wanted with each token; None when no logprobs are."""
    if kind == "completion":
        return _integer(body, "logprobs", 0, MAX_LOGPROBS)
    if kind == "generate":
        return _integer(body, "top_logprobs_num", 0, MAX_LOGPROBS) or 0 if body.get("return_logprob") else None
    if not _typed(body, "logprobs", bool):
        return None
    return _integer(body, "top_logprobs", 0, MAX_LOGPROBS) or 0


def _dp_rank(body: Body, header: bytes | None) -> int | None:
    if header is not None:
        try:
            return int(header)
        except ValueError:
            raise Refusal(400, "X-Data-Parallel-Rank must be an integer") from None
    rank = _integer(body, "routed_dp_rank", None, None)
    return rank if rank is not None else _integer(body, "data_parallel_rank", None, None)


def _typed(body: Body, name: str, kind: type) -> Any:
    value = body.get(name)
    if value is not None and not isinstance(value, kind):
        raise Refusal(400, f"{name} must be {_TYPE_NAMES[kind]}", param=name)
    return value


def _integer(body: Body, name: str, low: int | None, high: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise Refusal(400, f"{name} must be an integer", param=name)
    if low is not None and value < low:
        raise Refusal(400, f"{name} must be at least {low}, got {value}", param=name)
    if high is not None and value > high:
        raise Refusal(400, f"{name} must be at most {high}, got {value}", param=name)
    return value
