"""Which session signal each kind of server reads, as a table of data with its sources, and what it says of its cache.

The kind is given by name (`OpenAI(backend="litellm")`) or follows from the host of `base_url`. A host that is in no row
counts as warmroute, whose header `x-session-affinity` other servers read too; one of another vendor gets that vendor's
signal and nothing else. The facts are as of November 2026.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from warmroute.contract import headers
from warmroute.guard.outcome import UNKNOWN, Keeping

_KEY_HASH_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of server."""

    name: str
    source: str
    hosts: tuple[str, ...] = ()
    """Hosts, and whatever ends with a dot and one of them."""
    header: str | None = None
    """The header that carries the session."""
    parent_header: str | None = None
    field: str | None = None
    """The field of the body that carries it."""
    cookie: str | None = None
    """The cookie that pins a session, set by the server."""
    max_chars: int = 256
    """A longer key is sent as its hash."""
    keeping: Keeping = UNKNOWN
    own: bool = False
    """Whether it may be a warmroute server, which gets its other headers too."""


WARMROUTE: Final = Backend("warmroute", "docs/sdk.md", header=headers.AFFINITY, own=True)

BACKENDS: Final = (
    WARMROUTE,
    Backend(
        "cloudflare",
        "developers.cloudflare.com/workers-ai/features/prompt-caching",
        ("api.cloudflare.com", "gateway.ai.cloudflare.com"),
        header=headers.AFFINITY,
    ),
    Backend("fireworks", "docs.fireworks.ai/guides/prompt-caching", ("fireworks.ai",), header=headers.AFFINITY),
    Backend(
        "openai",
        "platform.openai.com/docs/guides/prompt-caching: 1,024 tokens, kept 5 to 10 minutes when idle",
        ("api.openai.com", "openai.azure.com"),
        field="prompt_cache_key",
        max_chars=64,
        keeping=Keeping(600, 1024),
    ),
    Backend("xai", "docs.x.ai prompt-caching", ("api.x.ai",), header="x-grok-conv-id"),
    Backend(
        "openrouter",
        "openrouter.ai/docs/guides/best-practices/prompt-caching: sticky for 10 minutes",
        ("openrouter.ai",),
        field="session_id",
        keeping=Keeping(600, 0),
    ),
    Backend(
        "opencode-zen",
        "github.com/anomalyco/opencode packages/opencode/src/session/llm/request.ts",
        ("opencode.ai",),
        header="x-opencode-session",
        parent_header="x-parent-session-id",
    ),
    Backend("litellm", "docs.litellm.ai/docs/proxy/cache_aware_routing", header="x-litellm-session-id"),
    Backend("smg", "SGLang model gateway, sticky-sessions.md", header="x-smg-routing-key"),
    Backend(
        "dynamo",
        "docs.nvidia.com/dynamo agents, session-ids.md",
        header="x-dynamo-session-id",
        parent_header="x-dynamo-parent-session-id",
    ),
    Backend("vllm-production-stack", "docs.vllm.ai/projects/production-stack: sessionKey", header="x-user-id"),
    Backend("llm-d", "llm-d session_affinity.go: the server sets the cookie", cookie="llm-d-session"),
    Backend(
        "anthropic",
        "docs.anthropic.com prompt caching: 5 minutes from the last use, 1,024 tokens; no session signal",
        ("api.anthropic.com",),
        keeping=Keeping(300, 1024),
    ),
    Backend("deepseek", "api-docs.deepseek.com/guides/kv_cache: 64 tokens; no session signal", ("api.deepseek.com",)),
    Backend("moonshot", "platform.moonshot.ai: no session signal", ("api.moonshot.ai", "api.moonshot.cn")),
    Backend("mistral", "docs.mistral.ai: no session signal", ("api.mistral.ai",)),
    Backend("google", "ai.google.dev/gemini-api/docs/caching: no session signal", ("googleapis.com",)),
)
_BY_NAME: Final = {backend.name: backend for backend in BACKENDS}
_BY_HOST: Final = {host: backend for backend in BACKENDS for host in backend.hosts}


def backend_of(name: str | None, base_url: str) -> Backend:
    """The kind of server, by its name or by the host of its address; `ValueError` for a name that is not known."""
    if name is not None:
        found = _BY_NAME.get(name)
        if found is None:
            raise ValueError(f"backend={name!r} is none of {', '.join(_BY_NAME)}")
        return found
    labels = (urlsplit(base_url).hostname or "").lower().split(".")
    for at in range(len(labels)):
        if (found := _BY_HOST.get(".".join(labels[at:]))) is not None:
            return found
    return WARMROUTE


@dataclass(frozen=True, slots=True)
class Signal:
    """What a call carries for its session."""

    headers: Mapping[str, str]
    fields: Mapping[str, Any]


def signal(backend: Backend, key: str | None, *, derived: bool, home: str | None, parent: str | None = None) -> Signal:
    """The signal of a session for a server. `home`: what the server itself said about where the session lives."""
    added: dict[str, str] = {}
    if home and backend.own:
        added[headers.HOME] = home
    if home and backend.cookie:
        added["cookie"] = f"{backend.cookie}={home}"
    if not key:
        return Signal(added, {})
    sent = _shortened(key, backend.max_chars)
    if backend.header:
        added[backend.header] = sent
        if derived and backend.own:
            added[headers.DERIVED] = "1"
    if parent and backend.parent_header:
        added[backend.parent_header] = _shortened(parent, backend.max_chars)
    return Signal(added, {backend.field: sent} if backend.field else {})


def home_of(backend: Backend, answer: Mapping[str, str]) -> str | None:
    """What an answer's head says about where the session lives."""
    if backend.own:
        return answer.get(headers.HOME)
    if backend.cookie:
        for pair in answer.get("set-cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == backend.cookie:
                return value
    return None


def _shortened(key: str, max_chars: int) -> str:
    if len(key) <= max_chars:
        return key
    return hashlib.sha256(key.encode()).hexdigest()[:_KEY_HASH_CHARS]
