"""Tracks which WebSocket streams have each conversation, to notice when a client has ended a conversation.

A conversation is over if its last turn was answered on a WebSocket, and the client then closes, between two turns, the
last stream that has it. Otherwise it may go on elsewhere: a client may connect again before its earlier connection is
closed, send its next turn by POST, or reach another process. A conversation is identified by its lineage, the number of
one branch of turns that continue each other. Sub-agents of a session may share a lineage, so several streams may have
one conversation. The limits on connections and their streams also limit the number of conversations.
"""

from collections.abc import Callable


class _OpenConversation:
    """One conversation. `answered_turns`: how many turns had been sent when the last one was answered on a WebSocket;
    None if a turn has begun since.
    """

    __slots__ = ("answered_turns", "streams")

    def __init__(self) -> None:
        self.streams: set[object] = set()
        self.answered_turns: int | None = None


class OpenConversations:
    """The conversations of all WebSockets of a process, by lineage."""

    def __init__(self, over: Callable[[int], None], turns: dict[int, int]) -> None:
        """`over`: called with the lineage of each conversation that is over. `turns`: by lineage, the number of turns
        sent in each open conversation, over any connection (`WorkingSet.turns_of_open`).
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
        """A stream no longer has the conversation. `over`: whether the client ended the conversation with it."""
        found = self._open[lineage]
        found.streams.discard(stream)
        if not found.streams:
            del self._open[lineage]
            if self._turns.pop(lineage) == found.answered_turns and over:
                self._over(lineage)
