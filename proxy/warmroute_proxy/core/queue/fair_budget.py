"""Divides a budget fairly between tenants, such as the memory for all bodies in a process, or its client connections.

The budget is a shared buffer with dynamic thresholds (A. Choudhury, E. Hahne, "Dynamic queue length thresholds for
shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998): a tenant may hold at most `weight`
times the free amount. With a weight of 1, a single tenant fills half of the budget, two tenants fill a third each, and
n tenants fill an (n+1)th each. With a weight of w, n tenants together fill n * w / (n * w + 1) of the budget. A new
tenant always finds room, whatever the others hold. A tenant that holds nothing may begin with as much as is free.

The body of a request brings new work, while an answer completes work that was done. So answers may take more of the
budget, with the weight `ANSWER_WEIGHT`. Thus a tenant whose bodies fill its share can still receive answers.
"""

from typing import Final

ANSWER_WEIGHT: Final = 4


class FairBudget:
    """What is reserved of `total`, by tenant. The unit is up to the caller."""

    __slots__ = ("_held", "total", "used")

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._held: dict[str, int] = {}

    def reserve(self, tenant: str, amount: int, weight: int = 1) -> bool:
        """Reserve `amount` for a tenant, or return False and reserve nothing.

        The tenant may hold up to `weight` times the free amount.
        """
        free = self.total - self.used
        held = self._held.get(tenant, 0)
        if amount > free or (held and held + amount > weight * (free - amount)):
            return False
        self._held[tenant] = held + amount
        self.used += amount
        return True

    def would_fit(self, tenant: str, amount: int, weight: int, own: int, others: int) -> bool:
        """Whether `reserve` would succeed after the tenant released `own`, and other tenants released `others`."""
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
