"""The open connections of one listener, and what they share: endpoint, limits, clock, memory of bodies."""

from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.core.queue.fair_budget import FairBudget
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.body_memory import BodyMemory
from warmroute_proxy.server.http.exchange import Endpoint, Exchange, Request
from warmroute_proxy.server.http.read_slices import ReadSlices

READ_BYTES: Final = 262_144  # at most in one read
LOOK_AGAIN_S: Final = 0.05  # where no connection was idle: a look at all of them is not for each one that comes
BUSY: Final = float("inf")
TENANT_WEIGHT: Final = 7  # a tenant's connections that are in use, at most so many times what is free: alone, 7 of 8


class OpenConnection(Protocol):
    """One of them."""

    deadline_s: float

    @property
    def idle_since_s(self) -> float:
        """Since when nothing was asked on it; `BUSY` while something is."""

    def on_deadline(self) -> None:
        """The deadline has passed."""

    def close_when_idle(self) -> None:
        """Close after the current answer, or soon."""

    def close_after_flush(self) -> None:
        """Take no more requests, and close once all that was written is sent."""

    def abort(self) -> None:
        """Close without waiting."""


class SlowReader(Protocol):
    """A connection whose client has not read its last answer."""

    def check_read(self) -> None:
        """Give its memory back, if the client has read it by now."""


class OpenConnections:
    """All connections of a listener. `closing`: the listener takes no more."""

    def __init__(self, endpoint: Endpoint, limits: Limits, clock: Callable[[], float], memory: BodyMemory) -> None:
        self.endpoint = endpoint
        self.handle: Callable[[Request, Exchange], None] = endpoint.handle
        """Begins to answer a request: the endpoint does, or what lets requests begin one after the other."""
        self.limits = limits
        self.clock = clock
        self.memory = memory
        self.members: set[OpenConnection] = set()  # at most `limits.connections`
        self.unread: set[SlowReader] = set()  # of `members`
        self.in_use = FairBudget(limits.connections)
        self.closing = False
        self.reads = ReadSlices()
        self.read_into = memoryview(bytearray(READ_BYTES))
        """What all connections are read into, one at a time: nothing of a read is used after `buffer_updated`."""

        self._idle: list[tuple[float, OpenConnection]] = []  # when last looked at: since when, the oldest last
        self._look_at_s = 0.0

    def admit(self, connection: OpenConnection) -> bool:
        """Whether one more connection is taken. Where there are too many, the one that was idle longest is closed."""
        if self.closing or (len(self.members) >= self.limits.connections and not self._close_idle()):
            return False
        self.members.add(connection)
        return True

    def _close_idle(self) -> bool:
        """Close the connection that has been idle longest. Returns whether there was one."""
        if not self._idle and self.clock() >= self._look_at_s:
            idle = [(each.idle_since_s, each) for each in self.members]
            self._idle = sorted([each for each in idle if each[0] != BUSY], key=lambda each: -each[0])
            self._look_at_s = 0.0 if self._idle else self.clock() + LOOK_AGAIN_S
        while self._idle:
            since_s, connection = self._idle.pop()
            if connection in self.members and connection.idle_since_s == since_s:
                self.members.discard(connection)
                connection.close_after_flush()
                return True
        return False

    def use(self, tenant: str) -> None:
        """A tenant's request has begun on a connection. Raises: Refusal, where the tenant uses too many."""
        if not self.in_use.reserve(tenant, 1, TENANT_WEIGHT):
            raise too_many()

    def leave(self, tenant: str) -> None:
        """A connection that a tenant used is free, or gone."""
        self.in_use.release(tenant, 1)

    def sweep(self) -> None:
        """Report each deadline that has passed to its connection, and look at who has read its answer."""
        self._idle.clear()  # it may refer to connections that are gone
        for reader in list(self.unread):
            reader.check_read()
        now = self.clock()
        for connection in [each for each in self.members if each.deadline_s <= now]:
            connection.on_deadline()

    def close_when_idle(self) -> None:
        """Take no new connection; open ones end with their current answer, idle ones after a moment."""
        self.closing = True
        for connection in list(self.members):
            connection.close_when_idle()

    def abort(self) -> None:
        """Close all without waiting."""
        for connection in list(self.members):
            connection.abort()


def too_many() -> Refusal:
    """The answer to a tenant that uses too many connections."""
    message = "your requests and WebSockets take all connections that one tenant may have; try again in 1 s"
    return Refusal(429, message, code="too_many_requests", retry_after_s=1)
