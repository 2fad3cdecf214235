"""Divides a bounded table between the owners of its entries: a full table drops an entry of the owner that holds most.

A single owner may fill the whole table. With several owners, the one that holds most loses its oldest entry, so that no
tenant makes a proxy forget the entries of another tenant. An entry counts by its weight, 1 by default. Each step takes
constant time: owners are grouped by the bit length of the total weight that they hold. Of the group with the largest
weights, only the first `MAX_COMPARED` owners are compared.

A table that is at most half full will not drop an entry soon. So its `Division` starts to count at the entry that makes
the table more than half full, and costs nothing before.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Final, Generic, TypeVar

MAX_COMPARED: Final = 64

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Owner(Generic[K]):
    """The keys of one owner with their weights, the oldest first."""

    __slots__ = ("held", "keys", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = 0
        self.keys: OrderedDict[K, int] = OrderedDict()


class Shares(Generic[K]):
    """The owners of the keys of one table."""

    __slots__ = ("_by_size", "_of", "_owners", "_sizes")

    def __init__(self) -> None:
        self._of: dict[K, _Owner[K]] = {}
        self._owners: dict[str, _Owner[K]] = {}
        self._by_size: dict[int, dict[str, _Owner[K]]] = {}  # by the bit length of `held`
        self._sizes = 0  # a bit for each group in `_by_size` that is not empty

    def __len__(self) -> int:
        return len(self._of)

    def held(self, name: str) -> int:
        """The total weight of an owner's keys."""
        owner = self._owners.get(name)
        return 0 if owner is None else owner.held

    def add(self, key: K, name: str, weight: int = 1) -> None:
        """Add a key, or change its weight. The key becomes the newest of its owner."""
        owner = self._of.get(key)
        if owner is None:
            owner = self._owners.get(name)
            if owner is None:
                owner = self._owners[name] = _Owner(name)
            self._of[key] = owner
        before = owner.keys.get(key, 0)
        owner.keys[key] = weight
        if before:
            owner.keys.move_to_end(key)
        if weight != before:
            self._hold(owner, owner.held + weight - before)

    def use(self, key: K) -> None:
        """Make a key the newest of its owner."""
        owner = self._of.get(key)
        if owner is not None:
            owner.keys.move_to_end(key)

    def discard(self, key: K) -> None:
        """Forget a key that left the table."""
        owner = self._of.pop(key, None)
        if owner is not None:
            self._hold(owner, owner.held - owner.keys.pop(key))

    def next_to_go(self) -> K:
        """The oldest key of the owner that holds most: the next to drop. The table must not be empty."""
        largest = self._by_size[self._sizes.bit_length() - 1].values()
        most: _Owner[K] | None = None
        for _, owner in zip(range(MAX_COMPARED), largest, strict=False):
            if most is None or owner.held > most.held:
                most = owner
        assert most is not None
        return next(iter(most.keys))

    def _hold(self, owner: _Owner[K], held: int) -> None:
        before, now = owner.held.bit_length(), held.bit_length()
        owner.held = held
        if before == now:
            return
        if before:
            same = self._by_size[before]
            del same[owner.name]
            if not same:
                self._sizes &= ~(1 << before)
        if now:
            self._by_size.setdefault(now, {})[owner.name] = owner
            self._sizes |= 1 << now
        else:
            del self._owners[owner.name]


def _one(_key: object, _value: object) -> int:
    return 1


class Division(Generic[K, V]):
    """The shares of a table, once it is more than half full."""

    __slots__ = ("_owner_of", "_shares", "_weight_of", "begun", "owners")

    def __init__(self, owner_of: Callable[[K, V], str] | None = None, weight_of: Callable[[K, V], int] = _one) -> None:
        """`owner_of` and `weight_of` are called with entries that are in the table. Without `owner_of`, the caller
        writes the owner of each entry to `owners`, and leaves out entries without an owner.
        """
        self.owners: dict[K, str] = {}
        self._owner_of = owner_of
        self._weight_of = weight_of
        self._shares: Shares[K] | None = None
        self.begun = False
        """Whether the caller has to call `stored` for each entry that it stores or uses."""

    def stored(self, key: K, table: Mapping[K, V]) -> None:
        """Note that an entry was stored or used. The first call, due when the table is more than half full, adds all
        entries of the table. `table` is in order from the oldest entry to the newest.
        """
        shares = self._shares
        if shares is None:
            shares = self._shares = Shares()
            self.begun = True
            for each, value in table.items():
                self._add(shares, each, value)
        else:
            self._add(shares, key, table[key])

    def _add(self, shares: Shares[K], key: K, value: V) -> None:
        owner = self.owners.get(key, "") if self._owner_of is None else self._owner_of(key, value)
        shares.add(key, owner, self._weight_of(key, value))

    def discard(self, key: K) -> None:
        """Forget an entry that left the table."""
        if self.owners:
            self.owners.pop(key, None)
        if self._shares is not None:
            self._shares.discard(key)

    def next_to_go(self) -> K:
        """The key of the entry to drop. The table is full, so `stored` has been called for all entries."""
        assert self._shares is not None
        return self._shares.next_to_go()
