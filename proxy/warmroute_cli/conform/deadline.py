"""An HTTP answer that must be whole at a time: each read from the socket waits no longer than what is left of it."""

import io
import time
from http.client import HTTPResponse
from socket import socket
from typing import Any


class TimedResponse(HTTPResponse):
    """An answer. Raises of all reads: TimeoutError, after `deadline_s` of the monotonic clock."""

    def __init__(self, sock: socket, *args: Any, deadline_s: float, **settings: Any) -> None:
        """`args`, `settings`: those of `HTTPResponse`."""
        super().__init__(sock, *args, **settings)
        self.fp: io.BufferedReader = io.BufferedReader(_Timed(sock, self.fp.detach(), deadline_s))


class _Timed(io.RawIOBase):
    def __init__(self, sock: socket, raw: io.RawIOBase, deadline_s: float) -> None:
        self._sock, self._raw, self._deadline_s = sock, raw, deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
