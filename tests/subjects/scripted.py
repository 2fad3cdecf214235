"""A scripted upstream: a mock, for what a sound engine never does and for seeing exactly what an engine is sent."""

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.subjects.http_server import QuietServer
from tests.subjects.stopped import Stopped
from warmroute_proxy.server.engines import probing as templates

Script = Callable[["Handler"], None]


class ScriptedEngine(Stopped):
    """Answers `/ready` and `/server_info` like an engine, and everything else as its script says."""

    def __init__(self, name: str, script: Script, host: str = "127.0.0.1", port: int = 0) -> None:
        self.name = name
        self.script = script
        self.host = host
        self.heads: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.aborted: list[str] = []
        self.ready = b"{}"  # anything else is a 503
        self.loads: bytes | Callable[[], bytes] = b"{}"
        self.info = b'{"page_size":64,"dp_size":1,"start_time":1}'
        self.asked_for_info, self.may_inform = threading.Event(), threading.Event()
        self.was_probed = threading.Event()  # once `/ready` was answered
        self.asked_to_render, self.may_render = threading.Event(), threading.Event()
        self.may_inform.set()
        self.may_render.set()
        self.dead = False  # then it answers no probe
        self.takes_late_system = True
        self.health: int | Callable[[], int] = 200
        self.healths = 0
        self.connections = 0
        self._server = QuietServer((host, port), type("Bound", (Handler,), {"engine": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self._server.server_port}"

    def toml(self, kind: str = "sglang") -> str:
        return (
            f'[[engine]]\nid = "{self.name}"\nurl = "{self.url}"\nregion = "east"\nrole = "aggregated"\nkind = "{kind}"'
        )

    def serve_tls(self, context: ssl.SSLContext) -> None:
        """Speak TLS from now on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def sent(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.bodies[-1])
        return found

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    """One connection of a scripted engine."""

    engine: ScriptedEngine
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.engine.connections += 1
        super().setup()

    def do_GET(self) -> None:
        engine = self.engine
        if self.path == "/health":
            engine.healths += 1
            self.reply(engine.health if isinstance(engine.health, int) else engine.health(), b"")
            return
        if engine.dead:
            self.cut()
            return
        if self.path == "/server_info":
            engine.asked_for_info.set()
            engine.may_inform.wait()
        if self.path == "/v1/loads":
            self.reply(200, engine.loads if isinstance(engine.loads, bytes) else engine.loads())
            return
        body = {"/ready": engine.ready, "/server_info": engine.info}.get(self.path)
        self.reply(404 if body is None else 503 if self.path == "/ready" and body != b"{}" else 200, body or b"{}")
        if self.path == "/ready":
            engine.was_probed.set()

    def do_POST(self) -> None:
        body = self._chunks() if "transfer-encoding" in self.headers else self._sized()
        if self.path == "/abort_request":
            self.engine.aborted.append(json.loads(body)["rid"])
            self.reply(200, b"")
            return
        if self.path == templates.PATH and body in (templates.PLAIN, templates.WITH_LATE):
            self.engine.asked_to_render.set()
            self.engine.may_render.wait()
            refuses = body == templates.WITH_LATE and not self.engine.takes_late_system
            self.reply(400 if refuses else 200, b"{}")
            return
        self.engine.heads.append({name.lower(): value for name, value in self.headers.items()})
        self.engine.bodies.append(body)
        self.engine.script(self)

    def _sized(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"]))

    def _chunks(self) -> bytes:
        """A body that comes in chunks, as gateways send it."""
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def reply(
        self, status: int, body: bytes, content_type: str = "application/json", retry_after: str | None = None
    ) -> None:
        self.send_response(status)
        if retry_after is not None:
            self.send_header("retry-after", retry_after)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, *events: dict[str, Any] | str, end: bool = True) -> None:
        """A chunked event stream; without `end` the connection just closes."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            data = f"data: {event if isinstance(event, str) else json.dumps(event, separators=(',', ':'))}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.flush()
        if end:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.cut()

    def cut(self) -> None:
        """Close without a word."""
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


def whole(usage: dict[str, Any] | None, **extra: Any) -> bytes:
    """A chat answer."""
    message = {"role": "assistant", "content": "hi"}
    answer = {
        "id": "x",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    return json.dumps({**answer, **({"usage": usage} if usage is not None else {}), **extra}).encode()


def delta(text: str | None = None, finish: str | None = None) -> dict[str, Any]:
    """A content or finish chunk."""
    fields = {"content": text} if text is not None else {}
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
    }


ROLE = {
    "id": "x",
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
}
