"""Reads a request into a `ParsedRequest`, which has all that placement and dispatch need, or refuses the request.

All checks that need no engine are here: the model, the fields and their types. The prompt is read once, as raw slices,
for its fingerprint. The only copy of its text is the body.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from warmroute.contract.conversations import MAX_ASKED_BYTES, Asked, Conversation, Conversations
from warmroute.contract.identity import (
    InvalidSessionKey,
    Session,
    session_of,
)
from warmroute_proxy.core.accounting.usage_fields import MAX_TOKENS
from warmroute_proxy.core.prompt.addresses import Addresses
from warmroute_proxy.core.prompt.canonical import MalformedPrompt
from warmroute_proxy.core.prompt.chain import Chain, Fingerprint, UserPart
from warmroute_proxy.core.prompt.fingerprint import (
    fingerprint_chat,
    fingerprint_messages,
    fingerprint_text,
    tools_prefix,
)
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.dialects.fields import Permissions
from warmroute_proxy.dialects.work import TooMuch, is_dense
from warmroute_proxy.server.base.config import Config, ModelConfig, TenantConfig
from warmroute_proxy.server.base.errors import Refusal, no_model
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES
from warmroute_proxy.server.intake.body import Body, TemplatedBody
from warmroute_proxy.server.intake.body_fields import KEPT_DECODED, plan_of, read_member, read_members
from warmroute_proxy.server.intake.body_template import BodyTemplate
from warmroute_proxy.server.intake.caller import Caller, Callers
from warmroute_proxy.server.intake.known_body import (
    MAX_DECODED_BYTES,
    MAX_HEAD_BYTES,
    MAX_MEMBERS,
    MAX_RETURNED,
    MAX_TAIL_BYTES,
    Check,
    KnownBodies,
    KnownBody,
)
from warmroute_proxy.server.intake.large_body import NamedSpan
from warmroute_proxy.server.intake.parsed_request import CHAT, COMPLETIONS, ParsedRequest, ReadRequest

_QUOTE: Final = 0x22
MAX_PROMPTS: Final = 512  # in one completion; each prompt takes a bootstrap room, see `engines.engines`
_RENDERED: Final = frozenset({"chat_template_kwargs", "reasoning", "reasoning_effort", "thinking", "tool_choice"})
"""Members with which an engine renders the same messages and tools into another prompt."""

_ALL_TOOLS: Final = frozenset({b'"auto"', b'"required"'})  # the choices that leave no tool out of the prompt
DEFAULT_OUTPUT_TOKENS: Final = 256  # expected if the client sets no maximum
MAX_EXPECTED_OUTPUT_TOKENS: Final = 1024  # a client's maximum says little: agents' turns are short


def check_light(raw: bytes | memoryview) -> None:
    """Raises: TooMuch, if a body is too large, or has too many values for its size, to be read in the event loop."""
    if len(raw) > LARGE_BYTES or is_dense(raw):
        raise TooMuch


def read(request: Request, caller: Caller, callers: Callers, config: Config, check: Check = check_light) -> ReadRequest:
    """Check and read a request in the event loop. `check` gets those bytes of the body that were not read before.

    Raises: Refusal, and what `check` raises.
    """
    raw = request.body
    assert isinstance(raw, bytes)  # another process reads large bodies
    for known in caller.known_bodies:
        template = known.template
        if raw.startswith(template.head) and raw.endswith(template.tail):
            try:
                return _read_known(raw, known, caller, callers, (config.proxy.media, check))
            except MalformedPrompt:
                break  # `read_whole` reads the body, or reports what is wrong; no third reading
    check(raw)
    return read_whole(raw, caller, callers, config)


def _read_known(
    raw: bytes, known: KnownBody, caller: Caller, callers: Callers, bounds: tuple[Addresses, Check]
) -> ReadRequest:
    """Read only the messages of a body. Raises: MalformedPrompt, if the body does not match the known template."""
    body_template, known_bodies = known.template, callers.known_bodies
    addresses, check = bounds
    start, end = body_template.start, len(raw) - body_template.tail_bytes
    if end - start < known_bodies.min_bytes:
        prompt = fingerprint_messages(memoryview(raw)[start:end], known.tools, known.seed, addresses)
    else:
        prompt = known_bodies.read(known, raw, end, addresses, check)
    parsed = known.parsed
    if known.derives:
        parsed = conversing(parsed, known.identity, prompt, caller, callers)
    else:
        routing, digest = parsed.routing, prompt.tools_system_digest
        if digest != known.system_digest:
            known.lineage = _key(known.identity, digest, prompt, routing.session)
            known.system_digest = digest
        routing = replace(
            routing, lineage=known.lineage, chain=prompt.chain, structural_bytes=prompt.structural_bytes,
            turn=prompt.turn,
        )  # fmt: skip
        parsed = replace(parsed, routing=routing, messages=prompt.messages)
    if prompt.opaque:
        parsed = replace(parsed, opaque=True)
    return ReadRequest(parsed, TemplatedBody(raw, body_template))


def conversing(
    parsed: ParsedRequest, identity: bytes, prompt: Fingerprint, caller: Caller, callers: Callers
) -> ParsedRequest:
    """A copy of `parsed`, which has no session, with the session of the conversation to which its prompt belongs."""
    conversation = _conversation(prompt, caller, callers.conversations)
    session_hex, session = callers.secrets.session_of(caller.tenant.share_group, conversation.key)
    lineage = _key(identity, prompt.tools_system_digest, prompt, session)
    thread = _key(identity, prompt.tools_digest, prompt, session)
    routing = replace(
        parsed.routing, session=session, lineage=lineage, thread=thread, chain=prompt.chain,
        structural_bytes=prompt.structural_bytes, turn=prompt.turn,
    )  # fmt: skip
    return replace(parsed, session=session_hex, conversation=conversation, routing=routing, messages=prompt.messages)


class ReadBody(NamedTuple):
    """What was read of an unknown body. `converses`: the request names no session, so `conversing` has to find one."""

    parsed: ParsedRequest
    body: Body
    prompt: Fingerprint
    identity: bytes
    seed: int
    converses: bool


def read_whole(raw: bytes, caller: Caller, callers: Callers, config: Config) -> ReadRequest:
    """Read a body that matches no known template. Raises: Refusal."""
    found = read_body(raw, caller, callers.secrets, config)
    parsed = replace(found.parsed, prefix_breaks=callers.prefix_breaks)
    if found.converses:
        parsed = conversing(parsed, found.identity, found.prompt, caller, callers)
    if caller.served_here and caller.path == CHAT and caller.seen_again(_around(found.body)):
        _keep(parsed, found, caller, callers.known_bodies)
    return ReadRequest(parsed, found.body)


def read_body(raw: bytes, caller: Caller, secrets: Secrets, config: Config) -> ReadBody:
    """Read a body, without regard to earlier bodies. Raises: Refusal."""
    tenant = caller.tenant
    body = Body(raw)
    plan = plan_of(caller.path, body.names)
    plan.refuse_steering()
    model, asked = _model(caller.path, body, tenant, config)
    read = read_members(body, plan, Permissions(tenant.granted_fields, tenant.unlisted_fields, model.vocabulary_tokens))
    value = read.values.get
    stream = value("stream") or False
    stream_options = value("stream_options") or {}
    salt, seed = secrets.salt_and_seed(tenant.share_group, tenant.salt_epoch, model.name)
    prompt = _fingerprint(caller.path, body, seed, config.proxy.media)
    session = caller.session or _session(body, plan.session_fields)
    session_hex, session_key = _keys(session, caller, secrets)
    limits = (value("max_tokens"), value("max_completion_tokens"), DEFAULT_OUTPUT_TOKENS)
    limit = next(each for each in limits if each is not None)
    identity = f"{model.name}\0{caller.agent}\0".encode()
    routing = RoutingRequest(
        model=model.name,
        lineage=_key(identity, prompt.tools_system_digest, prompt, session_key),
        thread=None if session_key is None else _key(identity, prompt.tools_digest, prompt, session_key),
        session=session_key,
        derived=session is None or session.derived,
        parent=caller.parent,
        chain=prompt.chain,
        structural_bytes=prompt.structural_bytes,
        turn=prompt.turn,
        expected_output_tokens=min(limit, MAX_EXPECTED_OUTPUT_TOKENS),
        home_hint=caller.home_hint,
        allowed_regions=caller.regions,
        may_forward=caller.region is None,
        salt_epoch=tenant.salt_epoch,
        sequences=(value("n") or 1) * prompt.prompts,
        expects=caller.expects,
        tenant=tenant.name if len(config.tenants) > 1 else "",
        settings=0 if _RENDERED.isdisjoint(body.members) else _settings(body.members, read.dropped | read.nulls),
    )
    most_tokens, demanded_tokens = _bounds_of_answers(value, prompt.prompts, model.context_tokens)
    include_usage = stream and stream_options.get("include_usage") is True
    parsed = ParsedRequest(
        tenant=tenant, route=caller.path, model=model, alias=asked if asked != model.name else None,
        stream=stream, include_usage=include_usage, stream_options=stream_options,
        keep_sglext=value("return_cached_tokens_details") or False, choices=value("n") or 1, prompts=prompt.prompts,
        metadata=_without_session(value("metadata")), salt=salt, session=session_hex, routing=routing,
        forwarded_from=caller.region, dropped=read.dropped | read.nulls, nulls=read.nulls, bounded=read.bounded,
        key_id=caller.key_id, receipt_fields=caller.receipt_fields, messages=prompt.messages, may_wait=caller.may_wait,
        opaque=prompt.opaque,
        agent=xxh3_64_intdigest(caller.agent.encode("utf-8", "surrogatepass")) if caller.agent else 0,
        most_tokens=most_tokens, demanded_tokens=demanded_tokens,
        standing=caller.standing.with_tier(value("service_tier")),
    )  # fmt: skip
    return ReadBody(parsed, body, prompt, identity, seed, session is None and caller.path == CHAT)


def _bounds_of_answers(value: Callable[[str], Any], prompts: int, context_tokens: int | None) -> tuple[int, int]:
    """The maximum number of tokens in the answers to a request, and the minimum that its client demands."""
    answers = max(value("n") or 1, value("best_of") or 1) * prompts
    limits = [limit for limit in (value("max_tokens"), value("max_completion_tokens")) if limit]
    most = min((max(limits) if limits else context_tokens or MAX_TOKENS) * answers, MAX_TOKENS)
    return most, most if value("ignore_eos") else min((value("min_tokens") or 0) * answers, most)


def _settings(members: Mapping[str, msgspec.Raw], dropped: frozenset[str]) -> int:
    """A digest of the members in `_RENDERED` that an engine gets; 0 without any of them."""
    found = b""
    for name in sorted(_RENDERED.intersection(members)):
        if name not in dropped:
            value = bytes(members[name])
            if value not in _ALL_TOOLS:
                found += b"%b:%b," % (name.encode(), value)
    return xxh3_64_intdigest(found) if found else 0


def _around(body: Body) -> int:
    """A hash of all members of a body but its messages."""
    return xxh3_64_intdigest(b"".join([value for name, value in body.members.items() if name != "messages"]))


def _keep(parsed: ParsedRequest, found: ReadBody, caller: Caller, known_bodies: KnownBodies) -> None:
    """Keep a body as a template for later bodies, unless its parts around the messages are too large."""
    body = found.body
    raw, spans = body.raw, body.spans
    messages = body.members["messages"]
    end = spans["messages"].end
    start = end - len(memoryview(messages))
    if start > MAX_HEAD_BYTES or len(raw) - end > MAX_TAIL_BYTES or len(spans) > MAX_MEMBERS:
        return
    if any(span.end - span.start > MAX_DECODED_BYTES for name, span in spans.items() if name in KEPT_DECODED):
        return
    template = BodyTemplate(
        raw, start, end, body.close, [NamedSpan(name, span.start, span.end) for name, span in spans.items()]
    )
    without_prompt = replace(
        parsed,
        routing=replace(parsed.routing, chain=Chain([], [])),
        session=None if found.converses else parsed.session,
        conversation=None,
        messages=[],
        opaque=False,
    )
    tools = tools_prefix(_tools(body), found.seed)
    known = KnownBody(template, without_prompt, tools, found.seed, found.identity, derives=found.converses)
    known_bodies.add(known)
    caller.keep(known)


def _model(route: str, body: Body, tenant: TenantConfig, config: Config) -> tuple[ModelConfig, str]:
    asked = read_member(body, route, "model")
    return model_for(asked, tenant, config), asked


def model_for(asked: str, tenant: TenantConfig, config: Config) -> ModelConfig:
    """The model with a name or an alias. Raises: Refusal, if the tenant has no such model."""
    model = config.model_of(asked)
    if model is None or not tenant.may_use(model):
        message = no_model(asked, [each.name for each in config.models_of(tenant)])
        raise Refusal(404, message, code="model_not_found", param="model")
    return model


def _key(identity: bytes, digest: int, prompt: Fingerprint, session: int | None) -> int:
    """The key of a lineage (conversation branch) or of a thread (the lineage without its system prompt). Without a
    session, the first hash of the prompt stands for the session.
    """
    return xxh3_64_intdigest(b"%b%d" % (identity, digest), prompt.chain.hashes[0] if session is None else session)


def _fingerprint(path: str, body: Body, seed: int, addresses: Addresses) -> Fingerprint:
    try:
        if path == COMPLETIONS:
            found = fingerprint_text(_present(body, "prompt"), seed)
            if found.prompts > MAX_PROMPTS:
                raise MalformedPrompt("prompt", f"holds {found.prompts} prompts, at most {MAX_PROMPTS}")
            return found
        messages = _present(body, "messages")
        return fingerprint_chat(_tools(body), messages, seed, addresses)
    except MalformedPrompt as error:
        raise Refusal(400, str(error), code="invalid_value", param=error.path) from None


def _session(body: Body, names_of_fields: tuple[str, ...]) -> Session | None:
    if not names_of_fields:
        return None
    fields = {}
    for name in names_of_fields:
        try:
            fields[name] = msgspec.json.decode(body.members[name])
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise Refusal(400, f"field {name!r} is not valid JSON", code="invalid_json", param=name) from None
    try:
        return session_of({}, fields)
    except InvalidSessionKey as error:
        raise Refusal(400, str(error), code="invalid_session_key", param=error.source) from None


def _keys(session: Session | None, caller: Caller, secrets: Secrets) -> tuple[str | None, int | None]:
    """The hash of the session key: as hex digits for receipts and ledger rows, as a number for placement."""
    if session is caller.session:
        return caller.session_hex, caller.session_key
    return (None, None) if session is None else secrets.session_of(caller.tenant.share_group, session.key)


def _conversation(prompt: Fingerprint, caller: Caller, conversations: Conversations) -> Conversation:
    """The conversation that a prompt continues or begins. Its last message is kept only if it may be served here."""
    last_returned = prompt.returned[-MAX_RETURNED:]
    returned = [asked for message in last_returned if (asked := _asked(message)) is not None]
    asked = _asked(prompt.asked) if prompt.asked is not None and caller.served_here else None
    return conversations.of(caller.tenant.name, prompt.chain.hashes, asked, returned, caller.regions)


def _asked(message: UserPart) -> Asked | None:
    """A user's message (without its last quote) that the client may later send in shortened form; None if it is not a
    text, or is too long.
    """
    cuts, stem, text = message
    if text[-1] != _QUOTE or len(text) > MAX_ASKED_BYTES:
        return None
    return Asked(cuts, stem, text[:-1])


def _without_session(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """The client's metadata without the session, which Claude Code puts into `user_id` and LiteLLM into `session_id`.
    None if the metadata do not name a session.
    """
    if not metadata or session_of({}, {"metadata": metadata}) is None:
        return None
    return {name: value for name, value in metadata.items() if name not in {"user_id", "session_id"}}


def _present(body: Body, name: str) -> msgspec.Raw:
    raw = body.members.get(name)
    if raw is None:
        raise Refusal(400, f"the request body has no {name!r}", code="missing_field", param=name)
    return raw


def _tools(body: Body) -> msgspec.Raw | None:
    tools = body.members.get("tools")
    return None if tools is None or _is_null(tools) else tools


def _is_null(raw: msgspec.Raw) -> bool:
    return len(memoryview(raw)) == 4 and bytes(raw) == b"null"
