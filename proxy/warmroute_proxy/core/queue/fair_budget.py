"""A budget that is fair between tenants: of the bytes of all bodies in a process, or of its client connections.

The budget is a shared buffer with dynamic thresholds (A. Choudhury, E. Hahne, "Dynamic queue length thresholds for
shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998): a tenant may hold at most `weight`
times what is free. With a weight of 1 one tenant alone fills half of the budget, two a third each, n an (n+1)th; with a
weight of w n tenants fill n * w / (n * w + 1) of it. A tenant that comes anew always finds room, whatever the others
hold. A tenant that holds nothing may begin with as much as is free.

An answer is the end of work that was done, so it goes further than a body that begins work: with `ANSWER_WEIGHT`. A
tenant whose bodies fill its share can still receive answers.
"""

from typing import Final

ANSWER_WEIGHT: Final = 4


class FairBudget:
    """What is reserved of `total`, by tenant; its owner says the unit."""

    __slots__ = ("_held", "total", "used")

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._held: dict[str, int] = {}

    def reserve(self, tenant: str, amount: int, weight: int = 1) -> bool:
        """Reserve some for a tenant, or return False and reserve nothing. It may hold `weight` times what is free."""
        free = self.total - self.used
        held = self._held.get(tenant, 0)
        if amount > free or (held and held + amount > weight * (free - amount)):
            return False
        self._held[tenant] = held + amount
        self.used += amount
        return True

    def would_fit(self, tenant: str, amount: int, weight: int, own: int, others: int) -> bool:
        """Whether `reserve` would find room, if these amounts of the tenant's and of others' were given back."""
        free = self.total - self.used + own + others
        held = self._held.get(tenant, 0) - own
        return amount <= free and (not held or held + amount <= weight * (free - amount))

    def release(self, tenant: str, amount: int) -> None:
        left = self._held[tenant] - amount
        assert left >= 0, "released more than was reserved"
        self.used -= amount
        if left:
            self._held[tenant] = left
        else:
            del self._held[tenant]
