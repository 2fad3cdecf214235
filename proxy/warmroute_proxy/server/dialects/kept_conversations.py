"""The conversations that open WebSockets keep, counted in the memory of bodies; they go before a body is refused.

A client whose conversation is gone sends all of it again, which costs it no more than HTTP does. So where a body finds
no memory and would with what is kept, conversations are dropped until it does: those of its own tenant first, the
least recently used first, then those of the tenant that has kept none for the longest time. One that is to be kept
makes only those of its own tenant go, and one that a turn is continuing stays.
"""

from warmroute_proxy.dialects.responses.conversation import MAX_KEPT_BYTES, ResponsesConversation
from warmroute_proxy.server.http.body_memory import BodyMemory, BodyReservation


class KeptConversation:
    """A conversation that is history. None once it was dropped."""

    __slots__ = ("conversation", "reservation", "size_bytes", "tenant")

    def __init__(self, tenant: str, reservation: BodyReservation) -> None:
        self.tenant = tenant
        self.reservation = reservation
        self.size_bytes = 0
        self.conversation: ResponsesConversation | None = None


class _OfTenant:
    """Those of a tenant that may go, the least recently used first, and their bytes."""

    def __init__(self) -> None:
        self.histories: dict[KeptConversation, None] = {}
        self.size_bytes = 0


class KeptConversations:
    """Those of all WebSockets of a process; their number is bounded by connections and their streams."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._tenants: dict[str, _OfTenant] = {}  # none of them empty; that which has kept none for long first
        self._size_bytes = 0
        memory.spare = self

    def keep(
        self, history: KeptConversation | None, tenant: str, conversation: ResponsesConversation
    ) -> KeptConversation | None:
        """Keep a conversation, in the place of one that is held and that it continues, if any. None where it is too
        large, or there is no memory for it.
        """
        if history is None:
            history = KeptConversation(tenant, self._memory.reserve(tenant, 0))
        size_bytes = conversation.size_bytes
        more = max(size_bytes - history.size_bytes, 0)
        if size_bytes > MAX_KEPT_BYTES or not history.reservation.grow_by_own(more):
            self.drop(history)
            return None
        history.size_bytes += more
        history.conversation = conversation
        self.release(history)
        return history

    def reserve(self, tenant: str, size_bytes: int) -> BodyReservation:
        """Memory for what a turn adds to a conversation, until it ends. Raises: Refusal."""
        reservation = self._memory.reserve(tenant, 0)
        if not reservation.grow(size_bytes):
            raise reservation.refusal()
        return reservation

    def hold(self, history: KeptConversation) -> None:
        """Keep it in any case, while a turn continues it."""
        found = self._tenants.get(history.tenant)
        if found is not None and history in found.histories:
            del found.histories[history]
            found.size_bytes -= history.size_bytes
            self._size_bytes -= history.size_bytes
            if not found.histories:
                del self._tenants[history.tenant]

    def release(self, history: KeptConversation) -> None:
        """It may go; it is the one that was used last."""
        found = self._tenants.pop(history.tenant, None) or _OfTenant()
        self._tenants[history.tenant] = found
        found.histories[history] = None
        found.size_bytes += history.size_bytes
        self._size_bytes += history.size_bytes

    def drop(self, history: KeptConversation) -> None:
        """Keep it no longer."""
        self.hold(history)
        history.conversation, history.size_bytes = None, 0
        history.reservation.close()

    # -- called by the memory of bodies

    def bytes_of(self, tenant: str) -> int:
        """What may go of a tenant's."""
        found = self._tenants.get(tenant)
        return 0 if found is None else found.size_bytes

    def bytes_of_others(self, tenant: str) -> int:
        """What may go of all others'."""
        return self._size_bytes - self.bytes_of(tenant)

    def give(self, tenant: str) -> None:
        """Drop a conversation: a tenant's own, else another one."""
        found = self._tenants.get(tenant) or next(iter(self._tenants.values()))
        self.drop(next(iter(found.histories)))
