"""From a request to the facts that placement decides on, and everything a dispatch needs; or a refusal.

All checks that need no engine are here: the model, the fields and their types. The prompt is read once, as raw slices,
to be fingerprinted; its text is not kept beyond the body itself.
"""

from typing import Any, Final

import msgspec
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from warmroute.contract.identity import (
    InvalidSessionKey,
    Session,
    derived_key_of_text,
    session_of,
)
from warmroute_proxy.core.prompt.canonical import MalformedPrompt
from warmroute_proxy.core.prompt.chain import Chain, Fingerprint
from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.core.prompt.fingerprint import (
    fingerprint_chat,
    fingerprint_messages,
    fingerprint_text,
    first_user_text,
    tools_prefix,
)
from warmroute_proxy.dialects.fields import Permissions
from warmroute_proxy.server.base.config import Config, ModelConfig, TenantConfig
from warmroute_proxy.server.base.errors import Refusal, no_model
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.body import NO_BODY, Body, TemplatedBody
from warmroute_proxy.server.intake.body_fields import KEPT_DECODED, plan_of, read_member, read_members
from warmroute_proxy.server.intake.body_template import BodyTemplate, MemberSpan
from warmroute_proxy.server.intake.caller import Caller
from warmroute_proxy.server.intake.known_body import (
    MAX_DECODED_BYTES,
    MAX_HEAD_BYTES,
    MAX_MEMBERS,
    MAX_TAIL_BYTES,
    Conversation,
    KnownBodies,
    KnownBody,
)
from warmroute_proxy.server.intake.parsed_request import Intake

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
ROUTES: Final = frozenset({CHAT, COMPLETIONS})

MAX_PROMPTS: Final = 512  # of one completion: each has a bootstrap room, see `engines.ids`
DEFAULT_OUTPUT_TOKENS: Final = 256  # expected where the client sets no maximum
MAX_EXPECTED_OUTPUT_TOKENS: Final = 1024  # a maximum says little about the answer: agents' turns are short


def read(request: Request, caller: Caller, known_bodies: KnownBodies, config: Config, secrets: Secrets) -> Intake:
    """Check and read a request. Raises: Refusal."""
    raw = request.body
    assert isinstance(raw, bytes)  # large ones are read elsewhere
    for known in caller.known_bodies:
        template = known.template
        if raw.startswith(template.head) and raw.endswith(template.tail):
            try:
                return _read_known(raw, known, caller, known_bodies, secrets)
            except MalformedPrompt:
                continue  # it is of another template, or `read_whole` says what is wrong
    return read_whole(raw, caller, known_bodies, config, secrets)


def _read_known(raw: bytes, known: KnownBody, caller: Caller, known_bodies: KnownBodies, secrets: Secrets) -> Intake:
    """Read a body of a known template: only its messages. Raises: MalformedPrompt, where it is not of the template."""
    body_template = known.template
    start, end = body_template.start, len(raw) - body_template.tail_bytes
    continued: Conversation | None = None
    if end - start < known_bodies.min_bytes:
        prompt = fingerprint_messages(memoryview(raw)[start:end], known.tools, known.seed)
    else:
        prompt, continued = known_bodies.read(known, raw, end)
    intake = known.intake
    facts = intake.facts
    digest = prompt.tools_system_digest
    if known.derives:
        intake, facts = _derived_again(known, prompt, continued, caller, secrets)
        lineage = _key(known.identity, digest, prompt, facts.session)
    elif digest == known.system_digest:
        lineage = known.lineage
    else:
        lineage = known.lineage = _key(known.identity, digest, prompt, facts.session)
        known.system_digest = digest
    facts = replace(
        facts, lineage=lineage, chain=prompt.chain, structural_bytes=prompt.structural_bytes, turn=prompt.turn
    )
    return replace(intake, body=TemplatedBody(raw, body_template), facts=facts)


def _derived_again(
    known: KnownBody, prompt: Fingerprint, continued: Conversation | None, caller: Caller, secrets: Secrets
) -> tuple[Intake, Facts]:
    """Intake and facts of a known body, with the session that is derived from these messages."""
    if continued is not None:
        found = continued.derived
    else:
        conversation = known.conversation
        if conversation is not None and conversation.chain is not prompt.chain:
            conversation = None
        try:
            text = first_user_text(prompt)
        except MalformedPrompt:
            if conversation is not None:  # a refused body must not be continued
                known.conversation = None
            raise
        found = secrets.session_of(caller.tenant.share_group, derived_key_of_text(text)) if text else None
        if conversation is not None:
            conversation.derived = found
    intake = known.intake
    if found is None:
        return intake, replace(intake.facts, session=None, thread=None)
    session_hex, session = found
    thread = _key(known.identity, prompt.tools_digest, prompt, session)
    return replace(intake, session=session_hex), replace(intake.facts, session=session, thread=thread)


def read_whole(
    raw: bytes, caller: Caller, known_bodies: KnownBodies | None, config: Config, secrets: Secrets
) -> Intake:
    """Read a body of which nothing is known; it is kept in `known_bodies`. Raises: Refusal."""
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
    prompt = _fingerprint(caller.path, body, seed)
    session_hex, session_key = caller.session_hex, caller.session_key
    session = caller.session
    if session is None:
        session = _session(body, plan.session_fields, prompt)
        if session is not None:
            session_hex, session_key = secrets.session_of(tenant.share_group, session.key)
    limit = value("max_tokens") or value("max_completion_tokens") or DEFAULT_OUTPUT_TOKENS
    identity = f"{model.name}\0{caller.agent}\0".encode()
    facts = Facts(
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
    )
    include_usage = stream and stream_options.get("include_usage") is True
    intake = Intake(
        tenant, caller.path, body, model, asked if asked != model.name else None, stream, include_usage,
        stream_options, value("return_cached_tokens_details") or False, value("n") or 1, prompt.prompts,
        _without_session(value("metadata")), salt, session_hex, facts, caller.region, read.dropped, read.bounded,
    )  # fmt: skip
    if known_bodies is not None and caller.path == CHAT and caller.seen_again(_around(body)):
        derives = session is None or session.source == "derived"
        _keep(body, intake, identity, seed, caller, known_bodies, derives=derives)
    return intake


def _around(body: Body) -> int:
    """A hash of all of a body but its messages."""
    return xxh3_64_intdigest(b"".join([value for name, value in body.members.items() if name != "messages"]))


def _keep(
    body: Body, intake: Intake, identity: bytes, seed: int, caller: Caller, known_bodies: KnownBodies, *, derives: bool
) -> None:
    """Keep a body for those that follow, unless too much is around its messages."""
    raw, spans = body.raw, body.spans
    messages = body.members["messages"]
    end = spans["messages"].end
    start = end - len(memoryview(messages))
    if start > MAX_HEAD_BYTES or len(raw) - end > MAX_TAIL_BYTES or len(spans) > MAX_MEMBERS:
        return
    if any(span.end - span.start > MAX_DECODED_BYTES for name, span in spans.items() if name in KEPT_DECODED):
        return
    template = BodyTemplate(
        raw, start, end, body.close, [MemberSpan(name, span.start, span.end) for name, span in spans.items()]
    )
    without_prompt = replace(
        intake,
        body=NO_BODY,
        facts=replace(intake.facts, chain=Chain([], [])),
        session=None if derives else intake.session,
    )
    known = KnownBody(template, without_prompt, tools_prefix(_tools(body), seed), seed, identity, derives=derives)
    known_bodies.add(known)
    caller.keep(known)


def _model(route: str, body: Body, tenant: TenantConfig, config: Config) -> tuple[ModelConfig, str]:
    """The requested model, and the name in the request."""
    asked = read_member(body, route, "model")
    model = config.model_by_name.get(asked)
    if model is None or not tenant.may_use(model):
        message = no_model(asked, [each.name for each in config.models_of(tenant)])
        raise Refusal(404, message, code="model_not_found", param="model")
    return model, asked


def _key(identity: bytes, digest: int, prompt: Fingerprint, session: int | None) -> int:
    """The key of a lineage or a thread. Without a session, the first hash of the prompt replaces its key."""
    return xxh3_64_intdigest(b"%b%d" % (identity, digest), prompt.chain.hashes[0] if session is None else session)


def _fingerprint(path: str, body: Body, seed: int) -> Fingerprint:
    try:
        if path == COMPLETIONS:
            found = fingerprint_text(_present(body, "prompt"), seed)
            if found.prompts > MAX_PROMPTS:
                raise MalformedPrompt("prompt", f"holds {found.prompts} prompts, at most {MAX_PROMPTS}")
            return found
        messages = _present(body, "messages")
        return fingerprint_chat(_tools(body), messages, seed)
    except MalformedPrompt as error:
        raise _malformed(error) from None


def _malformed(error: MalformedPrompt) -> Refusal:
    return Refusal(400, str(error), code="invalid_value", param=error.path)


def _session(body: Body, names_of_fields: tuple[str, ...], prompt: Fingerprint) -> Session | None:
    """The session that a body names, or the one that is derived from its first messages."""
    found = None
    if names_of_fields:
        fields = {}
        for name in names_of_fields:
            try:
                fields[name] = msgspec.json.decode(body.members[name])
            except (msgspec.DecodeError, ValueError, RecursionError):
                raise Refusal(400, f"field {name!r} is not valid JSON", code="invalid_json", param=name) from None
        try:
            found = session_of({}, fields)
        except InvalidSessionKey as error:
            raise Refusal(400, str(error), code="invalid_session_key", param=error.source) from None
    if found is None:
        try:
            text = first_user_text(prompt)
        except MalformedPrompt as error:
            raise _malformed(error) from None
        if text:
            return Session(derived_key_of_text(text), "derived", True)
    return found


def _without_session(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """The client's metadata without the session that Claude Code puts into the user id."""
    if not metadata or session_of({}, {"metadata": metadata}) is None:
        return None
    return {name: value for name, value in metadata.items() if name != "user_id"}


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
