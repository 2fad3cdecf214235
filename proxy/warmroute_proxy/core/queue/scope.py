"""Defines the scope of a limit (API keys, one tenant, or several tenants), and finds the limits of a request."""

from collections.abc import Iterable
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")


class Scope(NamedTuple):
    """The tenants or the keys whose use a limit adds up. A scope never has both: otherwise the use of a key could count
    twice.

    `keys`: ids of keys. `kind`: whether the limit is a tenant's own, or that of a budget.
    """

    name: str
    tenants: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    kind: Literal["tenant", "budget"] = "budget"

    def holds(self, tenant: str, key_id: str) -> bool:
        """Whether a request of this tenant, with this key, counts towards the limit."""
        return tenant in self.tenants or key_id in self.keys

    @property
    def words(self) -> str:
        """The part of a message to clients that names the budget; empty for a tenant's own limit."""
        return f" of the budget {self.name}" if self.kind == "budget" else ""


class ByScope(Generic[T]):
    """Limits, or other objects that have a scope, found by tenant and key."""

    def __init__(self, things: Iterable[tuple[Scope, T]]) -> None:
        self.all = tuple(things)
        self._of_tenant: dict[str, tuple[T, ...]] = {}
        self._of_key: dict[str, tuple[T, ...]] = {}
        for scope, thing in self.all:
            for tenant in scope.tenants:
                self._of_tenant[tenant] = (*self._of_tenant.get(tenant, ()), thing)
            for key_id in scope.keys:
                self._of_key[key_id] = (*self._of_key.get(key_id, ()), thing)

    def has_key(self, key_id: str) -> bool:
        return key_id in self._of_key

    def of(self, tenant: str, key_id: str) -> tuple[T, ...]:
        """The objects that hold for a request of this tenant with this key."""
        found = self._of_tenant.get(tenant, ())
        return found + self._of_key[key_id] if key_id in self._of_key else found

    def of_any(self, tenant: str, key_ids: Iterable[str]) -> tuple[T, ...]:
        """The objects that hold for requests of this tenant with any of these keys, each object once."""
        found = self._of_tenant.get(tenant, ()), *(self._of_key.get(key_id, ()) for key_id in key_ids)
        return tuple({id(thing): thing for things in found for thing in things}.values())
