"""Spans of OpenTelemetry's SDK from what finished requests have handed over. Imported by the exporting thread alone."""

import os
import socket
from collections.abc import Callable
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from warmroute.contract.version import VERSION
from warmroute_proxy.server.tracing.attributes import attributes_of, operation_of
from warmroute_proxy.server.tracing.finished import Child, Finished

_NANO: Final = 1e9
_REMOTE: Final = frozenset({"attempt", "forward"})
_SCOPE: Final = InstrumentationScope("warmroute.proxy", VERSION)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Spans:
    """Makes the spans of one proxy process."""

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
        """The spans of a request: its own, then its children."""
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
