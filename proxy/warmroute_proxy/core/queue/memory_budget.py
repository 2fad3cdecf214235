"""One budget for the bytes of all bodies in a process, fair between tenants.

The budget is a shared buffer with dynamic thresholds (A. Choudhury, E. Hahne, "Dynamic queue length thresholds for
shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998): a tenant may hold at most as many
bytes as are free. So one tenant alone fills half of the budget, two a third each, n an (n+1)th, and a tenant that comes
anew always finds room, whatever the others hold. A tenant that holds nothing may begin one body of up to what is free.

An answer is the end of work that was done, so it goes further than a body that begins work: with `ANSWER_WEIGHT`, up to
that many times what is free. A tenant whose bodies fill its share can still receive answers.
"""

from typing import Final

ANSWER_WEIGHT: Final = 4


class MemoryBudget:
    """The bytes that are reserved, by tenant."""

    __slots__ = ("_held", "total_bytes", "used_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._held: dict[str, int] = {}

    def reserve(self, tenant: str, size_bytes: int, weight: int = 1) -> bool:
        """Reserve bytes for a tenant, or return False and reserve nothing. It may hold `weight` times what is free."""
        free = self.total_bytes - self.used_bytes
        held = self._held.get(tenant, 0)
        if size_bytes > free or (held and held + size_bytes > weight * (free - size_bytes)):
            return False
        self._held[tenant] = held + size_bytes
        self.used_bytes += size_bytes
        return True

    def would_fit(self, tenant: str, size_bytes: int, weight: int, own_bytes: int, others_bytes: int) -> bool:
        """Whether `reserve` would find room, if so many bytes of the tenant and of others were given back."""
        free = self.total_bytes - self.used_bytes + own_bytes + others_bytes
        held = self._held.get(tenant, 0) - own_bytes
        return size_bytes <= free and (not held or held + size_bytes <= weight * (free - size_bytes))

    def release(self, tenant: str, size_bytes: int) -> None:
        """Give back bytes that were reserved."""
        left = self._held[tenant] - size_bytes
        assert left >= 0, "released more than was reserved"
        self.used_bytes -= size_bytes
        if left:
            self._held[tenant] = left
        else:
            del self._held[tenant]

    def held_bytes(self, tenant: str) -> int:
        """Return what a tenant holds."""
        return self._held.get(tenant, 0)
