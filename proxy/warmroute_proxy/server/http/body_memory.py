"""The memory budget for all bodies in a process, from which each request reserves memory.

A reservation lasts as long as its object. An object that holds bytes of a request also refers to the reservation. When
the last reference goes, the memory is given back. So the memory is released however the request ends.
"""

from typing import Final, Protocol

from warmroute_proxy.core.queue.fair_budget import ANSWER_WEIGHT, FairBudget
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Counter

UNNAMED: Final = ""
"""The tenant of bodies that belong to no tenant, such as those on the admin listener."""

UNCOUNTED_BYTES: Final = 16_384
"""Up to this size, bytes of an engine's answer that wait are not counted."""


class Spare(Protocol):
    """Bytes that are kept only for possible use, and may be dropped to make room for a body."""

    def bytes_of(self, tenant: str) -> int:
        """The bytes that are kept for a tenant."""

    def bytes_of_others(self, tenant: str) -> int:
        """The bytes that are kept for all other tenants."""

    def give(self, tenant: str) -> None:
        """Give some bytes back, those of `tenant` first. Called only if some are kept."""


class BodyMemory:
    """The memory budget for all bodies of one process. `spare`: bytes that are dropped before a body is refused."""

    def __init__(self, total_bytes: int, copies: int, refused: Counter) -> None:
        """`copies`: how many copies of a body may be in memory. `refused`: counts requests that found no memory."""
        self.budget = FairBudget(total_bytes)
        self.copies = copies
        self.refused = refused
        self.spare: Spare | None = None

    def reserve(self, tenant: str, size_bytes: int) -> "BodyReservation":
        """Reserve memory for a body. `size_bytes` is 0 if memory is reserved while the body comes. Raises: Refusal."""
        reservation = BodyReservation(self, tenant)
        if size_bytes:
            reservation.add_body(size_bytes)
        return reservation

    def refusal(self) -> Refusal:
        """The refusal of a request that finds no memory. Each call counts a refused request."""
        self.refused[0] += 1
        message = "running requests use all memory for your bodies (body_memory_bytes); try again in 1 s"
        return Refusal(503, message, code="overloaded", retry_after_s=1)


class BodyReservation:
    """The memory that one request holds. `body_bytes`: the memory for one copy of the request's body."""

    __slots__ = ("_memory", "_size_bytes", "_tenant", "body_bytes")

    def __init__(self, memory: BodyMemory, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant
        self._size_bytes = 0
        self.body_bytes = 0

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give all memory back now, even if references to this object remain."""
        size_bytes, self._size_bytes, self.body_bytes = self._size_bytes, 0, 0
        if size_bytes:
            self._memory.budget.release(self._tenant, size_bytes)

    def grow(self, size_bytes: int) -> bool:
        """Reserve memory for bytes of which only one copy exists. Returns whether there was room."""
        return self._grow(size_bytes, 1)

    def add_answer(self, size_bytes: int) -> bool:
        """Reserve memory for some of an answer. Returns whether there was room."""
        return self._grow(size_bytes, ANSWER_WEIGHT)

    def cover(self, size_bytes: int) -> bool:
        """Reserve memory until this reservation has at least `size_bytes`. Returns whether there was room."""
        more = size_bytes - self._size_bytes
        return more <= 0 or self._grow(more, ANSWER_WEIGHT)

    def add_body(self, size_bytes: int) -> None:
        """Reserve memory for `size_bytes` of a body and for their copies. Raises: Refusal."""
        if not self.grow(size_bytes * self._memory.copies):
            raise self._memory.refusal()
        self.body_bytes += size_bytes

    def drop_body(self) -> None:
        size_bytes, self.body_bytes = self.body_bytes * self._memory.copies, 0
        if size_bytes:
            self._size_bytes -= size_bytes
            self._memory.budget.release(self._tenant, size_bytes)

    def refusal(self) -> Refusal:
        """The refusal of the request, if it finds no memory. Each call counts a refused request."""
        return self._memory.refusal()

    def grow_by_own(self, size_bytes: int) -> bool:
        """Reserve memory as `grow` does, but drop no spare bytes of other tenants."""
        return self._grow(size_bytes, 1, of_others=False)

    def _grow(self, size_bytes: int, weight: int, *, of_others: bool = True) -> bool:
        memory, tenant = self._memory, self._tenant
        if not memory.budget.reserve(tenant, size_bytes, weight):
            spare = memory.spare
            if spare is None:
                return False
            own, others = spare.bytes_of(tenant), spare.bytes_of_others(tenant) if of_others else 0
            if not memory.budget.would_fit(tenant, size_bytes, weight, own, others):
                return False  # dropping all spare bytes would not suffice, so nothing is dropped
            while not memory.budget.reserve(tenant, size_bytes, weight):
                spare.give(tenant)
        self._size_bytes += size_bytes
        return True
