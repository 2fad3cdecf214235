"""Client connections from their acceptance until they can carry requests; over TLS, until the handshake is done.

uvloop accepts one connection in each iteration of its loop (by libuv, since 1.47). Under load an iteration takes
milliseconds. If a few hundred clients connected at once, the last client would wait for seconds. So `ListeningSocket`
accepts many connections in an iteration. A connection counts as open from its acceptance.
"""

import asyncio
import socket
import ssl
from functools import partial
from typing import Any, Final

from warmroute_proxy.server.http.body_memory import UNNAMED
from warmroute_proxy.server.http.http1 import LINGER_S, Connection
from warmroute_proxy.server.http.open_connections import BUSY, OpenConnections

ACCEPTED_AT_ONCE: Final = 64
"""How many connections are accepted in one iteration of the loop. If the listener is full, each of them closes an older
connection."""


class ListeningSocket:
    """A listening socket. With a TLS `context`, its connections begin with a handshake."""

    def __init__(self, listening: socket.socket, shared: OpenConnections, context: ssl.SSLContext | None) -> None:
        self._listening = listening
        self._shared = shared
        self._context = context
        listening.setblocking(False)
        asyncio.get_running_loop().add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept no more connections."""
        if self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()

    def _accept(self) -> None:
        for _ in range(min(ACCEPTED_AT_ONCE, self._shared.accepted_at_once)):
            try:
                accepted, _ = self._listening.accept()
            except OSError:  # no client waits, or the client has left
                return
            accepted.setblocking(False)
            arrival = Arrival(self._shared, self._context)
            if self._shared.admit(arrival):
                arrival.begin(accepted)
            else:
                accepted.close()


class Arrival:
    """One accepted connection, until a `Connection` takes its place."""

    deadline_s = float("inf")  # a handshake has a timeout of its own
    idle_since_s = BUSY
    owner = UNNAMED

    def __init__(self, shared: OpenConnections, context: ssl.SSLContext | None) -> None:
        self._shared = shared
        self._context = context
        self._task: asyncio.Task[None] | None = None

    def begin(self, accepted: socket.socket) -> None:
        """Hand an accepted socket over to the event loop, and over TLS shake hands with the client."""
        self._task = asyncio.get_running_loop().create_task(self._run(accepted))
        self._task.add_done_callback(partial(self._ended, accepted))

    def _ended(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        """Clean up after the task, even if it was cancelled before its first step."""
        self._shared.discard(self)
        self._task = None
        if task.cancelled():
            accepted.close()

    def on_deadline(self) -> None:
        """Do nothing, since the handshake has its own timeout."""

    def close_when_idle(self) -> None:
        """Close at once, since no request has come yet."""
        self.abort()

    def make_way(self) -> None:
        """Close at once, since nothing was written yet."""
        self.abort()

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _connection(self) -> Any:
        return Connection(self._shared, self)

    async def _run(self, accepted: socket.socket) -> None:
        context = self._context
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._shared.limits.head_timeout_s,
                ssl_shutdown_timeout=None if context is None else LINGER_S,
            )
        except (OSError, TimeoutError):
            accepted.close()  # the client speaks no TLS, or has left
