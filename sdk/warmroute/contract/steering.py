"""The fields and headers that steer an engine. The proxy never passes them on from a client.

An engine trusts its router: these fields and headers choose the cache namespace, rank, disaggregation partner, queue
position or adapters of a request. A client that could set them could read another tenant's cache timing or stop another
tenant's work. The proxy cleans bodies and headers by these tables, and the tests try each name. Sources: the request
schemas of SGLang 0.5.23 (`srt/entrypoints/openai/protocol.py`, `srt/managers/io_struct.py`), SMG, and vLLM's
`ChatCompletionRequest`.
"""

from typing import Final

REMOVED_FIELDS: Final = frozenset(
    {
        "session_id",  # OpenRouter's clients name their session here; an engine would tag KV for eviction by it
        "conversation",
        "promptCacheKey",
        "prompt_cache_key",
        "return_cached_tokens_details",  # the proxy itself sets this field
        "kv_hints",
        "priority",
        "rid",
    }
)
"""Top-level body fields that the proxy reads or overrides, then drops."""

REFUSED_FIELDS: Final = frozenset(
    {
        "cache_salt",
        "extra_key",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "decode_tp_size",
        "routed_dp_rank",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        "session_params",
        "input_ids",
        "custom_logit_processor",
        "lora_path",
        "kv_transfer_params",  # this field and the next two are vLLM's
        "ec_transfer_params",
        "vllm_xargs",
    }
)
"""Top-level body fields that the proxy must not drop silently: a request with one of them gets a 400."""

REFUSED_FIELD_PREFIX: Final = "bootstrap_"
"""A field with this prefix is refused, too, because engines may add fields for their rendezvous."""

FORWARDED_HEADERS: Final = frozenset({"content-type", "accept", "traceparent", "tracestate", "x-request-id"})
"""The only request headers that go upstream; `x-request-id` must also be well formed (`well_formed_request_id`)."""


def well_formed_request_id(value: str) -> bool:
    """Whether a request id fits in any log line: at most 128 characters, all letters, digits or `-_.:`."""
    return 0 < len(value) <= 128 and value.isascii() and all(c.isalnum() or c in "-_.:" for c in value)


ENGINE_PARTS: Final = frozenset(
    {
        "text", "image_url", "video_url", "audio_url", "input_audio", "thinking", "tool_reference", "image_pil",
        "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds",
    }
)  # fmt: skip
"""Types of message parts that SGLang or vLLM reads, by the engine's name for them."""
