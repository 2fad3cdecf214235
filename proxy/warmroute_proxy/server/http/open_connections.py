"""The open connections of one listener, which share its endpoint, limits, clock and memory budget for bodies."""

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from warmroute_proxy.core.queue.fair_budget import FairBudget
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.body_memory import BodyMemory
from warmroute_proxy.server.http.crowding import IDLE, NO_KEY, REFUSED, Crowding
from warmroute_proxy.server.http.exchange import Endpoint, Exchange, Request
from warmroute_proxy.server.http.read_slices import ReadSlices
from warmroute_proxy.server.http.tls_buffers import TlsBuffers

READ_BYTES: Final = 262_144  # how much is read at once
LOOK_AGAIN_S: Final = 0.05  # if no connection was idle, all connections are checked again after this time
BUSY: Final = float("inf")
NEWCOMERS: Final = 8  # one place in eight is kept for connections that no tenant has used yet
TENANT_WEIGHT: Final = 7  # a tenant may use 7 times as many connections as are free, so a single tenant gets 7 of 8


class OpenConnection(Protocol):
    deadline_s: float

    owner: str
    """The tenant that used the connection last; empty if no tenant has."""

    @property
    def idle_since_s(self) -> float:
        """Since when the connection has been idle; `BUSY` if it is not idle."""

    def on_deadline(self) -> None:
        """Handle that `deadline_s` has passed."""

    def close_when_idle(self) -> None:
        """Close after the current answer; without one, soon."""

    def make_way(self) -> None:
        """Close at once in favour of another connection. The deadline of this connection is not checked any more."""

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""


class SlowReader(Protocol):
    """A connection whose client has not read its last answer."""

    def check_read(self) -> None:
        """Give the answer's memory back, if the client has read the answer by now."""


class OpenConnections:
    """All connections of a listener. `closing`: the listener accepts no more connections."""

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits,
        clock: Callable[[], float],
        memory: BodyMemory,
        crowding: Crowding | None = None,
    ) -> None:
        """`crowding`: counts closed and refused connections; None: they are not counted."""
        self.endpoint = endpoint
        self.handle: Callable[[Request, Exchange], None] = endpoint.handle
        """The function that begins to answer a request: `handle` of the endpoint, or of `RequestStarts`."""
        self.limits = limits
        self.clock = clock
        self.memory = memory
        self.tls_buffers = TlsBuffers(memory)
        self.members: set[OpenConnection] = set()  # at most `limits.connections`
        self.newcomers: dict[OpenConnection, None] = {}
        """The members that no tenant has used yet, the oldest first."""

        self.unread: set[SlowReader] = set()  # the members whose clients have not read their last answers
        self.in_use = FairBudget(limits.connections)
        self.closing = False
        self.reads = ReadSlices()
        self.read_into = memoryview(bytearray(READ_BYTES))
        """The buffer for all reads. Nothing may refer to its bytes after `buffer_updated`."""

        self._crowding = crowding
        self._idle: list[tuple[int, OpenConnection]] = []
        """The connections that were idle at the last check. The last in the list is closed first.

        The number in front of a connection says how many connections of its tenant became idle after it.
        """

        self._looked_at_s = self._look_at_s = 0.0

    def admit(self, connection: OpenConnection) -> bool:
        """Add a connection, and return whether it may stay. If the listener is full, another connection is closed."""
        if self.closing:
            return False
        if len(self.members) >= self.limits.connections and not self._replace_one():
            self._count(REFUSED)
            return False
        self.members.add(connection)
        self.newcomers[connection] = None
        return True

    def discard(self, connection: OpenConnection) -> None:
        self.members.discard(connection)
        self.newcomers.pop(connection, None)

    @property
    def accepted_at_once(self) -> int:
        """How many connections to accept in one iteration of the loop, so that they can send keys before newer
        connections replace them.
        """
        return max(self.limits.connections // NEWCOMERS, 1)

    def _replace_one(self) -> bool:
        """Close one connection, and return whether this was possible.

        A small part of the places is for connections that have not shown a key. While such connections have fewer
        places than this part, an idle connection is closed. If they have this part, or no connection is idle, the
        oldest connection without a key is closed.
        """
        if len(self.newcomers) < self.accepted_at_once and self._close_idle():
            return True
        connection = next(iter(self.newcomers), None)
        if connection is None:
            return False
        self._close(connection, NO_KEY)
        return True

    def _close_idle(self) -> bool:
        """Close the longest idle connection of the tenant with the most idle ones. Returns whether one was closed."""
        while self._idle or self.clock() >= self._look_at_s:
            if not self._idle:
                self._idle = self._idle_ones()
                self._looked_at_s = self.clock()
                self._look_at_s = 0.0 if self._idle else self._looked_at_s + LOOK_AGAIN_S
            while self._idle:
                others, connection = self._idle.pop()
                if not others and self.clock() >= self._looked_at_s + LOOK_AGAIN_S:
                    self._idle.clear()  # check again, since another tenant may have more idle connections by now
                    break
                # A connection that was used since the check is closed, too, if it is idle again. Otherwise a tenant
                # could keep all of its connections by using each a little.
                if connection in self.members and connection.idle_since_s != BUSY:
                    self._close(connection, IDLE)
                    return True
        return False

    def _idle_ones(self) -> list[tuple[int, OpenConnection]]:
        idle = [(each.idle_since_s, each) for each in self.members if each not in self.newcomers]
        idle = sorted([each for each in idle if each[0] != BUSY], key=lambda each: -each[0])
        counted: Counter[str] = Counter()
        ranked = []
        for since_s, connection in idle:
            ranked.append((counted[connection.owner], since_s, connection))
            counted[connection.owner] += 1
        ranked.sort(key=lambda each: (each[0], -each[1]))
        return [(others, connection) for others, _, connection in ranked]

    def _close(self, connection: OpenConnection, reason: str) -> None:
        self.discard(connection)
        self._count(reason)
        connection.make_way()

    def _count(self, reason: str) -> None:
        if self._crowding is not None:
            self._crowding.count(reason)

    def use(self, tenant: str) -> None:
        """Record that a tenant uses one more connection. Raises: Refusal, if the tenant uses too many connections."""
        if not self.in_use.reserve(tenant, 1, TENANT_WEIGHT):
            raise too_many()

    def known(self, connection: OpenConnection) -> None:
        self.newcomers.pop(connection, None)

    def leave(self, tenant: str) -> None:
        self.in_use.release(tenant, 1)

    def sweep(self) -> None:
        """Tell connections that their deadlines have passed, and free the memory of answers that clients have read."""
        self._idle.clear()  # the list may refer to connections that are gone
        for reader in list(self.unread):
            reader.check_read()
        now = self.clock()
        if self._crowding is not None:
            self._crowding.sweep(now, self.limits.connections)
        for connection in [each for each in self.members if each.deadline_s <= now]:
            connection.on_deadline()

    def close_when_idle(self) -> None:
        """Take no new connection. Busy connections end after their current answer, idle ones after a moment."""
        self.closing = True
        for connection in list(self.members):
            connection.close_when_idle()

    def abort(self) -> None:
        """Abort all connections."""
        for connection in list(self.members):
            connection.abort()


def too_many() -> Refusal:
    """The refusal for a tenant that uses too many connections."""
    message = "your requests and WebSockets take all connections that one tenant may have; try again in 1 s"
    return Refusal(429, message, code="too_many_requests", retry_after_s=1)
