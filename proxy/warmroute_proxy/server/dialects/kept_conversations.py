"""The conversations that open WebSockets keep, counted in the memory of bodies; they go before a body is refused.

A client whose conversation is gone sends all of it again, which costs it no more than HTTP does. So where a body finds
no memory, kept conversations are dropped until it does: those of its own tenant first, then those of the others, the
least recently used first. One that a turn is continuing stays.
"""

from warmroute_proxy.dialects.responses.conversation import Conversation
from warmroute_proxy.server.http.body_memory import BodyMemory, Reservation


class KeptConversation:
    """A conversation that is history. None once it was dropped."""

    __slots__ = ("conversation", "in_use", "reservation", "size_bytes", "tenant")

    def __init__(self, tenant: str, reservation: Reservation) -> None:
        self.tenant = tenant
        self.reservation = reservation
        self.size_bytes = 0
        self.conversation: Conversation | None = None
        self.in_use = 0  # turns that continue it


class KeptConversations:
    """Those of all WebSockets of a process; their number is bounded by connections and their streams."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._histories: dict[KeptConversation, None] = {}  # the least recently used first
        memory.spare = self._spare

    def keep(
        self, history: KeptConversation | None, tenant: str, conversation: Conversation
    ) -> KeptConversation | None:
        """Keep a conversation in the place of one that it continues, if any; None where there is no memory for it."""
        if history is None:
            history = KeptConversation(tenant, self._memory.reserve(tenant, 0))
        history.in_use += 1
        more = conversation.size_bytes - history.size_bytes
        fits = more <= 0 or history.reservation.grow(more)
        history.in_use -= 1
        if not fits:
            self.drop(history)
            return None
        history.size_bytes += max(more, 0)
        history.conversation = conversation
        self._histories.pop(history, None)
        self._histories[history] = None
        return history

    def drop(self, history: KeptConversation) -> None:
        """Keep it no longer."""
        self._histories.pop(history, None)
        history.conversation, history.size_bytes = None, 0
        history.reservation.close()

    def _spare(self, tenant: str) -> bool:
        """Drop a conversation, so that a tenant finds memory."""
        found = None
        for history in self._histories:
            if history.in_use:
                continue
            if history.tenant == tenant:
                found = history
                break
            found = found or history
        if found is not None:
            self.drop(found)
        return found is not None
