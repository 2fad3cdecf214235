"""Requests at once over all proxies, in this process: asks the store for places beside the requests."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from warmroute_proxy.core.queue.rotation import Rotation
from warmroute_proxy.core.queue.scope import ByScope
from warmroute_proxy.core.queue.slots import Held, SlotLease, SlotLimit

MOST_LOOKED_AT: Final = 1_000
MOST_ASKED: Final = 100
"""In one sweep, so that it takes no more than 1 ms: each limit in use is asked for once in `LEASE_S` up to 2,000."""


class SlotStore(Protocol):
    """Where places are kept."""

    async def hold(self, slots: SlotLimit, running: int, wanted: int) -> Held:
        """Hold `wanted` places, or as many as there are. Raises: an error, if that is not known."""
        ...


class SharedSlots:
    """The places of this process. Used in the event loop of requests."""

    def __init__(self, limits: Sequence[SlotLimit], store: SlotStore | None, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self.leases = [SlotLease(slots) for slots in limits] if store is not None else []
        self._store = store
        self._clock = clock
        self._by_scope = ByScope([(lease.slots.scope, lease) for lease in self.leases])
        self._in_use: Rotation[SlotLease] = Rotation(())
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
        now_s = self._clock()
        self._in_use = Rotation([lease for lease in self.leases if not lease.rests(now_s)])

    def of(self, tenant: str, key_id: str) -> tuple[SlotLease, ...]:
        """The places of a request with this key, of this tenant."""
        leases = self._by_scope.of(tenant, key_id)
        for lease in leases:
            self._in_use.add(lease)
        return leases

    def of_any(self, tenant: str, key_ids: Iterable[str]) -> tuple[SlotLease, ...]:
        """The places of this tenant and of these keys. Unlike `of`, nothing is asked of the store for them."""
        return self._by_scope.of_any(tenant, key_ids)

    @property
    def away(self) -> bool:
        """Whether the store has not answered lately."""
        return any(lease.away for lease in self.leases)

    def sweep(self) -> None:
        """Ask the store for what is wanted under some of the limits in use, in turn; called a few times a second."""
        now_s, asked = self._clock(), 0
        for lease in self._in_use.round(MOST_LOOKED_AT):
            asked += self._ask_for(lease, now_s)
            if lease.rests(now_s):
                self._in_use.remove(lease)
            if asked == MOST_ASKED:
                break

    def began(self, leases: Iterable[SlotLease]) -> None:
        """A request runs under these limits: ask at once where more run than the store knows of."""
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

    def _ask_for(self, lease: SlotLease, now_s: float) -> bool:
        """Ask the store for what is wanted under a limit. Returns whether anything is."""
        wanted = lease.wanted(now_s)
        if wanted is None or self._store is None:
            return False
        lease.asked(now_s)
        task = asyncio.get_running_loop().create_task(self._hold(self._store, lease, lease.running, wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _hold(self, store: SlotStore, lease: SlotLease, running: int, wanted: int) -> None:
        try:
            lease.answered(await store.hold(lease.slots, running, wanted))
        except Exception:  # its reason is logged where it was called
            lease.not_answered()
        for call in self.on_answer:
            call()
