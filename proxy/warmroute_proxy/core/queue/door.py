"""Makes new sessions wait (the door is shut) while turns of running sessions wait for KV memory.

The reasons are in docs/decisions/052-door.md.

Turns that do not fit in KV memory have to wait. If turns wait for W seconds each and their sessions are evicted
meanwhile, their prompts have to be computed again:

    forced prefill per second  >=  waiting tokens / W

Neither the order of turns nor the choice of the evicted sessions changes this rate. A turn that begins a session has no
KV to lose, so it waits behind all others:

    shut     while a turn of a running session waits for memory, the door is shut for new sessions, except those of a
             small tenant that has no such turn itself
    small    all that a tenant holds and waits for fits its share: the pool, divided by the number of tenants that hold
             memory or wait for it
    bound    how long a turn waits before it goes, whatever it evicts: `SMALL_WAIT_S` for a small tenant,
             `memory_wait_s` for others. A turn that begins a session goes only if the door is also open

A door that was shut for `MAX_SHUT` times `memory_wait_s` lets one session in, so that running sessions that never end
do not keep the door shut for ever.
"""

from typing import Final, Generic, TypeVar

from warmroute_proxy.core.cache.residents import FILLED
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.placement.waits import Waits
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.admission import FOR_MEMORY, Queue, Waiter

SMALL_WAIT_S: Final = 15.0
MAX_SHUT: Final = 15
"""In all half an hour by default. One session every two minutes would add a quarter to the computed prefill."""

RENEW_S: Final = 5.0

T = TypeVar("T")


def begins(router: Router, queue: Queue[T], routing: RoutingRequest) -> bool:
    """Whether a request would begin a session, and so has to wait while the door is shut."""
    return queue.new_sessions_wait and queue.memory_wait_s > 0 and router.waits_at_door(routing)


def waits_to_begin(waiter: Waiter[T]) -> bool:
    """Whether a request waits for memory to begin a session."""
    return waiter.begins and waiter.worker_id == FOR_MEMORY


class Announcing(Generic[T]):
    """Tells the other processes what waits for memory in a queue: after each change, and again every `RENEW_S`, for
    processes that missed a message.
    """

    def __init__(self, router: Router, queue: Queue[T]) -> None:
        self._router = router
        self._queue = queue
        self._known: dict[tuple[str, str], Waits] = {}  # by model and tenant
        self._renew_s = 0.0

    def sweep(self, now_s: float) -> None:
        queue, before = self._queue, self._known
        self._router.waits_elsewhere.expire(now_s)
        if not (queue.requests or before):
            return
        renews = now_s >= self._renew_s
        if renews:
            self._renew_s = now_s + RENEW_S
        self._known = now = {(each.model, each.tenant): each for each in queue.memory_waits()}
        for key in before.keys() | now.keys():
            if renews or before.get(key) != now.get(key):
                self._router.announce_waits(now.get(key) or Waits(*key, 0, 0), now_s)


class Door(Generic[T]):
    """The door of one model during one round of dispatches. Which tenants are small is computed once in this round."""

    def __init__(self, router: Router, queue: Queue[T], model: str, now_s: float) -> None:
        self._router = router
        self._queue = queue
        self._model = model
        self._now_s = now_s
        self._share: float | None = None
        self._small: dict[str, bool] = {}

    def keeps_out_all(self) -> bool:
        """Whether no tenant may begin a session now."""
        queue, model = self._queue, self._model
        if not (queue.running(model) or self._router.waits_elsewhere.running(model)) or self._fair_share() >= 0:
            return False
        opened_s = queue.opened_s(model)
        return opened_s is None or self._now_s - opened_s < MAX_SHUT * queue.memory_wait_s

    def is_shut(self, waiter: Waiter[T]) -> bool:
        """Whether a turn may not begin its session now. False for a turn of a running session."""
        if not waiter.begins:
            return False
        queue, elsewhere, model, tenant = self._queue, self._router.waits_elsewhere, self._model, waiter.tenant
        if queue.running(model, tenant) or elsewhere.running(model, tenant):
            return True
        return (queue.running(model) or elsewhere.running(model)) > 0 and not self._is_small(waiter)

    def is_overdue(self, waiter: Waiter[T]) -> bool:
        """Whether a turn has waited for memory as long as it may (its bound), so that it goes next."""
        queue, waited_s = self._queue, self._now_s - waiter.asked_s
        if waited_s < queue.memory_wait_s and not (waited_s >= SMALL_WAIT_S and self._is_small(waiter)):
            return False
        if not self.is_shut(waiter):
            return True
        opened_s = queue.opened_s(self._model)
        return opened_s is not None and self._now_s - max(opened_s, waiter.asked_s) >= MAX_SHUT * queue.memory_wait_s

    def _is_small(self, waiter: Waiter[T]) -> bool:
        """Whether the tenant of a request is small, as defined above. False if it is the only tenant."""
        tenant = waiter.tenant
        found = self._small.get(tenant)
        if found is None:
            new_tokens = 0 if waiter.worker_id == FOR_MEMORY else waiter.need_tokens
            found = self._small[tenant] = self._demand(tenant) + new_tokens <= self._fair_share()
        return found

    def _demand(self, tenant: str) -> int:
        held = self._router.working_set.held_by_tenant(self._model, tenant)
        waiting = self._queue.needed(self._model, tenant)
        return held + waiting + self._router.waits_elsewhere.needed(self._model, tenant)

    def _fair_share(self) -> float:
        """The tokens that a small tenant may hold and wait for. -1 for a single tenant, or if new sessions do not wait;
        in these cases no tenant is small.
        """
        if not self._queue.new_sessions_wait:
            return -1.0
        if self._share is None:
            tenants, pool_tokens = self._router.working_set.tenants(self._model, self._now_s)
            tenants = tenants | self._queue.tenants_for_memory(self._model)
            tenants |= self._router.waits_elsewhere.tenants(self._model)
            self._share = FILLED * pool_tokens / len(tenants) if len(tenants) > 1 else -1.0
        return self._share
