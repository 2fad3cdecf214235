"""Requests at once over all proxies, in this process: asks the store for places beside the requests."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from warmroute_proxy.core.queue.scope import ByScope
from warmroute_proxy.core.queue.slots import Held, SlotLease, SlotLimit


class SlotStore(Protocol):
    """Where places are kept."""

    async def hold(self, slots: SlotLimit, running: int, wanted: int) -> Held:
        """Hold so many places, or as many as there are. Raises: an error, where that is not known."""
        ...


class SharedSlots:
    """The places of this process. Used in the event loop of requests."""

    def __init__(self, limits: Sequence[SlotLimit], store: SlotStore | None, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self.leases = [SlotLease(slots) for slots in limits] if store is not None else []
        self._store = store
        self._clock = clock
        self._by_scope = ByScope([(lease.slots.scope, lease) for lease in self.leases])
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_answer: list[Callable[[], None]] = []
        """Called when what waits may go."""

    def replace(self, limits: Sequence[SlotLimit]) -> None:
        """Use these limits. What runs still counts under the one that it began under."""
        known = {(lease.slots.scope.kind, lease.slots.scope.name): lease for lease in self.leases}
        self.leases = []
        for slots in limits:
            lease = known.get((slots.scope.kind, slots.scope.name)) or SlotLease(slots)
            lease.slots = slots
            self.leases.append(lease)
        self._by_scope = ByScope([(lease.slots.scope, lease) for lease in self.leases])

    def of(self, tenant: str, key_id: str) -> tuple[SlotLease, ...]:
        """The places of a request with this key, of this tenant."""
        return self._by_scope.of(tenant, key_id)

    @property
    def away(self) -> bool:
        """Whether the store has not answered lately."""
        return any(lease.away for lease in self.leases)

    def sweep(self) -> None:
        """Ask the store for what is wanted; called a few times a second."""
        self._ask(self.leases)

    def began(self, leases: Iterable[SlotLease]) -> None:
        """A request runs under these limits: ask at once where more run than the store knows of."""
        self._ask([lease for lease in leases if lease.beyond])

    def as_dict(self) -> list[dict[str, Any]]:
        """What the admin page shows."""
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
            for lease in self.leases
        ]

    def _ask(self, leases: Iterable[SlotLease]) -> None:
        if self._store is None:
            return
        now_s = self._clock()
        for lease in leases:
            wanted = lease.wanted(now_s)
            if wanted is not None:
                lease.asked(now_s)
                call = self._hold(self._store, lease, lease.running, wanted)
                task = asyncio.get_running_loop().create_task(call)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _hold(self, store: SlotStore, lease: SlotLease, running: int, wanted: int) -> None:
        try:
            lease.answered(await store.hold(lease.slots, running, wanted))
        except Exception:  # its reason is logged where it was called
            lease.not_answered()
        for call in self.on_answer:
            call()
