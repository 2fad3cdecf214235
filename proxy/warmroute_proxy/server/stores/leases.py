"""Keeps this process's leases on limits that several processes share, and asks the limits' store for more.

A lease is the part of a limit that a process may use without asking the store again. Each question to the store has a
deadline. A store that misses the deadline counts as away.
"""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from warmroute_proxy.core.queue.scope import ByScope, Scope
from warmroute_proxy.core.queue.slots import Held, SlotLease, SlotLimit
from warmroute_proxy.server.base.background import BackgroundTasks

# A round looks only at some of the leases, in turn, so its time does not grow with the number of leases.

T = TypeVar("T")


class Rotation(Generic[T]):
    """Items in the order in which the next rounds look at them."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items: OrderedDict[T, None] = OrderedDict.fromkeys(items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        """Add an item at the end, unless it is there already."""
        self._items.setdefault(item)

    def remove(self, item: T) -> None:
        del self._items[item]

    def round(self, most: int) -> Iterator[T]:
        """Yield the next items, at most `most`. If the caller stops early, the next round goes on at the next item."""
        for _ in range(min(most, len(self._items))):
            item = next(iter(self._items))
            self._items.move_to_end(item)
            yield item


class AnyLease(Protocol):
    """A lease of any kind. `away`: whether its store left the last question unanswered."""

    away: bool


_Lease = TypeVar("_Lease", bound=AnyLease)


class Leases(Generic[_Lease]):
    """The leases of one kind. Used in the event loop of requests."""

    def __init__(self, clock: Callable[[], float], most_looked_at: int, most_asked: int) -> None:
        """`most_looked_at`, `most_asked`: how many leases one sweep looks at, and how many it asks the store about."""
        self.leases: list[_Lease] = []
        self.on_answer: list[Callable[[], None]] = []
        """Functions to call after each answer, since waiting requests may then begin or have to be refused."""

        self._clock = clock
        self._most_looked_at = most_looked_at
        self._most_asked = most_asked
        self._by_scope: ByScope[_Lease] = ByScope(())
        self._in_use: Rotation[_Lease] = Rotation(())
        self._tasks = BackgroundTasks()

    @abstractmethod
    def _scope(self, lease: _Lease) -> Scope: ...

    @abstractmethod
    def _rests(self, lease: _Lease, now_s: float) -> bool:
        """Whether the store does not have to be asked about the lease until a request comes."""

    @abstractmethod
    def _question(self, lease: _Lease, now_s: float) -> Coroutine[Any, Any, None] | None:
        """A coroutine that asks the store about the lease; None if no question is due."""

    def _use(self, leases: list[_Lease], leaving: Sequence[_Lease] = ()) -> None:
        """Use these leases. `leaving`: removed leases, about which the store is asked until they rest."""
        now_s = self._clock()
        self.leases = leases
        self._by_scope = ByScope([(self._scope(lease), lease) for lease in leases])
        self._in_use = Rotation([lease for lease in (*leases, *leaving) if not self._rests(lease, now_s)])

    def of_any(self, tenant: str, key_ids: Iterable[str]) -> tuple[_Lease, ...]:
        """The leases of this tenant and of these keys, without asking the store."""
        return self._by_scope.of_any(tenant, key_ids)

    @property
    def away(self) -> bool:
        """Whether the store has not answered the last question about any lease."""
        return any(lease.away for lease in self.leases)

    def sweep(self) -> None:
        """Ask the store the due questions about some of the leases in use, in turn. Called a few times a second."""
        now_s, asked = self._clock(), 0
        for lease in self._in_use.round(self._most_looked_at):
            asked += self._ask_for(lease, now_s)
            if self._rests(lease, now_s):
                self._in_use.remove(lease)
            if asked == self._most_asked:
                break

    def _ask_for(self, lease: _Lease, now_s: float) -> bool:
        """Ask the store about the lease, if a question is due. Returns whether it was due."""
        question = self._question(lease, now_s)
        if question is not None:
            self._tasks.start(self._ask(question))
        return question is not None

    async def _ask(self, question: Coroutine[Any, Any, None]) -> None:
        await question
        for call in self.on_answer:
            call()


class SlotStore(Protocol):
    """The store of places for concurrent requests, which processes share."""

    async def hold(self, slots: SlotLimit, running: int, wanted: int) -> Held:
        """Hold `wanted` places, or what is left if that is less. Raises any error if the outcome is unknown."""
        ...


MOST_LOOKED_AT: Final = 1_000
MOST_ASKED: Final = 100
"""How many leases one sweep looks at and asks about, so that it takes at most 1 ms. With up to 2,000 limits in use, the
store is still asked about each of them once in `LEASE_S`.
"""


class SharedSlots(Leases[SlotLease]):
    """The places that this process holds under limits on concurrent requests."""

    def __init__(self, limits: Sequence[SlotLimit], store: SlotStore | None, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        super().__init__(clock, MOST_LOOKED_AT, MOST_ASKED)
        self._store = store
        self._use([SlotLease(slots) for slots in limits] if store is not None else [])

    def replace(self, limits: Sequence[SlotLimit]) -> None:
        """Use these limits. A running request stays counted under the limits that applied when it began."""
        known = {(lease.slots.scope.kind, lease.slots.scope.name): lease for lease in self.leases}
        leases = []
        for slots in limits:
            lease = known.get((slots.scope.kind, slots.scope.name)) or SlotLease(slots)
            lease.slots = slots
            leases.append(lease)
        self._use(leases)

    def of(self, tenant: str, key_id: str) -> tuple[SlotLease, ...]:
        """The leases that limit a request of this tenant with this key. Marks them as in use."""
        leases = self._by_scope.of(tenant, key_id)
        for lease in leases:
            self._in_use.add(lease)
        return leases

    def began(self, leases: Iterable[SlotLease]) -> None:
        """Note that a request has begun. If more requests run than the store knows of, ask it for places at once."""
        now_s = self._clock()
        for lease in leases:
            self._in_use.add(lease)
            if lease.beyond:
                self._ask_for(lease, now_s)

    def as_dict(self, leases: Iterable[SlotLease]) -> list[dict[str, Any]]:
        return [
            {
                "name": lease.slots.scope.name,
                "kind": lease.slots.scope.kind,
                "limit": lease.slots.limit,
                "running": lease.running,
                "held": lease.held,
                "left": lease.left,
                "away": lease.away,
            }
            for lease in leases
        ]

    def _scope(self, lease: SlotLease) -> Scope:
        return lease.slots.scope

    def _rests(self, lease: SlotLease, now_s: float) -> bool:
        return lease.rests(now_s)

    def _question(self, lease: SlotLease, now_s: float) -> Coroutine[Any, Any, None] | None:
        wanted = lease.wanted(now_s)
        if wanted is None or self._store is None:
            return None
        lease.asked(now_s)
        return self._hold(self._store, lease, lease.running, wanted)

    async def _hold(self, store: SlotStore, lease: SlotLease, running: int, wanted: int) -> None:
        try:
            lease.answered(await store.hold(lease.slots, running, wanted))
        except Exception:  # the store logs the reason
            lease.not_answered()
