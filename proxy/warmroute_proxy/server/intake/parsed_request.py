"""The `ParsedRequest`: what was read of a request, with what placement decides on and what a dispatch needs."""

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
from warmroute_proxy.server.base.config import ModelConfig, TenantConfig
from warmroute_proxy.server.intake.body import AnyBody
from warmroute_proxy.server.intake.large_body import LargeBody
from warmroute_proxy.server.intake.prefix_breaks import NO_PREFIX_BREAKS, Looked, PrefixBreaks
from warmroute_proxy.server.intake.standing import NO_STANDING, Standing

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
ROUTES: Final = frozenset({CHAT, COMPLETIONS})


class ParsedRequest(msgspec.Struct, frozen=True, gc=False):
    """What was read of a request that may be dispatched. `session`: 16 hex digits in place of its key, or None."""

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
    """Sent to the engine instead of the client's `metadata`, if that names a session."""
    salt: str
    session: str | None
    routing: RoutingRequest
    forwarded_from: str | None
    dropped: frozenset[str] = frozenset()
    """Members that no engine gets: they are not on the list of fields."""
    bounded: bool = True
    """Whether all that engines get is on that list, and needs no grant."""
    changes: Changes = NO_CHANGES
    """What a dialect or a rule changed in it before it was read."""
    conversation: Conversation | None = None
    """The conversation that it continues or begins, where its client names no session."""

    receipt_fields: bytes = b""
    """Key, agent, parent and kind of its caller, as members of a JSON object; those that are known."""

    key_id: str = ""
    """The id of its API key; empty if that is not known."""

    messages: list[int] = []
    """Where its messages end, and their roles, as in `Fingerprint`."""

    prefix_breaks: PrefixBreaks = NO_PREFIX_BREAKS
    """Compares its prompt with those before it."""

    agent: int = 0
    """A hash of the agent of its session that sends it, 0 if its head names none."""

    rtt_ms: float = 0.0
    """Of a forwarded request: the way between the two regions, there and back, as it was last measured."""

    may_wait: bool = True
    """Whether it may wait to begin a session; else it is refused."""

    opaque: bool = False
    """Whether its prompt holds media: then the number of its tokens does not follow from its bytes."""

    most_tokens: int = MAX_TOKENS
    """The most tokens that its answers together can have."""

    demanded_tokens: int = 0
    """How many tokens its client demands of its answers together, whether they have text or not."""

    standing: Standing = NO_STANDING
    """Its place in its tenant's queue, as its client says."""

    def forwarded(self) -> list[bytes]:
        """The member of its receipt that says in which other region it came in, and what the distance cost."""
        return [b'"forwarded":%b' % msgspec.json.encode({"from": self.forwarded_from, "rtt_ms": self.rtt_ms})]

    def look(self, body: AnyBody) -> Looked | KnownPrompt | None:
        """Compare its prompt with those before it, while its text is there."""
        return self.prefix_breaks.look(self.routing, self.messages, body, self.salt, self.agent)

    def is_compacted(self, body: AnyBody) -> bool:
        """Whether its prompt goes on from a summary of its history. Not known of what another process reads."""
        if not self.messages or isinstance(body, LargeBody):
            return False
        try:
            return is_compacted(body.raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False  # what cannot be read twice counts by its prompt

    def left_unanswered(self) -> None:
        """Note that it got no answer: sent again, it is of the same conversation."""
        if self.conversation is not None:
            self.conversation.left_unanswered(self.routing.chain.hashes[-1])

    @property
    def engine_priority(self) -> int:
        """Its priority as an engine with priorities has it, the higher the sooner; 0 if its engines serve several
        tenants: an engine has one order for all of them.
        """
        return 0 if self.routing.tenant else NORMAL - self.standing.priority

    @property
    def model_name(self) -> str:
        """The name of its model here, which some engines call by another one."""
        return self.model.name

    @property
    def wire_model(self) -> str | None:
        """The name to send to engines where the client used an alias."""
        return self.model.name if self.alias else None

    @property
    def several(self) -> bool:
        """Whether the engine divides it into several requests, with ids of their own, which share computed prefixes."""
        return self.choices > 1 or self.prompts > 1


class ReadRequest(NamedTuple):
    """A request as it was read, and its body, which is dropped long before the request has ended."""

    parsed: ParsedRequest
    body: AnyBody
