"""Makes spans of OpenTelemetry's SDK from finished requests. Only the exporting thread imports this module."""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from warmroute.contract.version import VERSION
from warmroute_proxy.server.tracing import names
from warmroute_proxy.server.tracing.finished import Child, Finished

Value = str | int | float | bool
_NANO: Final = 1e9
_OPERATIONS: Final = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}


def operation_of(route: str) -> str:
    """The operation name of a route in the semantic conventions."""
    return _OPERATIONS.get(route, "chat")


def attributes_of(finished: Finished) -> Mapping[str, Value]:
    """The attributes of the request's span. Unknown values are left out."""
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
        receipt = entry.receipt()
        found |= {f"warmroute.cached_tokens.{tier}": count for tier, count in receipt.cached.items()}
        found |= {f"warmroute.loss_tokens.{name}": count for name, count in receipt.loss.items()}
    return {name: value for name, value in found.items() if value is not None}


_REMOTE: Final = frozenset({names.ATTEMPT, names.FORWARD})
_SCOPE: Final = InstrumentationScope("warmroute.proxy", VERSION)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Spans:
    def __init__(self, service_name: str, region: str, new_span_id: Callable[[], int]) -> None:
        instance = f"{socket.gethostname()}-{os.getpid()}"
        self._resource = Resource.create(
            {
                "service.name": service_name,
                "service.version": VERSION,
                "service.instance.id": instance,
                "warmroute.region": region,
            }
        )
        self._new_span_id = new_span_id

    def of(self, finished: Finished) -> list[ReadableSpan]:
        """The spans of a request: first the request's span, then its children."""
        own = _context(finished.trace_id, finished.span_id)
        parent = _context(finished.trace_id, finished.parent_id, is_remote=True) if finished.parent_id else None
        request = ReadableSpan(
            name=f"{operation_of(finished.route)} {finished.model}",
            context=own,
            parent=parent,
            resource=self._resource,
            attributes=dict(attributes_of(finished)),
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR) if finished.error_code else Status(StatusCode.UNSET),
            start_time=_unix_ns(finished, finished.began_s),
            end_time=_unix_ns(finished, finished.ended_s),
            instrumentation_scope=_SCOPE,
        )
        return [request, *[self._child(finished, own, child) for child in finished.children]]

    def _child(self, finished: Finished, own: SpanContext, child: Child) -> ReadableSpan:
        attributes = dict(child.attributes)
        if child.failed_by:
            attributes["warmroute.event"] = child.failed_by
        return ReadableSpan(
            name=child.name,
            context=_context(finished.trace_id, child.span_id or self._new_span_id()),
            parent=_context(finished.trace_id, child.parent_id) if child.parent_id else own,
            resource=self._resource,
            attributes=attributes,
            kind=SpanKind.CLIENT if child.name in _REMOTE else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR) if child.failed_by else Status(StatusCode.UNSET),
            start_time=_unix_ns(finished, child.began_s),
            end_time=_unix_ns(finished, child.ended_s),
            instrumentation_scope=_SCOPE,
        )


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=is_remote, trace_flags=_SAMPLED)


def _unix_ns(finished: Finished, clock_s: float) -> int:
    return int((clock_s + finished.offset_s) * _NANO)
