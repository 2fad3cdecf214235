"""A threaded HTTP server for scripted answers, which takes it calmly when a client is gone."""

import ssl
import sys
from http.server import ThreadingHTTPServer
from typing import Any


class QuietServer(ThreadingHTTPServer):
    """Prints no traceback where a client has closed its connection: clients of tests do, on purpose."""

    daemon_threads = True
    request_queue_size = 1024  # a busy machine is slow to accept

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Anything else is a fault of the test."""
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)
