"""Who sent a turn, and which prompt it continues: two identities, not one.

*Session* (who) names the receipt and the ledger row. It is an opaque key that the client chose, in one of the headers
or body fields below, first match wins; or, where a client sends none, that of the conversation which its prompt
continues (`conversations`). Such a key is marked as derived: it is a guess, and a weaker hint than one that was chosen.

*Lineage* (which prompt) is (session, model, agent or thread, tools + system): one session id has several prompts
(title, compaction, sub-agents), and each has a cache of its own. `lineage_parts` gives what distinguishes the lineages
of one session; the proxy adds the digest of tools and system.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from warmroute.contract import headers

MAX_KEY_BYTES: Final = 256
MAX_USER_ID_CHARS: Final = 4_096  # of `metadata.user_id`, which contains a session among other things

CLAUDE_SESSION: Final = "x-claude-code-session-id"
SESSION_HEADERS: Final = (
    headers.AFFINITY,
    "x-opencode-session",
    "x-opencode-session-id",
    "x-session-id",
    "session-id",
    "session_id",
    CLAUDE_SESSION,
    "x-smg-routing-key",
)
"""Headers that name a session, in order of precedence, lower case."""

SESSION_FIELDS: Final = ("prompt_cache_key", "promptCacheKey", "session_id", "conversation", "metadata")
"""Top-level body fields that may name a session, in order of precedence. `previous_response_id` is no key."""

AGENT_HEADERS: Final = ("x-claude-code-agent-id", "thread-id")
"""Headers that distinguish the agents or threads of one session."""

PARENT_HEADERS: Final = (
    "x-parent-session-id",
    "x-opencode-parent-session-id",
    "x-claude-code-parent-agent-id",
    "x-codex-parent-thread-id",
)
"""Headers that name the session or agent which started this one."""

IDENTITY_HEADERS: Final = frozenset({*SESSION_HEADERS, *AGENT_HEADERS, *PARENT_HEADERS, headers.DERIVED, headers.HOME})
"""All headers that `session_of` and `lineage_parts` read."""


class InvalidSessionKey(ValueError):
    """A session key that is too long or not printable. The client's fault; `source` names the header or field."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(source, problem)  # the arguments, so that it can be pickled
        self.source = source

    def __str__(self) -> str:
        return f"session key in {self.source} {self.args[1]}"


class Session(NamedTuple):
    """A session key and where it came from."""

    key: str
    source: str
    derived: bool


class LineageParts(NamedTuple):
    """What distinguishes the lineages of one session; empty strings where a client gives nothing."""

    agent: str
    parent: str


def check_key(key: str, source: str) -> str:
    """The key itself, or `InvalidSessionKey`: 1 to 256 bytes, printable, no control characters."""
    if len(key) > MAX_KEY_BYTES or len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise InvalidSessionKey(source, f"is longer than {MAX_KEY_BYTES} bytes")
    if not key.isprintable():
        raise InvalidSessionKey(source, "holds control or unprintable characters")
    return key


def session_of(request_headers: Mapping[str, str], body: Mapping[str, Any]) -> Session | None:
    """The session that a request names, or None.

    `request_headers` has lower-case names; `body` needs to hold only the fields of `SESSION_FIELDS`, parsed.
    """
    for name in SESSION_HEADERS:
        value = request_headers.get(name)
        if value:
            derived = name == headers.AFFINITY and request_headers.get(headers.DERIVED) == "1"
            return Session(check_key(value, name), name, derived)
    for field in SESSION_FIELDS:
        key = _field_key(field, body.get(field))
        if key:
            return Session(check_key(key, field), field, False)
    return None


def lineage_parts(request_headers: Mapping[str, str]) -> LineageParts:
    """Agent and parent of a request; header names are lower case. Over-long values are cut."""
    return LineageParts(_first(request_headers, AGENT_HEADERS), _first(request_headers, PARENT_HEADERS))


def _field_key(field: str, value: object) -> str | None:
    if field == "metadata":
        return _metadata_session(value.get("user_id")) if isinstance(value, Mapping) else None
    if field == "conversation" and isinstance(value, Mapping):
        value = value.get("id")
    return value if isinstance(value, str) else None


def _metadata_session(user_id: object) -> str | None:
    """Claude Code's `metadata.user_id`: a JSON object with `session_id`, before that `user_..._session_<uuid>`."""
    if not isinstance(user_id, str) or len(user_id) > MAX_USER_ID_CHARS:
        return None
    if user_id.startswith("{"):
        try:
            found = json.loads(user_id)
        except (ValueError, RecursionError):  # nested too deeply is not JSON that we read
            return None
        session = found.get("session_id") if isinstance(found, dict) else None
        return session if isinstance(session, str) else None
    _, marker, session = user_id.rpartition("_session_")
    return session if marker else None


def _first(request_headers: Mapping[str, str], names: Iterable[str]) -> str:
    for name in names:
        value = request_headers.get(name)
        if value:
            return value[:MAX_KEY_BYTES]
    return ""
