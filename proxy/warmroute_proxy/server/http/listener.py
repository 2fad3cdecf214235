"""A listening socket of the proxy: its connections, what they have in common, and how they end."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.http1 import LINGER_S, Connection
from warmroute_proxy.server.http.incoming_body import IncomingBodies


class Endpoint(Protocol):
    """What a connection needs from the application."""

    def on_head(self, request: Request) -> None:
        """Raise `Refusal` for a request that can be refused without its body."""

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Start to answer; `exchange` must be ended by `respond`, `end` or `abort` sooner or later."""

    def on_status(self, request: Request, status: int) -> None:
        """An answer's status, for the metrics."""


class Listener:
    """All connections of one listening socket: their limits, their sweep, their end."""

    def __init__(self, endpoint: Endpoint, limits: Limits, clock: Callable[[], float]) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.clock = clock
        self.connections: set[Connection] = set()
        self.bodies = IncomingBodies()
        self.closing = False
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, *, tls: ssl.SSLContext | None = None, shared: bool = False) -> int:
        """Listen and return the port. `shared`: other processes of this proxy listen there too."""
        loop = asyncio.get_running_loop()
        server: Any = await loop.create_server(  # uvloop has a list of sockets, where types say a tuple
            self._connect,
            host,
            port,
            backlog=1024,
            reuse_port=shared or None,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self.limits.head_timeout_s,
            ssl_shutdown_timeout=None if tls is None else LINGER_S,
        )
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    def _connect(self) -> Any:
        return Connection(self)

    def sweep(self) -> None:
        """Close what is past its deadline; called once a second."""
        now = self.clock()
        for connection in [c for c in self.connections if c.deadline_s <= now]:
            connection.expired()

    def stop(self) -> None:
        """Take no new connection; those that are open end with their next answer, idle ones after `IDLE_GRACE_S`."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_when_idle()

    async def close(self, grace_s: float) -> None:
        """Stop, wait up to `grace_s` until the last connection is closed, then cut what is left."""
        self.stop()
        deadline = self.clock() + grace_s
        while self.connections and self.clock() < deadline:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.cut()
