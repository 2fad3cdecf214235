"""The session signal of each provider and server, and how long it keeps a prompt: one table of data with its sources.

A *signal* is a header or field by which a provider sends the turns of a session to one cache. The proxy uses the table
for its engines, the SDK for the server that it calls. A provider gets only signals that it documents. The facts are as
of November 2026.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit


class Provider(NamedTuple):
    """One provider, or one server that people run themselves.

    header         the request header that takes a session key, in lower case; empty if there is no such header
    parent_header  the request header that takes the key of the parent session
    field          the field of the body that takes a session key
    cookie         the cookie that pins a session; the server sets it
    max_chars      the longest key; a longer one is sent as its hash
    limit          the field that limits the length of a chat completion's answer
    hosts          the endings of the provider's host names, by which a URL is recognised; empty: it runs anywhere
    salted         whether the field `cache_salt` keeps the caches of tenants apart
    ttl_s          how long the provider keeps the prompt of an idle session; 0: not known
    min_tokens     the tokens of the shortest prompt that the provider keeps; 0: not known
    """

    header: str = ""
    parent_header: str = ""
    field: str = ""
    cookie: str = ""
    max_chars: int = 256
    limit: str = "max_tokens"
    hosts: tuple[str, ...] = ()
    salted: bool = False
    ttl_s: float = 0
    min_tokens: int = 0


PROVIDERS: Final[Mapping[str, Provider]] = {
    # docs.anthropic.com, prompt caching: 5 minutes from the last use, 1,024 tokens, no signal
    "anthropic": Provider(hosts=("api.anthropic.com",), ttl_s=300, min_tokens=1024),
    # developers.cloudflare.com/workers-ai/features/prompt-caching
    "cloudflare": Provider(header="x-session-affinity", hosts=("api.cloudflare.com", "gateway.ai.cloudflare.com")),
    # api-docs.deepseek.com/guides/kv_cache: automatic, no signal
    "deepseek": Provider(hosts=("api.deepseek.com",)),
    # docs.nvidia.com/dynamo: agents, session-ids.md
    "dynamo": Provider(header="x-dynamo-session-id", parent_header="x-dynamo-parent-session-id"),
    # docs.fireworks.ai/guides/prompt-caching
    "fireworks": Provider(header="x-session-affinity", hosts=("fireworks.ai",)),
    # ai.google.dev/gemini-api/docs/caching: automatic, no signal
    "google": Provider(hosts=("googleapis.com",)),
    # docs.litellm.ai/docs/proxy/cache_aware_routing
    "litellm": Provider(header="x-litellm-session-id"),
    # github.com/ggml-org/llama.cpp, tools/server/README.md: the slot with the most similar prompt, no signal
    "llama.cpp": Provider(),
    # github.com/llm-d/llm-d-inference-scheduler, session_affinity.go
    "llm-d": Provider(cookie="llm-d-session"),
    # docs.mistral.ai: no signal
    "mistral": Provider(hosts=("api.mistral.ai",)),
    # platform.moonshot.ai/docs: automatic, no signal
    "moonshot": Provider(hosts=("api.moonshot.ai", "api.moonshot.cn")),
    # platform.openai.com/docs/guides/prompt-caching: kept 5 to 10 minutes when idle; keys of up to 64 characters.
    # Its reasoning models refuse `max_tokens`: platform.openai.com/docs/api-reference/chat
    "openai": Provider(
        field="prompt_cache_key",
        max_chars=64,
        limit="max_completion_tokens",
        hosts=("api.openai.com", "openai.azure.com"),
        ttl_s=600,
        min_tokens=1024,
    ),
    # opencode.ai/docs/zen; required by OpenCode Go. Parent: github.com/anomalyco/opencode, session/llm/request.ts
    "opencode": Provider(header="x-opencode-session", parent_header="x-parent-session-id", hosts=("opencode.ai",)),
    # openrouter.ai/docs/guides/best-practices/prompt-caching: the same provider for 10 minutes
    "openrouter": Provider(header="x-session-id", hosts=("openrouter.ai",), ttl_s=600),
    # docs.sglang.ai: its radix cache is always on, no signal; the OpenAI-compatible API takes `cache_salt`
    "sglang": Provider(salted=True),
    # smg-docs, sticky sessions: the first of its header list
    "smg": Provider(header="x-smg-routing-key"),
    # docs.vllm.ai/en/latest/design/prefix_caching.html, "Cache Isolation for Security"
    "vllm": Provider(salted=True),
    # docs.vllm.ai/projects/production-stack: session routing with this session key
    "vllm-production-stack": Provider(header="x-user-id"),
    "warmroute": Provider(header="x-session-affinity"),
    # docs.x.ai: prompt caching
    "xai": Provider(header="x-grok-conv-id", hosts=("api.x.ai",)),
}

UNKNOWN: Final = Provider()
"""A server that is not in the table: the proxy sends it no signal."""

_BY_HOST: Final = {host: name for name, provider in PROVIDERS.items() for host in provider.hosts}


@lru_cache(maxsize=1000)
def provider_of(url: str) -> str:
    """The name of the provider whose host a URL has; empty if none is known."""
    labels = (urlsplit(url).hostname or "").split(".")
    ends = (".".join(labels[at:]) for at in range(len(labels)))
    return next((_BY_HOST[end] for end in ends if end in _BY_HOST), "")
