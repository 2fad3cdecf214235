"""From a request to the facts that placement decides on, and everything a dispatch needs; or a refusal.

All checks that need no engine are here: who asks, for which model, in which shape. The prompt is read once, as raw
slices, to be fingerprinted; its text is not kept beyond the body itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import msgspec
import xxhash

from warmroute.contract import headers as names
from warmroute.contract.identity import (
    SESSION_FIELDS,
    InvalidSessionKey,
    Session,
    derived_key_of_text,
    lineage_parts,
    session_of,
)
from warmroute.contract.steering import REFUSED_FIELD_PREFIX, REFUSED_FIELDS
from warmroute_proxy.core.facts import Facts
from warmroute_proxy.core.fingerprint import Fingerprint, MalformedPrompt, fingerprint_chat, fingerprint_text
from warmroute_proxy.server.body import Body
from warmroute_proxy.server.config import ANY, Config, ModelConfig, TenantConfig
from warmroute_proxy.server.errors import Refusal
from warmroute_proxy.server.exchange import Request
from warmroute_proxy.server.secrets import Secrets

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
ROUTES: Final = frozenset({CHAT, COMPLETIONS})

MAX_CHOICES: Final = 128
DEFAULT_OUTPUT_TOKENS: Final = 256  # expected where the client sets no maximum
MAX_EXPECTED_OUTPUT_TOKENS: Final = 1024  # a maximum says little about the answer: agents' turns are short

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
"""Types of what the OpenAI API defines and the proxy does not read otherwise; null is absent."""


@dataclass(slots=True)
class Intake:
    """A request that may be dispatched. `session` is the 16 hex digits that stand for its key, or None."""

    tenant: TenantConfig
    route: str
    body: Body
    model: ModelConfig
    alias: str | None
    stream: bool
    include_usage: bool
    stream_options: Mapping[str, Any]
    keep_sglext: bool
    choices: int
    metadata: dict[str, Any] | None
    """What goes to the engine instead of the client's `metadata`, where that names a session."""
    salt: str
    session: str | None
    facts: Facts
    forwarded_from: str | None


def read(
    request: Request, tenant: TenantConfig, config: Config, secrets: Secrets, forwarded_from: str | None
) -> Intake:
    """Check and read a request; `Refusal` says what is wrong with it."""
    body = Body(request.body)
    for name in [n for n in body.members if n in REFUSED_FIELDS or n.startswith(REFUSED_FIELD_PREFIX)]:
        raise Refusal(
            400, f"field {name!r} is set by the proxy, not by clients; remove it", code="forbidden_field", param=name
        )
    asked = _required(body, "model", str)
    model = config.model_by_name.get(asked)
    if model is None or (ANY not in tenant.models and model.name not in tenant.models):
        raise Refusal(
            404,
            f"the model {asked!r} does not exist or you have no access to it",
            code="model_not_found",
            param="model",
        )
    for name in _FIELD_TYPES.keys() & body.members.keys():
        _optional(body, name, _FIELD_TYPES[name])
    stream = _optional(body, "stream", bool) or False
    stream_options = _optional(body, "stream_options", dict[str, Any]) or {}
    if not isinstance(stream_options.get("include_usage", False), bool | None):
        raise Refusal(
            400, "stream_options.include_usage is not true or false", code="invalid_type", param="stream_options"
        )
    choices = _counted(body, "n", 1, MAX_CHOICES) or 1
    limits = [_counted(body, name, 1, 2**31 - 1) for name in ("max_tokens", "max_completion_tokens")]
    salt = secrets.cache_salt(tenant.share_group, tenant.salt_epoch)
    seed = xxhash.xxh3_64_intdigest(model.name.encode(), seed=int(salt[:16], 16))
    prompt = _fingerprint(request.path, body, seed)
    session = _session(request, body, prompt)
    return Intake(
        tenant=tenant,
        route=request.path,
        body=body,
        model=model,
        alias=asked if asked != model.name else None,
        stream=stream,
        include_usage=stream and stream_options.get("include_usage") is True,
        stream_options=stream_options,
        keep_sglext=_optional(body, "return_cached_tokens_details", bool) or False,
        choices=choices,
        metadata=_without_session(body),
        salt=salt,
        session=secrets.session_hash(tenant.share_group, session.key) if session else None,
        facts=_facts(
            request, tenant, model, secrets, prompt, session, next((n for n in limits if n), None), forwarded_from
        ),
        forwarded_from=forwarded_from,
    )


def _facts(
    request: Request,
    tenant: TenantConfig,
    model: ModelConfig,
    secrets: Secrets,
    prompt: Fingerprint,
    session: Session | None,
    limit: int | None,
    forwarded_from: str | None,
) -> Facts:
    agent, parent = lineage_parts(request.headers)
    session_key = int(secrets.session_hash(tenant.share_group, session.key), 16) if session else None
    thread = f"{model.name}\0{agent}\0{prompt.tools_digest}".encode()
    lineage = f"{model.name}\0{agent}\0{prompt.tools_system_digest}".encode()
    seed = prompt.chain.hashes[0] if session_key is None else session_key
    return Facts(
        model=model.name,
        lineage=xxhash.xxh3_64_intdigest(lineage, seed),
        thread=None if session_key is None else xxhash.xxh3_64_intdigest(thread, seed),
        session=session_key,
        derived=session is None or session.derived,
        parent=int(secrets.session_hash(tenant.share_group, parent), 16) if parent else None,
        chain=prompt.chain,
        structural_bytes=prompt.structural_bytes,
        turn=prompt.turn,
        expected_output_tokens=min(limit or DEFAULT_OUTPUT_TOKENS, MAX_EXPECTED_OUTPUT_TOKENS),
        home_hint=request.headers.get(names.HOME),
        allowed_regions=None if ANY in tenant.regions else tenant.regions,
        may_forward=forwarded_from is None,
        salt_epoch=tenant.salt_epoch,
    )


def _fingerprint(path: str, body: Body, seed: int) -> Fingerprint:
    try:
        if path == COMPLETIONS:
            return fingerprint_text(_present(body, "prompt"), seed)
        messages = _present(body, "messages")
        tools = body.members.get("tools")
        return fingerprint_chat(None if tools is None or _is_null(tools) else tools, messages, seed)
    except MalformedPrompt as error:
        raise Refusal(400, str(error), code="invalid_value", param=error.path) from None


class _Utf8(dict[str, str]):
    """Headers whose values are read as UTF-8 where they are that, so that a key is the same in header and body."""

    def get(self, name: str, default: Any = None) -> Any:
        value = super().get(name, default)
        if not isinstance(value, str) or value.isascii():
            return value
        try:
            return value.encode("latin-1").decode()
        except UnicodeDecodeError:
            return value


def _session(request: Request, body: Body, prompt: Fingerprint) -> Session | None:
    fields = {}
    for name in SESSION_FIELDS:
        raw = body.members.get(name)
        if raw is not None:
            try:
                fields[name] = msgspec.json.decode(raw)
            except (msgspec.DecodeError, ValueError, RecursionError):
                raise Refusal(400, f"field {name!r} is not valid JSON", code="invalid_json", param=name) from None
    try:
        found = session_of(_Utf8(request.headers), fields)
    except InvalidSessionKey as error:
        raise Refusal(400, str(error), code="invalid_session_key", param=error.source) from None
    if found is None and prompt.first_user_text:
        return Session(derived_key_of_text(prompt.first_user_text), "derived", True)
    return found


def _without_session(body: Body) -> dict[str, Any] | None:
    """The client's metadata without the session that Claude Code puts into its user id."""
    metadata = _optional(body, "metadata", dict)
    if not metadata or session_of({}, {"metadata": metadata}) is None:
        return None
    return {name: value for name, value in metadata.items() if name != "user_id"}


def _present(body: Body, name: str) -> msgspec.Raw:
    raw = body.members.get(name)
    if raw is None:
        raise Refusal(400, f"the request body has no {name!r}", code="missing_field", param=name)
    return raw


def _required(body: Body, name: str, kind: type[T]) -> T:
    return _decode(_present(body, name), name, kind)


def _optional(body: Body, name: str, kind: type[T]) -> T | None:
    raw = body.members.get(name)
    return None if raw is None or _is_null(raw) else _decode(raw, name, kind)


def _is_null(raw: msgspec.Raw) -> bool:
    return len(memoryview(raw)) == 4 and bytes(raw) == b"null"


def _counted(body: Body, name: str, low: int, high: int) -> int | None:
    value = _optional(body, name, int)
    if value is not None and not low <= value <= high:
        raise Refusal(400, f"{name} is {value}, it must be between {low} and {high}", code="invalid_value", param=name)
    return value


def _decode(raw: msgspec.Raw, name: str, kind: type[T]) -> T:
    decode = _DECODERS.get(kind)
    if decode is None:  # of the few types that this file names
        decode = _DECODERS[kind] = msgspec.json.Decoder(kind).decode
    try:
        return cast("T", decode(raw))
    except msgspec.ValidationError as error:
        raise Refusal(400, f"field {name!r} has the wrong type: {error}", code="invalid_type", param=name) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Refusal(400, f"field {name!r} is not valid JSON: {error}", code="invalid_json", param=name) from None
