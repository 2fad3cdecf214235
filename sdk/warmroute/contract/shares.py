"""Divides a bounded table between the owners of its entries: when it is full, one of the owner that holds most goes.

An owner that is alone may use all of a table. Beside others it loses its own entries first, the oldest one before the
others, so nobody makes a proxy forget what another tenant has there. Each step takes the same time, however many
entries and owners there are: owners are kept by the power of two below what they hold, and of those with most, the
first `MAX_COMPARED` are compared.

A table that is at most half full needs none of this: nothing goes soon. So its `Division` begins with the entry by
which it is more than half full, and costs nothing before.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Final, Generic, TypeVar

MAX_COMPARED: Final = 64

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Owner(Generic[K]):
    """What one owner holds: the weight of each key, the oldest first."""

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
        self._by_size: dict[int, dict[str, _Owner[K]]] = {}  # by the bit length of what they hold
        self._sizes = 0  # a bit for each of those

    def __len__(self) -> int:
        return len(self._of)

    def held(self, name: str) -> int:
        """The weight of all that an owner holds."""
        owner = self._owners.get(name)
        return 0 if owner is None else owner.held

    def add(self, key: K, name: str, weight: int = 1) -> None:
        """A key is new in the table, or has another weight now. It is its owner's newest."""
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
        """A key is its owner's newest now."""
        owner = self._of.get(key)
        if owner is not None:
            owner.keys.move_to_end(key)

    def discard(self, key: K) -> None:
        """A key is no more in the table."""
        owner = self._of.pop(key, None)
        if owner is not None:
            self._hold(owner, owner.held - owner.keys.pop(key))

    def next_to_go(self) -> K:
        """The oldest key of the owner that holds most. There must be one."""
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
        """`owner_of` and `weight_of` are asked of entries that are in the table; without `owner_of` the table notes
        whose each of its entries is in `owners`, except those of nobody.
        """
        self.owners: dict[K, str] = {}
        self._owner_of = owner_of
        self._weight_of = weight_of
        self._shares: Shares[K] | None = None
        self.begun = False
        """Whether each entry of the table that is stored or used has to be `stored` here."""

    def stored(self, key: K, table: Mapping[K, V]) -> None:
        """An entry was stored or used. Called first when the table, which has its oldest entry first, is more than half
        full.
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
        """An entry is no more in the table."""
        if self.owners:
            self.owners.pop(key, None)
        if self._shares is not None:
            self._shares.discard(key)

    def next_to_go(self) -> K:
        """The key of the entry that goes. Its table is full, so all were `stored`."""
        assert self._shares is not None
        return self._shares.next_to_go()
