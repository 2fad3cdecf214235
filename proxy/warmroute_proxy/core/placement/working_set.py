"""Decides whether a turn may take KV memory now, or would evict conversations that are likely to come back soon.

If the KV memory of a fleet is too small for all conversations, they evict each other between their turns, and each turn
computes its whole prompt again. Such thrashing is known from virtual memory, and so is the cure, the working set (P.
Denning, 1968): only as many conversations run as fit, and the others wait (`queue.memory_wait`).

    FREE    the turn takes little new memory: few of its tokens are uncached, or its conversation is there already
    FITS    the turn takes new memory, and its worker has room for it (`cache.residents`)
    LACKS   the turn would evict what is likely to be used again within the window (`cache.return_times`)

Only workers of this region are considered, if their engine reports its pool and they have no second tier, because a
host tier gives an evicted prompt back without computing it. At all other workers every turn is FREE. While everything
fits, every turn is FREE or FITS.

The home of a conversation is the worker that its last turn was sent to. A session has several conversations if it has
sub-agents, titles or several models.

Limits: `MAX_HOMES` homes, divided by tenant (`warmroute.contract.shares`). Of the tenant that has most homes, the least
recently used is forgotten first; its conversation's next turn then counts as new. `MAX_HOMES` sessions, divided by
tenant, too, and the last `MAX_OF_SESSION` conversations of each session.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import Any, Final

from warmroute.contract.shares import Division
from warmroute_proxy.core.cache.residents import FIRST_WINDOW_S, NO_LIMIT, Residents
from warmroute_proxy.core.cache.return_times import KINDS, OVER, PERSON, UNKNOWN, ReturnTimes
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.ticket import Ticket
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

FREE: Final = 0
FITS: Final = 1
LACKS: Final = 2

SMALL_TOKENS: Final = 8192
"""A turn with fewer uncached tokens never waits for memory: they are only one chunk of prefill."""
MAX_HOMES: Final = 20_000
MAX_OF_SESSION: Final = 16
MAX_GROUPS: Final = 64
"""Workers that serve equal sets of models form a group. Each group has its own return times."""
REFRESH_S: Final = 1.0


class WorkingSet:
    def __init__(self, workers: dict[str, WorkerState]) -> None:
        """`workers`: the fleet's workers by id. The dict changes as workers come and go."""
        self._workers = workers
        self._homes: OrderedDict[int, str] = OrderedDict()
        self._sessions: OrderedDict[int, list[int]] = OrderedDict()  # each session's conversations
        self._times: OrderedDict[frozenset[str], list[ReturnTimes]] = OrderedDict()
        self._ends: dict[int, int] = {}  # idle conversation -> how its last turn ended
        self._home_shares: Division[int, str] = Division()
        self._session_shares: Division[int, list[int]] = Division()
        self._refresh_at_s = 0.0
        self._tenants: dict[str, tuple[frozenset[str], int]] = {}  # by model, until the next refresh
        self.turns_of_open: dict[int, int] = {}
        """Conversation that is open on a WebSocket of this process -> how many of its turns were sent."""

    # What happens to turns

    def arrived(self, lineage: int, now_s: float) -> None:
        """A turn has arrived: its conversation has come back, wherever the turn goes. A second call has no effect."""
        worker = self._workers.get(self._homes.get(lineage, ""))
        if worker is not None:
            self._came_back(worker, lineage, now_s)

    def sent(self, ticket: Ticket, expects: int = UNKNOWN, session: int | None = None) -> None:
        """A turn was sent to a worker, by this router or by a peer process. `expects`: how the turn will probably end.
        `session`: None if unknown.
        """
        lineage, worker = ticket.lineage, ticket.cache_worker
        if lineage in self.turns_of_open:
            self.turns_of_open[lineage] += 1
        tenant = ticket.tenant
        self.belongs(lineage, session, tenant)
        if worker.worker is None:
            return
        home_id = self._homes.get(lineage, "")
        home = self._workers.get(home_id)
        if home is not None:
            if lineage in self._ends:  # `arrived` was not called: the turn arrived at a peer process
                self._came_back(home, lineage, ticket.sent_s)
            if home is not worker and home_id != worker.id:
                home.load.residents.drop(lineage)
        self._homes[lineage] = worker.id
        if tenant:
            self._home_shares.owners[lineage] = tenant
        homes = len(self._homes)
        if homes > MAX_HOMES // 2:  # with fewer homes, none is forgotten soon
            self._home_shares.stored(lineage, self._homes)
            if homes > MAX_HOMES:
                self._forget_home(self._home_shares.next_to_go(), ticket.sent_s)
        worker.load.residents.sent(lineage, ticket.own_tokens, expects, tenant)

    def ended(self, ticket: Ticket, now_s: float) -> None:
        worker = ticket.cache_worker
        if worker.worker is None:
            return
        residents, lineage = worker.load.residents, ticket.lineage
        kind = residents.expected(lineage)
        if residents.ended(lineage, now_s, computed=ticket.computed) and kind != OVER:
            self._times_of(worker)[kind].ended(lineage, now_s)
            self._ends[lineage] = kind

    def _forget_home(self, lineage: int, now_s: float) -> None:
        """Forget the home of a conversation, and stop waiting for its return."""
        worker, kind = self._workers.get(self._homes.pop(lineage)), self._ends.pop(lineage, None)
        self._home_shares.discard(lineage)
        if worker is not None and kind is not None:
            self._times_of(worker)[kind].left(lineage, now_s)

    def belongs(self, lineage: int, session: int | None, tenant: str) -> None:
        """Record that a conversation belongs to a session. `session`: None if the client did not name a session."""
        if session is None:
            return
        lineages = self._sessions.get(session)
        if lineages is None:
            lineages = self._sessions[session] = [lineage]
            if tenant:
                self._session_shares.owners[session] = tenant
        if lineages[-1] != lineage:
            if lineage in lineages:
                lineages.remove(lineage)
            lineages.append(lineage)
            del lineages[:-MAX_OF_SESSION]
        sessions = len(self._sessions)
        if sessions > MAX_HOMES // 2:
            self._session_shares.stored(session, self._sessions)
            if sessions > MAX_HOMES:
                gone = self._session_shares.next_to_go()
                self._session_shares.discard(gone)
                del self._sessions[gone]

    def observe_session(self, session: int, kind: int, now_s: float) -> None:
        """A client says that its session waits for a PERSON, or is OVER. Other kinds and unknown sessions are ignored.
        `session`: the key of a session, or that of a single conversation.
        """
        if kind not in (PERSON, OVER):
            return
        for lineage in self._sessions.get(session, (session,)):
            worker = self._workers.get(self._homes.get(lineage, ""))
            if worker is None or not worker.load.residents.set_kind(lineage, kind, now_s):
                continue
            times, before = self._times_of(worker), self._ends.pop(lineage, None)
            if before is not None:
                times[before].left(lineage, now_s)
                if kind != OVER:
                    times[kind].ended(lineage, now_s)
                    self._ends[lineage] = kind

    def expect(self, ticket: Ticket, kind: int) -> None:
        """Record how a turn under way is expected to end (`return_times.TOOLS` and others)."""
        ticket.cache_worker.load.residents.expect(ticket.lineage, kind)

    def expected(self, ticket: Ticket) -> int:
        """How a turn under way is expected to end."""
        return ticket.cache_worker.load.residents.expected(ticket.lineage)

    # What may be sent

    def holds_kv(self, session: int) -> bool:
        """Whether some conversation of a session holds at least `SMALL_TOKENS` at its home."""
        return any(self.held_by(lineage) >= SMALL_TOKENS for lineage in self._sessions.get(session, ()))

    def knows(self, lineage: int) -> bool:
        return lineage in self._homes

    def memory_for(self, routing: RoutingRequest, decision: Decision, now_s: float) -> int:
        """FREE, FITS or LACKS for a turn, if it goes to the worker of its decision."""
        uncached = decision.prompt_tokens_est - decision.predicted_cached_tokens
        if uncached < SMALL_TOKENS or 2 * uncached < decision.prompt_tokens_est:
            return FREE
        worker = self._workers.get(decision.cache_worker)
        if worker is None or worker.worker is None or worker.tiered:
            return FREE
        residents, lineage = worker.load.residents, routing.lineage
        if not residents.pool_tokens:
            return FREE
        self.refresh(now_s)
        need = need_tokens(routing, decision)
        if 2 * residents.tokens_of(lineage) >= need:
            return FREE
        return FITS if need <= residents.free_tokens(lineage, now_s) else LACKS

    def touch(self, lineage: int, now_s: float) -> None:
        """A turn waits to be sent: protect what its conversation holds at its home from eviction."""
        worker = self._workers.get(self._homes.get(lineage, ""))
        if worker is not None:
            worker.load.residents.touch(lineage, now_s)

    def emptiest(self, model: str, excluded: frozenset[str], now_s: float) -> str:
        """The id of the usable worker with the most free memory; empty without a usable worker."""
        most, found = -NO_LIMIT, ""
        for worker in self._workers.values():
            if not worker.caches_prompts or worker.id in excluded or not worker.target.serves(model):
                continue
            free = worker.load.residents.free_tokens(0, now_s)
            if free > most and worker.load.availability.is_usable(now_s):
                most, found = free, worker.id
        return found

    def resident_at(self, lineage: int, need: int) -> str:
        """The id of the conversation's home if it holds at least half of the `need` tokens of a turn, else empty."""
        home_id = self._homes.get(lineage, "")
        worker = self._workers.get(home_id)
        if worker is None or 2 * worker.load.residents.tokens_of(lineage) < need:
            return ""
        return home_id

    def held_by(self, lineage: int) -> int:
        worker = self._workers.get(self._homes.get(lineage, ""))
        return 0 if worker is None else worker.load.residents.tokens_of(lineage)

    def others_than(self, worker_id: str) -> frozenset[str]:
        """The ids of all other workers that cache prompts, and of all peer regions."""
        return frozenset([each.id for each in self._workers.values() if each.id != worker_id and each.role != "decode"])

    def lacking(self, model: str, lineage: int, need: int, now_s: float) -> frozenset[str]:
        """The ids of the workers of a model that have no room for `need` more tokens of a conversation."""
        self.refresh(now_s)
        found: list[str] = []
        for worker in self._workers.values():
            if not worker.caches_prompts or worker.tiered or not worker.target.serves(model):
                continue
            if need > worker.load.residents.free_tokens(lineage, now_s):
                found.append(worker.id)
        return frozenset(found)

    def most_free(self, model: str, now_s: float, taken: Collection[str] = ()) -> int:
        """The maximum number of tokens that a new conversation may take at a usable worker with a free slot. Workers in
        `taken` are left out.
        """
        self.refresh(now_s)
        most = 0
        for worker in self._workers.values():
            if worker.id in taken or not worker.caches_prompts or not worker.load.has_slots():
                continue
            if worker.target.serves(model) and worker.load.availability.is_usable(now_s):
                free = NO_LIMIT if worker.tiered else worker.load.residents.free_tokens(0, now_s)
                most = max(most, free)
        return most

    def held_by_tenant(self, model: str, tenant: str) -> int:
        return sum(worker.load.residents.of_tenants.get(tenant, 0) for worker in self._bounded(model))

    def tenants(self, model: str, now_s: float) -> tuple[frozenset[str], int]:
        """The tenants with protected tokens at workers of a model, and the sum of the pools; cached for `REFRESH_S`."""
        self.refresh(now_s)
        found = self._tenants.get(model)
        if found is None:
            books = [worker.load.residents for worker in self._bounded(model)]
            names = frozenset([tenant for each in books for tenant in each.of_tenants])
            found = self._tenants[model] = names, sum([each.pool_tokens for each in books])
        return found

    def speed_and_pool(self) -> tuple[float, float]:
        """The tokens that all workers together compute in a second, and the mean size of the reported pools."""
        loads = [
            worker.load for worker in self._workers.values() if worker.caches_prompts and worker.worker is not None
        ]
        pools = [load.residents.pool_tokens for load in loads if load.residents.pool_tokens]
        return sum(1.0 / load.prefill_s_per_token for load in loads), sum(pools) / (len(pools) or 1)

    def _bounded(self, model: str) -> list[WorkerState]:
        """The workers of a model that have only their pool as KV memory, without a second tier."""
        return [
            worker
            for worker in self._workers.values()
            if worker.caches_prompts and not worker.tiered and worker.target.serves(model)
        ]

    def refresh(self, now_s: float) -> None:
        """Set the workers' windows from the learned return times, at most once in `REFRESH_S`."""
        if now_s < self._refresh_at_s:
            return
        self._refresh_at_s = now_s + REFRESH_S
        self._tenants.clear()
        for group in self._times.values():
            for times in group:
                times.advance(now_s)
        for worker in self._workers.values():
            residents = worker.load.residents
            residents.times = None  # the models of the worker may have changed
            if residents.pool_tokens:
                rate_per_pool = 1.0 / (worker.load.prefill_s_per_token * residents.pool_tokens)
                unknown, *others = self._times_of(worker)
                window_s = unknown.window_s(rate_per_pool, FIRST_WINDOW_S)
                residents.windows_s = [window_s, *[times.window_s(rate_per_pool, window_s) for times in others]]

    def as_dict(self, now_s: float) -> dict[str, dict[str, Any]]:
        """The figures for the status page and metrics, by worker. Workers without a known pool are left out."""
        self.refresh(now_s)
        found: dict[str, dict[str, Any]] = {}
        for worker in self._workers.values():
            residents: Residents = worker.load.residents
            if worker.caches_prompts and residents.pool_tokens:
                found[worker.id] = {
                    "resident": residents.seats,
                    "in_use": residents.in_use,
                    "tokens": residents.tokens,
                    "protected_tokens": residents.protected(now_s),
                    "pool_tokens": residents.pool_tokens,
                    "window_s": residents.window_s,
                }
        return found

    def _came_back(self, worker: WorkerState, lineage: int, now_s: float) -> None:
        kind = self._ends.pop(lineage, None)
        if kind is not None:
            self._times_of(worker)[kind].came_back(lineage, now_s)

    def _times_of(self, worker: WorkerState) -> list[ReturnTimes]:
        residents = worker.load.residents
        if residents.times is not None:
            return residents.times
        group = worker.target.models
        times = self._times.get(group)
        if times is None:
            times = self._times[group] = [ReturnTimes() for _ in range(KINDS)]
            if len(self._times) > MAX_GROUPS:
                self._times.popitem(last=False)
        residents.times = times
        return times


def need_tokens(routing: RoutingRequest, decision: Decision) -> int:
    """How many tokens of a pool a turn takes: the tokens of its prompt that no other conversation shares."""
    tokens = decision.prompt_tokens_est
    if not decision.shared_bytes:
        return tokens
    return max(0, tokens - decision.shared_bytes * tokens // (routing.chain.total_bytes or 1))
