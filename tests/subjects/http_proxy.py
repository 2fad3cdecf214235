"""An HTTP proxy that opens tunnels: a thread for each, and a script for the answer to CONNECT."""

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

from tests.subjects.http_server import QuietServer
from tests.subjects.stopped import Stopped


class HttpProxy(Stopped):
    """`targets`: what was asked for. `status`: what it answers; only 200 opens a tunnel."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.targets: list[str] = []
        self._server = QuietServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"proxy": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    proxy: HttpProxy

    def do_CONNECT(self) -> None:
        self.proxy.targets.append(self.path)
        if self.proxy.status != 200:
            self.send_error(self.proxy.status)
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as server:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pass, args=(server, self.connection), daemon=True)
            back.start()
            _pass(self.connection, server)
            back.join()
        self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


def _pass(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
