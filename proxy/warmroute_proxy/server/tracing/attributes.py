"""The attributes of a request's span. Pure; `names` says what each is."""

from collections.abc import Mapping
from typing import Final

import msgspec

from warmroute_proxy.server.tracing.finished import Finished

Value = str | int | float | bool
_NANO: Final = 1e9
_OPERATIONS: Final = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}


class _Receipt(msgspec.Struct):
    cached: dict[str, int] = {}
    loss: dict[str, int] = {}


class _Usage(msgspec.Struct):
    warmroute: _Receipt


_decode_usage: Final = msgspec.json.Decoder(_Usage | None).decode


def operation_of(route: str) -> str:
    """The operation that a route stands for, by the semantic conventions."""
    return _OPERATIONS.get(route, "chat")


def attributes_of(finished: Finished) -> Mapping[str, Value]:
    """The attributes of the span; what is not known is left out."""
    entry = finished.entry
    found: dict[str, Value | None] = {
        "gen_ai.operation.name": operation_of(finished.route),
        "gen_ai.provider.name": "warmroute",
        "gen_ai.request.model": finished.model,
        "gen_ai.conversation.id": finished.session,
        "http.request.method": "POST",
        "http.route": finished.route,
        "http.response.status_code": finished.status or None,
        "error.type": finished.error_code or None,
        "warmroute.receipt.id": finished.receipt_id,
        "warmroute.turn": finished.turn,
        "warmroute.stream": finished.stream,
        "warmroute.outcome": finished.outcome,
    }
    if entry is not None:
        found |= {
            "gen_ai.usage.input_tokens": entry.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": entry.cached_tokens,
            "gen_ai.usage.output_tokens": entry.completion_tokens,
            "gen_ai.response.time_to_first_chunk": None if entry.ttft_ms is None else entry.ttft_ms / 1000,
            "warmroute.attempts": len(entry.rids),
            "warmroute.predicted_cached_tokens": entry.predicted_cached,
            "warmroute.cost_usd": entry.price_nanousd / _NANO,
            "warmroute.saved_usd": (entry.list_nanousd - entry.price_nanousd) / _NANO,
            "warmroute.proxy_ms": entry.proxy_ms,
            "warmroute.forwarded_from": entry.forwarded_from,
        }
        usage = _decode_usage(entry.usage)
        if usage is not None:
            found |= {f"warmroute.cached_tokens.{tier}": count for tier, count in usage.warmroute.cached.items()}
            found |= {f"warmroute.loss_tokens.{name}": count for name, count in usage.warmroute.loss.items()}
    return {name: value for name, value in found.items() if value is not None}
