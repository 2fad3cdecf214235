"""A listening socket of the proxy: accepts connections, checks their deadlines, and closes them at shutdown."""

import asyncio
import errno
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.port_owner import port_owner
from warmroute_proxy.server.http.arrival import ListeningSocket
from warmroute_proxy.server.http.body_memory import BodyMemory
from warmroute_proxy.server.http.crowding import Crowding
from warmroute_proxy.server.http.exchange import Endpoint
from warmroute_proxy.server.http.open_connections import OpenConnections
from warmroute_proxy.server.http.request_starts import RequestStarts
from warmroute_proxy.server.http.tls import Tls

BACKLOG: Final = 4096


class Listener:
    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits,
        clock: Callable[[], float],
        memory: BodyMemory,
        lag: LoopLag,
        crowding: Crowding | None = None,
    ) -> None:
        """`crowding`: counts closed and refused connections; None: they are not counted."""
        self.connections = OpenConnections(endpoint, limits, clock, memory, crowding)
        self._endpoint = endpoint
        self._lag = lag
        self._socket: ListeningSocket | None = None

    async def listen(self, host: str, port: int, *, tls: Tls | None = None, shared: bool = False) -> int:
        """Listen and return the port. `shared`: other processes of this proxy listen on the same port."""
        listening = _listening(host, port, shared)
        starts = RequestStarts(self._endpoint, asyncio.get_running_loop(), self.connections.clock, self._lag)
        self.connections.handle, self.connections.reads.refuse = starts.handle, starts.refuse
        self._socket = ListeningSocket(listening, self.connections, None if tls is None else tls.context)
        return int(listening.getsockname()[1])

    def use_limits(self, limits: Limits) -> None:
        """Use other limits for connections that open from now on. The number of connections stays limited as before."""
        self.connections.limits = replace(limits, connections=self.connections.limits.connections)

    def sweep(self) -> None:
        """Check the deadlines of all connections; called once a second."""
        self.connections.sweep()

    def stop(self) -> None:
        """Accept no new connection. Busy connections end after their current answer, idle ones after `IDLE_GRACE_S`."""
        if self._socket is not None:
            self._socket.close()
        self.connections.close_when_idle()

    async def close(self, grace_s: float) -> None:
        """Stop, wait up to `grace_s` until the last connection is closed, then abort those that are left."""
        self.stop()
        connections = self.connections
        deadline = connections.clock() + grace_s
        while connections.members and connections.clock() < deadline:
            await asyncio.sleep(0.02)
        connections.abort()


def _listening(host: str, port: int, shared: bool) -> socket.socket:
    """A listening socket. Raises: OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno != errno.EADDRINUSE:
            raise
        message = f"port {port} on {host} is in use{port_owner(port)}: end that, or choose another port"
        raise OSError(message) from None
    return listening
