"""Who sent a turn (its session), and which prompt it continues (its lineage).

The *session* is named in the turn's receipt and ledger row. The client chooses the session's key, which is opaque, and
sends it in one of the headers or body fields below; the first match wins. If no key is sent, the session is the
conversation that the prompt continues (`conversations`). The key of a conversation is a guess and a weaker hint, so it
is marked as derived.

A *lineage* is the turns of a session that have model, agent or thread, tools and system prompt in common. One session
has several lineages (the main loop, a title, a compaction, sub-agents), and each has a separate cached prefix.
`lineage_parts` gives the agent and the parent; the proxy adds the digest of tools and system prompt.

A client may also say which of its agents sends a request, and for what purpose (`described`). Agent and purpose are
only shown.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from warmroute.contract import headers

MAX_KEY_BYTES: Final = 256
MAX_AGENT_NAME_BYTES: Final = 64
MAX_USER_ID_CHARS: Final = 4_096  # limit of `metadata.user_id`, of which the session is only a part

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
    "x-affinity",
    "agent-session-id",
    "x-grok-conv-id",
    "x-litellm-session-id",
    "x-dynamo-session-id",
    "x-bf-session-id",
)
"""Headers that name a session, in order of precedence, lower case.

Mistral Vibe and Zed send `x-affinity`, and goose sends `agent-session-id`. The last four headers are sent by clients of
xAI, LiteLLM, Dynamo and Bifrost, in this order. Crush sends `x-session-affinity` and `x-session-id`.
"""

SESSION_FIELDS: Final = ("prompt_cache_key", "promptCacheKey", "session_id", "conversation", "metadata")
"""Top-level body fields that may name a session, in order of precedence. `previous_response_id` is not a key."""

CLAUDE_AGENT: Final = "x-claude-code-agent-id"
AGENT_HEADERS: Final = (CLAUDE_AGENT, "thread-id", "x-opencode-session-id")
"""Headers that distinguish the agents or threads of one session.

From OpenCode 1.18.34 on, a sub-agent sends its own id in the last header, while its `x-session-affinity` may be its
parent's (anomalyco/opencode, packages/core/src/session/model-request.ts).
"""

PARENT_HEADERS: Final = (
    "x-parent-session-id",
    "x-opencode-parent-session-id",
    "x-claude-code-parent-agent-id",
    "x-codex-parent-thread-id",
    "x-dynamo-parent-session-id",
)
"""Headers that name the parent: the session or agent that started the one that sends the request."""

PARENT_SESSION_HEADERS: Final = ("x-parent-session-id", "x-opencode-parent-session-id", "x-dynamo-parent-session-id")
"""The headers of `PARENT_HEADERS` that name a session, possibly another than the request's. The other parent headers
name an agent of the request's session.
"""

_OF_SUB_AGENTS: Final = (CLAUDE_AGENT, *PARENT_HEADERS)

KINDS: Final = ("main", "sub", "title", "compaction", "auxiliary", "warm")
"""The purposes of a request, in this order: an agent's main loop, a sub-agent's loop, a title, a summary of a session,
anything else, and keeping a prompt in the cache.
"""

_KIND_BY_VALUE: Final[Mapping[str, Mapping[str, str]]] = {
    headers.KIND: {kind: kind for kind in KINDS},
    "x-claude-code-request-class": {
        "main": "main", "subagent": "sub", "workflow": "sub", "compaction": "compaction", "auxiliary": "auxiliary"
    },
    "x-openai-subagent": {
        "compact": "compaction", "review": "sub", "collab_spawn": "sub", "memory_consolidation": "auxiliary"
    },
    "x-interaction-type": {"conversation-subagent": "sub"},
}  # fmt: skip
"""Headers that state the purpose of a request, and the kind for each value. The first header with a known value counts.

Claude Code sends its header from 2.1.273 on, and needs `CLAUDE_CODE_GATEWAY_HINT_HEADERS=1` for addresses other than
Anthropic's (https://code.claude.com/docs/en/llm-gateway-protocol). Codex's header names only sub-agents (codex-rs,
`SubAgentSource`). The last header is Copilot CLI's, whose sub-agents send no other hint.
"""

USER_AGENT: Final = "user-agent"
MAX_PRODUCT_CHARS: Final = 64
"""How much of `user-agent` is read: its beginning names the product."""

_PRODUCT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HARNESS_BY_PRODUCT: Final[Mapping[str, str]] = {
    "claude-cli": "claude-code", "codex-tui": "codex", "codex_cli_rs": "codex", "codex_exec": "codex",
    "codex_vscode": "codex", "codex_app": "codex", "codex_sdk_ts": "codex", "Codex": "codex",
    "GeminiCLI": "gemini-cli", "QwenCode": "qwen-code", "kimi-code-cli": "kimi-code",
}  # fmt: skip
"""Products of `user-agent` that people know by another name, with that name."""

IDENTITY_HEADERS: Final = frozenset(
    {
        *SESSION_HEADERS,
        *AGENT_HEADERS,
        *PARENT_HEADERS,
        *_KIND_BY_VALUE,
        *headers.STANDING_HEADERS,
        headers.AGENT,
        headers.HARNESS,
        headers.NAME,
        headers.DERIVED,
        headers.EXPECT,
        headers.WAIT,
        headers.HOME,
        USER_AGENT,
    }
)
"""All headers that describe a request: its session, agent, purpose, and place in the queue (`STANDING_HEADERS`)."""


class InvalidSessionKey(ValueError):
    """A session key that is too long or not printable, which is the client's fault. `source`: the header or field."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(source, problem)  # an error can be pickled only if it passes all arguments
        self.source = source

    def __str__(self) -> str:
        return f"session key in {self.source} {self.args[1]}"


class Session(NamedTuple):
    """A session key and where it came from."""

    key: str
    source: str
    derived: bool


class LineageParts(NamedTuple):
    """The fields that distinguish the lineages of one session; a field that the client does not send is empty."""

    agent: str
    parent: str


class Described(NamedTuple):
    """A client's description of a request, for its receipt; an empty string for a missing or unprintable value."""

    agent: str
    kind: str


def check_key(key: str, source: str) -> str:
    """The key itself. Raises: InvalidSessionKey, for more than 256 bytes or unprintable characters."""
    if len(key) > MAX_KEY_BYTES or len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise InvalidSessionKey(source, f"is longer than {MAX_KEY_BYTES} bytes")
    if not key.isprintable():
        raise InvalidSessionKey(source, "holds control or unprintable characters")
    return key


def session_of(request_headers: Mapping[str, str], body: Mapping[str, Any]) -> Session | None:
    """The session that a request names, or None.

    `request_headers` has lower-case names. Of the parsed `body`, only the fields of `SESSION_FIELDS` are needed.
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
    """Agent and parent of a request; header names are lower case. Values that are too long are cut off."""
    return LineageParts(_first(request_headers, AGENT_HEADERS), _first(request_headers, PARENT_HEADERS))


def described(request_headers: Mapping[str, str]) -> Described:
    """The name of the agent and the kind of a request; header names are lower case.

    If no header states the kind, a request is a sub-agent's if it names a parent, or if it has Claude Code's agent
    header (which the main loop does not send). A name that is too long or not printable is left out, and so is an
    unknown kind. Name and kind are only shown, so a wrong one is not a reason to refuse a request.
    """
    agent = _shown(request_headers, headers.AGENT)
    for name, kinds in _KIND_BY_VALUE.items():
        kind = kinds.get(request_headers.get(name, ""))
        if kind is not None:
            return Described(agent, kind)
    return Described(agent, "sub" if _first(request_headers, _OF_SUB_AGENTS) else "")


def session_name(request_headers: Mapping[str, str]) -> str:
    """The session's name for people; empty if it is missing or cannot be shown. Header names are lower case."""
    return _shown(request_headers, headers.NAME)


def harness(request_headers: Mapping[str, str]) -> str:
    """The name of the program that sends a request, from `x-warmroute-harness` or else the first product of
    `user-agent`. Empty if neither can be shown.
    """
    named = _shown(request_headers, headers.HARNESS)
    if named:
        return named
    product = _PRODUCT.match(request_headers.get(USER_AGENT, ""))
    return "" if product is None else _HARNESS_BY_PRODUCT.get(product[0], product[0])


def _shown(request_headers: Mapping[str, str], header: str) -> str:
    """The name in a header if a receipt can show it, else an empty string."""
    name = request_headers.get(header, "")
    return name if name.isprintable() and len(name.encode("utf-8", "surrogatepass")) <= MAX_AGENT_NAME_BYTES else ""


def _field_key(field: str, value: object) -> str | None:
    if field == "metadata":
        if not isinstance(value, Mapping):
            return None
        found = _metadata_session(value.get("user_id"))
        value = value.get("session_id") if found is None else found  # clients of LiteLLM send `session_id`
    if field == "conversation" and isinstance(value, Mapping):
        value = value.get("id")
    return value if isinstance(value, str) else None


def _metadata_session(user_id: object) -> str | None:
    """The session in Claude Code's `metadata.user_id`: JSON with `session_id`, formerly `user_..._session_<uuid>`."""
    if not isinstance(user_id, str) or len(user_id) > MAX_USER_ID_CHARS:
        return None
    if user_id.startswith("{"):
        try:
            found = json.loads(user_id)
        except (ValueError, RecursionError):  # JSON that is nested too deeply is not read
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
