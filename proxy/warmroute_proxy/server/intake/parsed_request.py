"""Defines `ParsedRequest`: what was read of a request, with all that placement and dispatch need."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from warmroute.contract.changes import NO_CHANGES, Changes
from warmroute.contract.conversations import Conversation
from warmroute_proxy.core.accounting.usage_fields import MAX_TOKENS
from warmroute_proxy.core.cache.prompt_memory import KnownPrompt
from warmroute_proxy.core.prompt.compactions import is_compacted
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.programs import NORMAL
from warmroute_proxy.dialects.fields import names_of
from warmroute_proxy.server.base.config import ModelConfig, TenantConfig
from warmroute_proxy.server.intake.body import AnyBody
from warmroute_proxy.server.intake.large_body import LargeBody
from warmroute_proxy.server.intake.prefix_breaks import NO_PREFIX_BREAKS, Looked, PrefixBreaks
from warmroute_proxy.server.intake.standing import NO_STANDING, Standing

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
ROUTES: Final = frozenset({CHAT, COMPLETIONS})


class ParsedRequest(msgspec.Struct, frozen=True, gc=False):
    """What was read of a request that may be dispatched. `session`: its session key's hash (16 hex digits), or None."""

    tenant: TenantConfig
    route: str
    model: ModelConfig
    alias: str | None
    stream: bool
    include_usage: bool
    stream_options: Mapping[str, Any]
    keep_sglext: bool
    choices: int
    prompts: int
    metadata: dict[str, Any] | None
    """If the client's `metadata` names a session: the metadata without it, for the engine."""
    salt: str
    session: str | None
    routing: RoutingRequest
    forwarded_from: str | None
    dropped: frozenset[str] = frozenset()
    """Members of the body that no engine gets, because they are not on the list of fields, or are null."""
    nulls: frozenset[str] = frozenset()
    """Those of them that are null: the receipt does not name them, since null counts as absent."""
    bounded: bool = True
    """Whether all members that engines get are on the list of fields, and none needs a permission."""
    changes: Changes = NO_CHANGES
    """What a dialect's translation or a normalising rule changed in the body before it was read."""
    conversation: Conversation | None = None
    """The conversation that the request continues or begins, if its client names no session."""

    receipt_fields: bytes = b""
    """What the receipt says of the caller (its key and agent, for example), as members of a JSON object."""

    key_id: str = ""
    """The id of the client's API key; empty if unknown."""

    messages: list[int] = []
    """The ends and the roles of the prompt's messages, as in `Fingerprint.messages`."""

    prefix_breaks: PrefixBreaks = NO_PREFIX_BREAKS
    """Compares the prompt with earlier prompts, to find what broke a cached prefix."""

    agent: int = 0
    """A hash of the session's agent that sends the request; 0 if the head names no agent."""

    rtt_ms: float = 0.0
    """For a forwarded request: the round-trip time between the two regions, as it was last measured."""

    may_wait: bool = True
    """Whether the request may wait to begin a session, rather than be refused."""

    opaque: bool = False
    """Whether the prompt holds media: then its number of tokens does not follow from its bytes."""

    most_tokens: int = MAX_TOKENS
    """The maximum number of tokens in all answers together."""

    demanded_tokens: int = 0
    """The fewest tokens that the client demands of all answers together (`min_tokens`, `ignore_eos`)."""

    counts_first: bool = False
    """Whether the streamed answer begins with the tokens of the prompt."""

    standing: Standing = NO_STANDING
    """Priority and program, which decide the request's place in its tenant's queue."""

    def forwarded(self) -> list[bytes]:
        """The receipt's member about a forwarded request: the region where it arrived, and the round-trip time from
        there.
        """
        return [b'"forwarded":%b' % msgspec.json.encode({"from": self.forwarded_from, "rtt_ms": self.rtt_ms})]

    def look(self, body: AnyBody) -> Looked | KnownPrompt | None:
        """Compare the prompt with earlier prompts, while its text is in memory."""
        return self.prefix_breaks.look(self.routing, self.messages, body, self.salt, self.agent)

    def is_compacted(self, body: AnyBody) -> bool:
        """Whether the prompt continues from a summary of its history. False for bodies that another process reads."""
        if not self.messages or isinstance(body, LargeBody):
            return False
        try:
            return is_compacted(body.raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False  # a body that cannot be read again counts as not compacted

    def dropped_fields(self, left_out: frozenset[str]) -> tuple[str, ...]:
        """The names of fields that no engine got, for the receipt. `left_out`: those that the engine has refused."""
        return names_of((self.dropped - self.nulls).union(self.changes.dropped_fields, left_out))

    def left_unanswered(self) -> None:
        """Record that the request got no answer. If the client sends it again, it then belongs to this conversation."""
        if self.conversation is not None:
            self.conversation.left_unanswered(self.routing.chain.hashes[-1])

    @property
    def engine_priority(self) -> int:
        """The priority for an engine that takes priorities; the highest goes first. 0 if there are several tenants,
        because an engine has only one order for all tenants.
        """
        return 0 if self.routing.tenant else NORMAL - self.standing.priority

    @property
    def model_name(self) -> str:
        """The name of the model in this proxy. Some engines use another name for the model."""
        return self.model.name

    @property
    def wire_model(self) -> str | None:
        """The name of the model to send to engines, if the client used an alias."""
        return self.model.name if self.alias else None

    @property
    def several(self) -> bool:
        """Whether the engine divides the request into several, which have separate ids and share computed prefixes."""
        return self.choices > 1 or self.prompts > 1


class ReadRequest(NamedTuple):
    """A request as it was read, and its body. The body is dropped long before the request has ended."""

    parsed: ParsedRequest
    body: AnyBody
