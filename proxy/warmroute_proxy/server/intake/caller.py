"""Identifies the sender of a request by the request's head, and keeps what follows from the head for later requests.

A client sends an unchanged head (HTTP headers) with each request of a session. So the tenant, the session's keys and
the agent are worked out only once. A caller also keeps its known bodies: earlier bodies whose unchanged parts need not
be read again (`known_body.py`).

Limits: `MAX_CALLERS`, divided by tenant (`warmroute.contract.shares`): the oldest caller of the tenant with most
callers is dropped first. A caller keeps `MAX_KNOWN_BODIES` known bodies; one more drops all of them. `KnownBodies`
limits the memory of conversations and of long tails (the bytes after the messages). What else a known body holds grows
with its members, of which it has at most `MAX_MEMBERS`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from warmroute.contract import headers as names
from warmroute.contract.conversations import Conversations
from warmroute.contract.identity import (
    CLAUDE_SESSION,
    IDENTITY_HEADERS,
    MAX_PRODUCT_CHARS,
    PARENT_SESSION_HEADERS,
    USER_AGENT,
    InvalidSessionKey,
    Session,
    described,
    harness,
    lineage_parts,
    session_name,
    session_of,
)
from warmroute.contract.shares import Division
from warmroute_proxy.core.cache.return_times import OVER, PERSON, TOOLS, UNKNOWN
from warmroute_proxy.server.base.config import ANY, TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.intake.known_body import MAX_KNOWN_BODIES, KnownBodies, KnownBody
from warmroute_proxy.server.intake.prefix_breaks import NO_PREFIX_BREAKS, PrefixBreaks
from warmroute_proxy.server.intake.standing import Standing, standing_of

MAX_CALLERS: Final = 4096
MAX_KEY_CHARS: Final = 2048  # a caller whose names and headers are longer is not kept

EXPECTED: Final = {"tool": TOOLS, "human": PERSON, "end": OVER}
"""Values of `x-warmroute-expect`. Other values are ignored, because the header only steers how long KV is protected."""

COUNTS_ALONE: Final = b'"counts_alone":true'
"""A member of receipts, if the tenant has limits and each proxy of the region counts them without the other proxies."""

PARENTS: Final = frozenset(PARENT_SESSION_HEADERS)

_NO_PARTS: Final = lineage_parts({})


class Caller:
    """The sender of requests to one path."""

    __slots__ = (
        "agent",
        "candidates",
        "expects",
        "home_hint",
        "idempotent",
        "is_claude_code",
        "key_id",
        "known_bodies",
        "may_wait",
        "parent",
        "path",
        "receipt_fields",
        "region",
        "regions",
        "served_here",
        "session",
        "session_hex",
        "session_key",
        "standing",
        "tenant",
    )

    def __init__(
        self,
        path: str,
        tenant: TenantConfig,
        headers: Mapping[str, str],
        secrets: Secrets,
        key_id: str,
        region: str | None,
        *,
        served_here: bool = True,
    ) -> None:
        """`key_id`: the id of the API key, empty if unknown. `region`: the region whose proxy forwards the requests;
        None if they come from the client. `served_here`: whether the tenant may be served in this region; if not, texts
        of its prompts are not kept.

        Raises: Refusal, if the session key is not valid.
        """
        identity = identity_headers(headers)
        self.path = path
        self.tenant = tenant
        self.key_id = key_id
        self.region = region
        self.served_here = served_here
        self.regions = None if ANY in tenant.regions else tenant.regions
        self.home_hint = headers.get(names.HOME)
        self.expects = EXPECTED.get(headers.get(names.EXPECT, ""), UNKNOWN)
        self.may_wait = headers.get(names.WAIT) != "no"
        self.idempotent = names.IDEMPOTENCY in headers
        self.is_claude_code = CLAUDE_SESSION in headers
        self.session: Session | None = None
        self.session_hex: str | None = None
        self.session_key: int | None = None
        self.agent, parent = lineage_parts(identity) if identity else _NO_PARTS
        parent_hex = ""
        self.parent: int | None = None
        if parent:
            parent_hex, self.parent = secrets.session_of(tenant.share_group, parent)
        self.standing = self._standing(identity, secrets)
        agent = kind = ""
        self.known_bodies: list[KnownBody] = []  # longest tails first: a short tail may be a longer one's end
        self.candidates: list[int] = []  # hashes of the last unknown bodies without their messages
        if identity:
            self._read_session(identity, secrets)
            agent, kind = described(identity)
            if not agent and self.agent:
                agent = secrets.session_of(tenant.share_group, self.agent)[0]
        self.receipt_fields = _receipt_fields(identity, key=key_id, agent=agent, parent=parent_hex, kind=kind)

    def _standing(self, identity: Mapping[str, str], secrets: Secrets) -> Standing:
        found = standing_of(identity).with_default(self.tenant.default_priority)
        if found.program:
            found = found._replace(program_key=secrets.session_of(self.tenant.share_group, found.program)[1])
        if self.parent is not None and not PARENTS.isdisjoint(identity):
            found = found._replace(parent=self.parent)
        return found

    def _read_session(self, identity: Mapping[str, str], secrets: Secrets) -> None:
        try:
            self.session = session_of(identity, {})
        except InvalidSessionKey as error:
            raise Refusal(400, str(error), code="invalid_session_key", param=error.source) from None
        if self.session is not None:
            self.session_hex, self.session_key = secrets.session_of(self.tenant.share_group, self.session.key)

    def keep(self, body: KnownBody) -> None:
        known_bodies = self.known_bodies
        if len(known_bodies) >= MAX_KNOWN_BODIES:
            known_bodies.clear()
        at = 0
        while at < len(known_bodies) and known_bodies[at].template.tail_bytes > body.template.tail_bytes:
            at += 1
        known_bodies.insert(at, body)

    def seen_again(self, around: int) -> bool:
        """Whether one of the last unknown bodies had the hash `around`, which covers all members but the messages.

        Some clients change these members with each request; keeping their bodies would not save anything.
        """
        if around in self.candidates:
            self.candidates.remove(around)
            return True
        self.candidates.append(around)
        del self.candidates[:-MAX_KNOWN_BODIES]
        return False


def _receipt_fields(identity: Mapping[str, str], **given: str) -> bytes:
    """The members of a receipt about the sender, as JSON without braces: key, agent, parent, kind, name and agent
    program (harness), if known.
    """
    members = {**given, "name": session_name(identity), "harness": harness(identity)}
    return msgspec.json.encode({name: value for name, value in members.items() if value})[1:-1]


def identity_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that name sessions, agents and parents; usually at most one.

    Values that are valid UTF-8 are decoded as UTF-8, so that a key in a header equals that key in a body.
    """
    found: dict[str, str] = {}
    for name in headers.keys() & IDENTITY_HEADERS:
        value = headers[name]
        if not value.isascii():
            try:
                value = value.encode("latin-1").decode()
            except UnicodeDecodeError:
                pass
        found[name] = value
    return found


class Callers:
    """The known callers, their known bodies, and the conversations of callers that name no session."""

    def __init__(
        self,
        secrets: Secrets,
        conversations: Conversations,
        prefix_breaks: PrefixBreaks = NO_PREFIX_BREAKS,
        region: str | None = None,
        *,
        counts_alone: bool = False,
    ) -> None:
        """`region`: the region of this proxy; None if every tenant may be served here. `counts_alone`: whether this
        proxy counts budgets and limits without the other proxies of its region.
        """
        self.known_bodies = KnownBodies()
        self.prefix_breaks = prefix_breaks
        self.conversations = conversations
        self.secrets = secrets
        self._region = region
        self._counts_alone = counts_alone
        self._callers: dict[tuple[str, ...], Caller] = {}
        self._division: Division[tuple[str, ...], Caller] = Division(lambda _, caller: caller.tenant.name)

    def forget(self) -> None:
        """Drop all callers, because they were made from a config that is no longer in force."""
        self._callers.clear()
        self._division = Division(lambda _, caller: caller.tenant.name)
        self.known_bodies = KnownBodies()

    def of(
        self, path: str, tenant: TenantConfig, headers: Mapping[str, str], key_id: str = "", region: str | None = None
    ) -> Caller:
        """The caller with this head. Raises: Refusal, if a header is not a valid session key."""
        parts = [path, tenant.name, key_id, region or "", "k" if names.IDEMPOTENCY in headers else ""]
        for name in sorted(IDENTITY_HEADERS.intersection(headers)):
            parts += name, headers[name] if name != USER_AGENT else headers[name][:MAX_PRODUCT_CHARS]
        key = tuple(parts)
        caller = self._callers.get(key)
        if caller is None:
            here = self._region is None or tenant.may_be_served(self._region)
            caller = Caller(path, tenant, headers, self.secrets, key_id, region, served_here=here)
            if self._counts_alone and tenant.limits is not None:
                caller.receipt_fields = b",".join(filter(None, (caller.receipt_fields, COUNTS_ALONE)))
            if sum(map(len, key)) <= MAX_KEY_CHARS:
                self._callers[key] = caller
                if 2 * len(self._callers) > MAX_CALLERS:
                    self._divide(key)
        return caller

    def _divide(self, key: tuple[str, ...]) -> None:
        """Count a new caller, and drop another caller if there are too many."""
        self._division.stored(key, self._callers)
        if len(self._callers) > MAX_CALLERS:
            gone = self._division.next_to_go()
            del self._callers[gone]
            self._division.discard(gone)
