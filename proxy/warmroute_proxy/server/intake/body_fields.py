"""The fields of a request body that the proxy decodes: their types, their bounds, and which of them a body has.

What there is to read follows from the names of a body alone. Clients send few kinds of body, so that is kept.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import msgspec

from warmroute.contract.identity import SESSION_FIELDS
from warmroute.contract.steering import REFUSED_FIELD_PREFIX, REFUSED_FIELDS
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.intake.body import Body

MAX_PLANS: Final = 512  # kept; all are dropped when it is full
MAX_PLAN_NAMES: Final = 64
MAX_PLAN_CHARS: Final = 1024
MAX_CHOICES: Final = 128

T = TypeVar("T")
_DECODERS: Final[dict[Any, Callable[[msgspec.Raw], Any]]] = {}

_FIELD_TYPES: Final[dict[str, Any]] = {
    "temperature": float,
    "top_p": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "seed": int,
    "stop": str | list[str],
    "user": str,
    "logit_bias": dict[str, float],
    "response_format": dict[str, msgspec.Raw],
    "parallel_tool_calls": bool,
    "prompt_cache_key": str,
    "promptCacheKey": str,
    "session_id": str,
}
"""Types of fields that the OpenAI API defines and the proxy only checks; null is absent."""


_READ_TYPES: Final[dict[str, Any]] = {
    **_FIELD_TYPES,
    "stream": bool,
    "stream_options": dict[str, Any],
    "n": int,
    "max_tokens": int,
    "max_completion_tokens": int,
    "return_cached_tokens_details": bool,
    "metadata": dict,
}
"""Types of all fields that are decoded besides the model; null is absent."""

_READERS: Final = {name: msgspec.json.Decoder(kind | None).decode for name, kind in _READ_TYPES.items()}
KEPT_DECODED: Final = frozenset({"metadata", "stream_options"})  # by the intake
_COUNTS: Final = (("n", MAX_CHOICES), ("max_tokens", 2**31 - 1), ("max_completion_tokens", 2**31 - 1))


class Plan:
    """The fields to read of a body with these names."""

    __slots__ = ("forbidden", "readers", "session_fields")

    def __init__(
        self,
        forbidden: str | None,
        readers: tuple[tuple[str, Callable[[msgspec.Raw], Any]], ...],
        session_fields: tuple[str, ...],
    ) -> None:
        self.forbidden = forbidden
        self.readers = readers
        self.session_fields = session_fields


_PLANS: Final[dict[tuple[str, ...], Plan]] = {}  # kept: clients send few kinds of body


def plan_of(names: tuple[str, ...]) -> Plan:
    """The plan of a body with these names."""
    plan = _PLANS.get(names)
    if plan is None:
        plan = Plan(
            next((n for n in names if n in REFUSED_FIELDS or n.startswith(REFUSED_FIELD_PREFIX)), None),
            tuple((name, _READERS[name]) for name in names if name in _READERS),
            tuple(name for name in SESSION_FIELDS if name in names),
        )
        if len(names) <= MAX_PLAN_NAMES and sum(map(len, names)) <= MAX_PLAN_CHARS:
            if len(_PLANS) >= MAX_PLANS:
                _PLANS.clear()
            _PLANS[names] = plan
    return plan


def values_of(body: Body, plan: Plan) -> dict[str, Any]:
    """The decoded members besides the model and the prompt. Raises: Refusal, where a type or a bound is wrong."""
    members = body.members
    values: dict[str, Any] = {}
    for name, reader in plan.readers:
        raw = members[name]
        try:
            values[name] = reader(raw)
        except (msgspec.DecodeError, ValueError, RecursionError):
            decode(raw, name, _READ_TYPES[name])  # raises a Refusal with the reason
            raise
    options = values.get("stream_options")
    if options and not isinstance(options.get("include_usage", False), bool | None):
        raise Refusal(
            400, "stream_options.include_usage is not true or false", code="invalid_type", param="stream_options"
        )
    for name, high in _COUNTS:
        count = values.get(name)
        if count is not None and not 1 <= count <= high:
            raise Refusal(400, f"{name} is {count}, it must be between 1 and {high}", code="invalid_value", param=name)
    return values


def decode(raw: msgspec.Raw, name: str, kind: type[T]) -> T:
    decoder = _DECODERS.get(kind)
    if decoder is None:  # of the few types that this file names
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind).decode
    try:
        return cast("T", decoder(raw))
    except msgspec.ValidationError as error:
        raise Refusal(400, f"field {name!r} has the wrong type: {error}", code="invalid_type", param=name) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Refusal(400, f"field {name!r} is not valid JSON: {error}", code="invalid_json", param=name) from None
