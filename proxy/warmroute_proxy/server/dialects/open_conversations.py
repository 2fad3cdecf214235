"""Which connection has each conversation: if its client closes that connection between two turns, it is over.

A client that connects again may do so before its earlier connection is closed, or lost. So a conversation belongs to
the connection of its last turn, and no other one ends it. Their number is bounded by connections and their streams.
"""

from collections.abc import Callable


class OpenConversations:
    """Those of all WebSockets of a process, by lineage."""

    def __init__(self, over: Callable[[int], None]) -> None:
        """`over`: is told the lineages of conversations that are."""
        self._over = over
        self._connections: dict[int, object] = {}

    def opened(self, lineage: int, connection: object) -> None:
        """A turn of it begins on this connection."""
        self._connections[lineage] = connection

    def closed(self, lineage: int, connection: object, *, over: bool) -> None:
        """The connection has it no longer. `over`: whether it is, unless another connection has it."""
        if self._connections.get(lineage) is connection:
            del self._connections[lineage]
            if over:
                self._over(lineage)
