"""Which streams of WebSockets have each conversation: if their clients close them between two turns, it is over.

A conversation that goes on elsewhere is not: a client may connect again before its earlier connection is closed, send
its next turn by POST, or reach another process. Sub-agents of a session may share a lineage. So a conversation is over
with the last stream that has it, if its last turn was answered on one of them. Their number is bounded by connections
and their streams.
"""

from collections.abc import Callable


class _OpenConversation:
    """One of them. `answered_turns`: how many turns had been sent when the last one was answered on a WebSocket; None
    where a turn has begun since.
    """

    __slots__ = ("answered_turns", "streams")

    def __init__(self) -> None:
        self.streams: set[object] = set()
        self.answered_turns: int | None = None


class OpenConversations:
    """Those of all WebSockets of a process, by lineage."""

    def __init__(self, over: Callable[[int], None], turns: dict[int, int]) -> None:
        """`over`: is told the lineages of conversations that are; `turns`: where the turns of open ones are counted
        that are sent, over whichever connection (`WorkingSet.turns_of_open`).
        """
        self._over = over
        self._turns = turns
        self._open: dict[int, _OpenConversation] = {}

    def opened(self, lineage: int, stream: object) -> None:
        found = self._open.get(lineage)
        if found is None:
            found = self._open[lineage] = _OpenConversation()
            self._turns[lineage] = 0
        found.streams.add(stream)
        found.answered_turns = None

    def answered(self, lineage: int) -> None:
        self._open[lineage].answered_turns = self._turns[lineage]

    def closed(self, lineage: int, stream: object, *, over: bool) -> None:
        """The stream has it no longer. `over`: whether it is, unless it goes on elsewhere."""
        found = self._open[lineage]
        found.streams.discard(stream)
        if not found.streams:
            del self._open[lineage]
            if self._turns.pop(lineage) == found.answered_turns and over:
                self._over(lineage)
