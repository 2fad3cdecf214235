"""Makes the body for an engine: the client's bytes, without members that may not pass, plus the proxy's own members.

A server other than SGLang gets none of SGLang's fields; it gets the session's hash in its own field for session keys.

In SGLang's PD protocol, the prefill and the decode engine get one body at the same time, with one rid (request id) and
one bootstrap host, port and room. Neither engine can finish without the other. The client gets the decode engine's
answer; the prefill engine's answer is only watched.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from warmroute.contract.providers import PROVIDERS
from warmroute.contract.steering import REMOVED_FIELDS
from warmroute_proxy.dialects.fitting import fitted
from warmroute_proxy.dialects.tool_schemas import functions_only, nested_custom, sound
from warmroute_proxy.dialects.unsupported import (
    CUSTOM,
    FUNCTIONS,
    LIMITS,
    OPTIONAL,
    SCHEMAS,
    WITHOUT_THINKING,
    ZEROS,
    is_of_messages,
    named,
)
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.intake.body import AnyBody
from warmroute_proxy.server.intake.large_body import LargeBody

_REMOVED: Final = REMOVED_FIELDS
_REMOVED_STREAMED: Final = REMOVED_FIELDS | {"stream_options"}
_REMOVED_PREFILL: Final = REMOVED_FIELDS | {"stream", "stream_options"}
_TO_REASONING: Final = ((b'"reasoning_content":', b'"reasoning":'),)
_TO_CONTENT: Final = ((b'"reasoning":"', b'"reasoning_content":"'), (b'"reasoning": "', b'"reasoning_content": "'))
_STREAM_OPTIONS: Final = frozenset({"stream_options"})
_MODEL: Final = frozenset({"model"})
_FREE: Final = (b"null", b'"auto"', b'"none"')
_OF_CHATS: Final = frozenset({SCHEMAS, CUSTOM, *WITHOUT_THINKING, *ZEROS})
_OWN: Final = frozenset({"stream_options", "prompt_cache_key"})
"""Members that the proxy itself may add for a server."""

_NONE: Final[frozenset[str]] = frozenset()
LIMIT: Final = "max_tokens"
_encode: Final = msgspec.json.Encoder().encode


class DispatchFields(Protocol):
    """What engines get of a request besides its body.

    `wire_model`: the model name to send if the client used an alias. `metadata`: what to send instead of the client's
    `metadata`. `dropped`: members that no engine gets.
    """

    @property
    def stream(self) -> bool: ...
    @property
    def keep_sglext(self) -> bool: ...
    @property
    def stream_options(self) -> Mapping[str, Any]: ...
    @property
    def wire_model(self) -> str | None: ...
    @property
    def metadata(self) -> dict[str, Any] | None: ...
    @property
    def model_name(self) -> str: ...
    @property
    def session(self) -> str | None: ...
    @property
    def salt(self) -> str: ...
    @property
    def engine_priority(self) -> int: ...
    @property
    def prompts(self) -> int: ...
    @property
    def choices(self) -> int: ...
    @property
    def counts_first(self) -> bool: ...
    @property
    def dropped(self) -> frozenset[str]: ...


Parts = list[bytes | memoryview]


def answering_body(
    asked: DispatchFields,
    body: AnyBody,
    own: str,
    dp_rank: int | None,
    bootstrap: Mapping[str, Any] | None,
    unsupported: frozenset[str] = _NONE,
) -> Parts:
    """The body for the engine (aggregated or decode) whose answer the client gets. `own`: made by `own_fields`."""
    add: dict[str, Any] | None = None
    if bootstrap is not None or dp_rank is not None:
        add = _placed(bootstrap, dp_rank)
    if not asked.stream:
        return _rewritten(asked, body, _REMOVED, own, add, unsupported)
    add = add or {}
    add["stream_options"] = _stream_options(asked, counts=True)
    return _rewritten(asked, body, _REMOVED_STREAMED, own, add, unsupported)


def provider_body(
    asked: DispatchFields, body: AnyBody, engine: EngineConfig, unsupported: frozenset[str] = _NONE
) -> Parts:
    """The body for a server other than SGLang, with its own field for the session, its own name of the model, and its
    own field for the limit of the answer. `unsupported`: what the server does not take (`dialects.unsupported`).
    """
    add: dict[str, Any] = {}
    drop, provider, model_name = _REMOVED, engine.provider, engine.model_names.get(asked.model_name)
    if provider.field and asked.session is not None:
        add[provider.field] = asked.session
    if provider.salted:
        add["cache_salt"] = asked.salt
    if model_name is not None:
        add["model"] = model_name
        drop |= _MODEL
    refused = next((name for name in LIMITS if name in unsupported), LIMIT if provider.limit != LIMIT else "")
    limit = body.value(refused) if refused and refused not in asked.dropped else None
    if limit is not None and body.value("prompt") is None:  # a completion has only one such field
        drop |= {refused}
        if body.value(LIMITS[refused]) in (None, b"null"):
            add[LIMITS[refused]] = msgspec.Raw(limit)
    if asked.stream:
        add["stream_options"] = _stream_options(asked, counts=provider is PROVIDERS["vllm"])
    drop |= _STREAM_OPTIONS  # without a stream, servers refuse them
    return _rewritten(asked, body, drop | (unsupported & OPTIONAL), "", add, unsupported)


def applicable(unsupported: frozenset[str], body: AnyBody) -> frozenset[str]:
    """Those members and forms that may be in a body, so that the server may take it without them."""
    found = [name for name in unsupported if not is_of_messages(name) and (name in _OWN or body.value(name))]
    of_chat = [name for name in unsupported if is_of_messages(name) or name in _OF_CHATS]
    return frozenset([*found, *[name for name in of_chat if _changed(body, frozenset({name}))]])


def left_out(unsupported: frozenset[str], body: AnyBody) -> frozenset[str]:
    """The names of the members that `provider_body` leaves out, for the receipt."""
    found = [name for name in unsupported & OPTIONAL if body.value(name) is not None]
    if not unsupported.isdisjoint(WITHOUT_THINKING) and _is_forced(body):
        found.append("thinking")
    found += _functions(body, unsupported)[1]
    return named(unsupported, _messages(body)).union(found)


def _changed(body: AnyBody, unsupported: frozenset[str]) -> dict[str, Any]:
    """The members of a chat of which the engine gets other values than the client has sent."""
    messages, found = _messages(body), dict[str, Any]()
    if messages is None:
        return found
    for form in unsupported:
        name, value = ZEROS.get(form, ("", None))
        if name and (body.value(name) or b"1").rstrip(b".0") == b"":
            found[name] = value
        elif form in WITHOUT_THINKING and _is_forced(body):
            found |= WITHOUT_THINKING[form]
    raw: dict[str, bytes | None] = {**_functions(body, unsupported)[0], "messages": fitted(messages, unsupported)}
    tools = raw.get("tools") or body.value("tools") if SCHEMAS in unsupported else None
    if tools is not None:
        raw["tools"] = sound(tools) or raw.get("tools")
    return found | {name: msgspec.Raw(value) for name, value in raw.items() if value}


def _functions(body: AnyBody, unsupported: frozenset[str]) -> tuple[dict[str, bytes], frozenset[str]]:
    """What changes and what is left out if the engine takes only functions, or custom tools in chat's shape."""
    tools, choice = None if _messages(body) is None else body.value("tools"), body.value("tool_choice")
    if tools is None or unsupported.isdisjoint((FUNCTIONS, CUSTOM)):
        return {}, _NONE
    return functions_only(tools, choice) if FUNCTIONS in unsupported else (nested_custom(tools, choice), _NONE)


def _is_forced(body: AnyBody) -> bool:
    """Whether the model must call a tool."""
    return (body.value("tool_choice") or b"null").strip() not in _FREE


def _messages(body: AnyBody) -> bytes | None:
    """The messages of a chat; None for a body that the event loop does not read."""
    return None if isinstance(body, LargeBody) else body.value("messages")


def _stream_options(asked: DispatchFields, *, counts: bool) -> dict[str, Any]:
    """The stream options for an engine. `counts`: the server can report usage in each chunk. Usage in each chunk is
    requested if `counts_first` is set, since the client's answer then begins with the prompt's token count. A server
    without `counts` might refuse such a request.
    """
    options = {**asked.stream_options, "include_usage": True}
    if counts and asked.counts_first:
        options["continuous_usage_stats"] = True
    return options


def with_thoughts(parts: Parts, name: str) -> Parts:
    """The body with reasoning text under `name`, the member in which the server reads it. Requests translated from
    other APIs, and conversations that another server has answered before, hold reasoning under another name.

    The replaced text includes a name's quotes and colon, which cannot occur in this form inside a JSON string. A
    top-level `reasoning` is an object, so it is kept.
    """
    if name == "reasoning":
        return [_renamed(piece, _TO_REASONING) for piece in parts]
    return [_renamed(piece, _TO_CONTENT) for piece in parts] if name else parts


def _renamed(piece: bytes | memoryview, names: tuple[tuple[bytes, bytes], ...]) -> bytes | memoryview:
    found = bytes(piece)
    for before, after in names:
        found = found.replace(before, after)
    return found if len(found) != len(piece) else piece


def prefill_body(
    asked: DispatchFields,
    body: AnyBody,
    own: str,
    dp_rank: int | None,
    bootstrap: Mapping[str, Any],
    unsupported: frozenset[str] = _NONE,
) -> Parts:
    """The body for the prefill engine: the same prompt, but not streamed, since the answer's one token is dropped."""
    return _rewritten(asked, body, _REMOVED_PREFILL, own, {**_placed(bootstrap, dp_rank), "stream": False}, unsupported)


def own_fields(rid: str, salt: str, *, tagged: bool, priority: int = 0) -> str:
    """The members that the proxy adds for SGLang; other engines get none. `tagged`: the KV events shall name the rid.
    `priority`: on the engine's own scale; 0 is not sent.

    A rid (request id) and a salt (which separates tenants' caches) are hex digits, so they are written unescaped.
    """
    if priority:
        return f'{own_fields(rid, salt, tagged=tagged)},"priority":{priority}'
    if tagged:  # the engine names `session_id` in the KV events of the prompt's blocks, and does nothing else with it
        return f'"rid":"{rid}","cache_salt":"{salt}","return_cached_tokens_details":true,"session_id":"{rid}"'
    return f'"rid":"{rid}","cache_salt":"{salt}","return_cached_tokens_details":true'


def _placed(bootstrap: Mapping[str, Any] | None, dp_rank: int | None) -> dict[str, Any]:
    add = dict(bootstrap) if bootstrap is not None else {}
    if dp_rank is not None:
        add["routed_dp_rank"] = dp_rank
    return add


def _rewritten(
    asked: DispatchFields,
    body: AnyBody,
    drop: frozenset[str],
    own: str,
    add: dict[str, Any] | None,
    unsupported: frozenset[str],
) -> Parts:
    model, metadata = asked.wire_model, asked.metadata
    if model is not None or metadata is not None:
        given = (("model", model), ("metadata", metadata))
        instead = {name: value for name, value in given if value is not None}
        add = {**instead, **add} if add is not None else instead
        drop = drop.union(instead)
    if asked.dropped:
        drop |= asked.dropped
    if unsupported:
        changed = _changed(body, unsupported)
        drop = drop.union(changed)
        more = {**(add or {}), **changed}
        add = {name: value for name, value in more.items() if name not in unsupported or name in LIMITS}
    text = own.encode()
    if add:
        text = b"%b,%b" % (text, _encode(add)[1:-1]) if text else _encode(add)[1:-1]
    return body.rewritten(drop, text)
