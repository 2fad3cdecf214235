"""Exchanges reports between the launchers of a plan's nodes over HTTP.

Each launcher answers `GET /launch` to a bearer of the fleet's key, and asks all other launchers every `ASK_EVERY_S`. A
launcher answers nothing but its report.
"""

import contextlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

from warmroute_backend.asking import ask
from warmroute_backend.launch.nodes import (
    ASK_EVERY_S,
    OtherNode,
    Report,
    may_start,
    observed,
    read_report,
    stores_serve,
    trouble,
)
from warmroute_backend.launch.program import LaunchError

PATH: Final = "/launch"
TIMEOUT_S: Final = 2.0
MAX_BYTES: Final = 64 << 10
MAX_CONNECTIONS: Final = 64


class NodeReports:
    """Answers and asks the other launchers: `with NodeReports(...) as nodes`. `addresses`: host and port of each node,
    including this one. Raises: LaunchError.
    """

    def __init__(self, own: Report, addresses: Sequence[tuple[str, int]], key: str, bind: str = "0.0.0.0") -> None:
        self.own = own
        self._reported: Report | None = None
        """None until the first report. Until then other launchers get no answer, since they could not know for which
        stores they have to wait."""
        self._addresses = addresses
        self._key = key
        self._others = [OtherNode(node, host) for node, (host, _) in enumerate(addresses) if node != own.node]
        self._stopped = threading.Event()
        try:
            self._server = _Server((bind, addresses[own.node][1]), self._handler())
        except OSError as error:
            raise LaunchError(f"--nodes-port {addresses[own.node][1]} cannot be used: {error.strerror}") from None
        self._threads = [threading.Thread(target=self._server.serve_forever, daemon=True)]
        self._threads += [
            threading.Thread(target=self._ask, args=(at,), daemon=True) for at in range(len(self._others))
        ]

    def __enter__(self) -> "NodeReports":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def report(self, states: Mapping[str, str], stores: Mapping[str, str], *, goes: bool) -> None:
        """Set the report that other launchers get from now on. Once an order to start is known, the report keeps it."""
        goes = goes or self.own.goes or may_start(self.own, self._others, time.monotonic())
        self.own = Report(self.own.node, self.own.plan, goes, dict(states), dict(stores))
        self._reported = self.own

    def may_start(self) -> bool:
        return may_start(self.own, self._others, time.monotonic())

    def stores_serve(self) -> bool:
        return stores_serve(self._others)

    def troubles(self) -> list[str]:
        """What is wrong with other nodes, one sentence for each."""
        now_s = time.monotonic()
        return [text for other in self._others if (text := trouble(self.own, other, now_s))]

    def _ask(self, at: int) -> None:
        while not self._stopped.is_set():
            node = self._others[at].node
            self._others[at] = observed(self._others[at], self._fetched(node), time.monotonic())
            self._stopped.wait(ASK_EVERY_S)

    def _fetched(self, node: int) -> Report | None:
        host, port = self._addresses[node]
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        headers = {"authorization": f"Bearer {self._key}"}
        found = ask(f"http://{bracketed}:{port}{PATH}", TIMEOUT_S, headers, MAX_BYTES).fields()
        return read_report(found, node) if found else None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        nodes = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = self.headers.get("authorization", "").encode()
                is_right = hmac.compare_digest(given, f"Bearer {nodes._key}".encode())
                report = nodes._reported if is_right and self.path == PATH else None
                body = b"" if report is None else json.dumps(asdict(report)).encode()
                self.send_response(200 if body else 404 if is_right else 401)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                """Log nothing: launchers ask each other every two seconds, and strangers can send any text."""

        return Handler


class _Server(ThreadingHTTPServer):
    """Serves at most `MAX_CONNECTIONS`, each for at most `TIMEOUT_S`, however slow the client is."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        late = threading.Timer(TIMEOUT_S, _end, (request,))
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: it only means that a client is gone."""


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the connection has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)
