"""Who asks: what follows from a request's head alone, kept for all requests that say the same of it.

A client sends the same head with each turn of a session, so its tenant, its session's keys and its agent are worked out
once. What a caller's bodies have in common is kept with it (`frame.py`), and so is what is known of its conversation.

Limits: `MAX_CALLERS` are kept, all are dropped when it is full; of each at most `MAX_FRAMES` frames, likewise.
Long tails and conversations are counted in `Kept`; what else a frame keeps grows with its members, of which it has at
most `MAX_MEMBERS`.
"""

from collections.abc import Mapping
from typing import Final

from warmroute.contract import headers as names
from warmroute.contract.identity import (
    IDENTITY_HEADERS,
    InvalidSessionKey,
    Session,
    lineage_parts,
    session_of,
)
from warmroute_proxy.server.base.config import ANY, TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.intake.body_template import MAX_FRAMES, BodyTemplate, Kept

MAX_CALLERS: Final = 4096
MAX_KEY_CHARS: Final = 2048  # of all that tells one caller from another

_NO_PARTS: Final = lineage_parts({})


class Caller:
    """Who sends a request, for which path."""

    __slots__ = (
        "agent",
        "candidates",
        "frames",
        "home_hint",
        "keyed",
        "parent",
        "path",
        "region",
        "regions",
        "session",
        "session_hex",
        "session_key",
        "tenant",
    )

    def __init__(
        self, path: str, tenant: TenantConfig, headers: Mapping[str, str], secrets: Secrets, region: str | None
    ) -> None:
        """`region`: of the proxy that asks for it. A 400 `Refusal` where a header names no session that could be."""
        identity = identity_headers(headers)
        self.path = path
        self.tenant = tenant
        self.region = region
        self.regions = None if ANY in tenant.regions else tenant.regions
        self.home_hint = headers.get(names.HOME)
        self.keyed = names.IDEMPOTENCY in headers
        self.session: Session | None = None
        self.session_hex: str | None = None
        self.session_key: int | None = None
        self.agent, parent = lineage_parts(identity) if identity else _NO_PARTS
        self.parent = secrets.session_of(tenant.share_group, parent)[1] if parent else None
        self.frames: list[BodyTemplate] = []  # the longest tails first: a short one may be the end of another
        self.candidates: list[int] = []  # stand for what was around the messages of the last bodies without a frame
        if identity:
            try:
                self.session = session_of(identity, {})
            except InvalidSessionKey as error:
                raise Refusal(400, str(error), code="invalid_session_key", param=error.source) from None
            if self.session is not None:
                self.session_hex, self.session_key = secrets.session_of(tenant.share_group, self.session.key)

    def keep(self, frame: BodyTemplate) -> None:
        """One more frame."""
        if len(self.frames) >= MAX_FRAMES:
            self.frames.clear()
        at = 0
        while at < len(self.frames) and self.frames[at].tail_bytes > frame.tail_bytes:
            at += 1
        self.frames.insert(at, frame)

    def seen_again(self, around: int) -> bool:
        """Whether one of the last bodies without a frame had the same around its messages: some clients' never do."""
        if around in self.candidates:
            self.candidates.remove(around)
            return True
        self.candidates.append(around)
        del self.candidates[:-MAX_FRAMES]
        return False


def identity_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that name sessions, agents and parents, usually none or one.

    Values are read as UTF-8 where they are that, so that a key is the same in header and body.
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
    """The callers that are known, and what is kept of their bodies."""

    def __init__(self, secrets: Secrets) -> None:
        self.kept = Kept()
        self._secrets = secrets
        self._callers: dict[tuple[str, ...], Caller] = {}

    def of(self, path: str, tenant: TenantConfig, headers: Mapping[str, str], region: str | None = None) -> Caller:
        """The caller whose head this is; a 400 `Refusal` where it names no session that could be."""
        said = [f"{name}\0{headers[name]}" for name in _SAYS_WHO if name in headers]
        key = (path, tenant.name, region or "", "k" if names.IDEMPOTENCY in headers else "", *said)
        caller = self._callers.get(key)
        if caller is None:
            caller = Caller(path, tenant, headers, self._secrets, region)
            if sum(map(len, key)) <= MAX_KEY_CHARS:
                if len(self._callers) >= MAX_CALLERS:
                    self._callers.clear()
                self._callers[key] = caller
        return caller


_SAYS_WHO: Final = tuple(sorted(IDENTITY_HEADERS))
