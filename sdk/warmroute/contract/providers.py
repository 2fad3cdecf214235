"""The session signal of each provider and server: how a request says which cache its prompt is in.

A table of data with its sources. Nothing that a provider does not document is sent to it.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit


class Provider(NamedTuple):
    """One provider, or one server that people run themselves.

    header   the request header that takes a session key, in lower case; empty: none
    field    the member of the body that takes it; empty: none
    hosts    ends of the names of its hosts, by which a URL is recognised; empty: it runs anywhere
    salted   whether the member `cache_salt` keeps the caches of tenants apart
    """

    header: str = ""
    field: str = ""
    hosts: tuple[str, ...] = ()
    salted: bool = False


PROVIDERS: Final[Mapping[str, Provider]] = {
    # developers.cloudflare.com/workers-ai/features/prompt-caching
    "cloudflare": Provider(header="x-session-affinity", hosts=("api.cloudflare.com", "gateway.ai.cloudflare.com")),
    # api-docs.deepseek.com/guides/kv_cache: on by itself, no signal
    "deepseek": Provider(hosts=("api.deepseek.com",)),
    # docs.nvidia.com/dynamo: agents, session-ids.md
    "dynamo": Provider(header="x-dynamo-session-id"),
    # docs.fireworks.ai/guides/prompt-caching
    "fireworks": Provider(header="x-session-affinity", hosts=("api.fireworks.ai",)),
    # docs.litellm.ai/docs/proxy/cache_aware_routing
    "litellm": Provider(header="x-litellm-session-id"),
    # github.com/ggml-org/llama.cpp, tools/server/README.md: the slot with the most similar prompt, no signal
    "llama.cpp": Provider(),
    # platform.moonshot.ai/docs: on by itself, no signal
    "moonshot": Provider(hosts=("api.moonshot.ai", "api.moonshot.cn")),
    # platform.openai.com/docs/guides/prompt-caching
    "openai": Provider(field="prompt_cache_key", hosts=("api.openai.com",)),
    # opencode.ai/docs/zen; required by OpenCode Go
    "opencode": Provider(header="x-opencode-session", hosts=("opencode.ai",)),
    # openrouter.ai/docs/guides/best-practices/prompt-caching
    "openrouter": Provider(header="x-session-id", hosts=("openrouter.ai",)),
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
"""A server that nobody has named: it is sent no signal."""


def provider_of(url: str) -> str:
    """The name of the provider whose host a URL has; empty where none is known."""
    host = urlsplit(url).hostname or ""
    for name, provider in PROVIDERS.items():
        if any(host == each or host.endswith(f".{each}") for each in provider.hosts):
            return name
    return ""
