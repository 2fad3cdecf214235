"""A receiver of OTLP over HTTP, which keeps the spans that it is sent."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.subjects.http_server import QuietServer
from tests.subjects.stopped import Stopped


class Span(NamedTuple):
    """A span as it was received. Ids are hexadecimal; `parent` is empty for a root."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    began_ns: int
    ended_ns: int
    failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


class OtlpReceiver(Stopped):
    """Takes what it is sent, while `takes` is true; else it answers with the status `refusal`."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.takes = True
        self.refusal = 503
        self._server = QuietServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"receiver": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def requests(self) -> list[Span]:
        """The spans of requests."""
        return [span for span in self.spans if "gen_ai.operation.name" in span.attributes]

    def children(self, parent: Span) -> list[Span]:
        """Those of a span, as they began."""
        return sorted((span for span in self.spans if span.parent == parent.id), key=lambda span: span.began_ns)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    receiver: OtlpReceiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        receiver = self.receiver
        receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
        if receiver.takes and self.path == "/v1/traces":
            plain = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            receiver.bodies.append(plain)
            receiver.spans += spans_of(plain)
        self.send_response(200 if receiver.takes else receiver.refusal)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


def spans_of(body: bytes) -> list[Span]:
    """The spans in an export."""
    export = ExportTraceServiceRequest.FromString(body)
    return [
        Span(
            span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind,
            span.start_time_unix_nano, span.end_time_unix_nano, span.status.code == 2,
            _values(span.attributes), _values(of_resource.resource.attributes),
        )
        for of_resource in export.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]  # fmt: skip


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
