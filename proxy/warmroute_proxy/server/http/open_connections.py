"""The open connections of one listener, and what they share: endpoint, limits, clock, memory of bodies."""

from collections.abc import Callable
from typing import Protocol

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.http.body_memory import BodyMemory
from warmroute_proxy.server.http.exchange import Endpoint


class OpenConnection(Protocol):
    """One of them."""

    deadline_s: float

    def on_deadline(self) -> None:
        """The deadline has passed."""

    def close_when_idle(self) -> None:
        """Close after the current answer, or soon."""

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
        self.limits = limits
        self.clock = clock
        self.memory = memory
        self.members: set[OpenConnection] = set()  # at most `limits.connections`
        self.unread: set[SlowReader] = set()  # of `members`
        self.closing = False

    def admit(self, connection: OpenConnection) -> bool:
        """Whether one more connection is taken."""
        if len(self.members) >= self.limits.connections or self.closing:
            return False
        self.members.add(connection)
        return True

    def sweep(self) -> None:
        """Report each deadline that has passed to its connection, and look at who has read its answer."""
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
