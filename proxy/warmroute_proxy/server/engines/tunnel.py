"""Opens TLS connections through an HTTP proxy: CONNECT (RFC 9110, 9.3.6), then TLS inside the tunnel.

The HTTP proxy learns the server's name and port, and sees no request in clear.
"""

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from warmroute_proxy.server.base.config import authority

MAX_HEAD_BYTES: Final = 16_384


class Tunnel:
    """The way through an HTTP proxy, of which `url` is the address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80

    async def connect(self, host: str, port: int, tls: ssl.SSLContext) -> asyncio.Transport:
        """A transport to the server, whose protocol the caller sets. Raises: OSError."""
        loop = asyncio.get_running_loop()
        transport, opening = await loop.create_connection(_Opening, self._host, self._port)
        try:
            target = authority(host, port)
            transport.write(f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n".encode())
            status = await opening.status
            if not 200 <= status < 300:
                raise ConnectionError(f"the HTTP proxy {authority(self._host, self._port)} answers {status}")
            secure = await loop.start_tls(transport, opening, tls, server_hostname=host)
        except BaseException:
            transport.abort()
            raise
        assert secure is not None
        return secure


class _Opening(asyncio.Protocol):
    """Reads the answer to CONNECT, and ignores whatever follows. `status`: the answer's status."""

    def __init__(self) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        if self.status.done():
            return
        self._head += data[:MAX_HEAD_BYTES]
        if b"\r\n\r\n" not in self._head and len(self._head) < MAX_HEAD_BYTES:
            return
        version, _, rest = self._head.partition(b" ")
        if version.startswith(b"HTTP/1.") and rest[:3].isdigit():
            self.status.set_result(int(rest[:3]))
        else:
            self.status.set_exception(ConnectionError("the HTTP proxy gives no answer of HTTP"))

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.status.done():
            self.status.set_exception(ConnectionError("the HTTP proxy closed without an answer"))
