"""Follows which conversations' histories (their cached text) a worker must have evicted (`cache.occupancy`).

An evicted history is taken out of the prefix index only if its conversation comes back, because few come back.

A turn that waits in an engine does not evict anything. Its prompt does not count as using the cache until it is the
oldest in its worker's prefill queue, because the engine begins to compute it then. But the cached part of the turn's
history counts as in use, and so is not evicted, from dispatch on. A prefill worker uses a history until it hands the KV
over.

Limit: `MAX_ENTRIES` lineages with an evicted history, divided by tenant (`warmroute.contract.shares`). The tenant that
has most loses its oldest entry first; the history of that entry then counts as cached.
"""

from bisect import bisect_left
from typing import Final

from warmroute.contract.shares import Division
from warmroute_proxy.core.cache.occupancy import MIN_SHARE, MIN_TOKENS, Evicted, History
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.ticket import Ticket

MAX_ENTRIES: Final = 20_000
_NOTHING: Final[dict[WorkerState, int]] = {}


class Histories:
    __slots__ = ("_division", "_max_entries", "gone")

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._division: Division[int, dict[WorkerState, int]] = Division()
        self.gone: dict[int, dict[WorkerState, int]] = {}  # lineage -> worker that evicted -> tokens left

    def evicted_from(self, lineage: int) -> dict[WorkerState, int]:
        """The workers that have evicted some of a lineage's history since the last call, with the tokens left."""
        found = self.gone.pop(lineage, None)
        if found is None:
            return _NOTHING
        self._division.discard(lineage)
        return found

    def dispatched(self, lineage: int, ticket: Ticket) -> None:
        ticket.lineage = lineage
        worker = ticket.cache_worker
        if _is_followed(ticket, worker):
            self._keep(ticket, worker.load.occupancy.history(lineage))
        self.advance(worker)

    def advance(self, worker: WorkerState) -> None:
        """The prefill queue of a worker has changed: its oldest prompt now counts as being computed."""
        oldest = worker.load.prefills.oldest
        if isinstance(oldest, Ticket) and not oldest.at_work:
            self._begin(oldest)

    def computed(self, ticket: Ticket) -> None:
        if not ticket.at_work:
            self._begin(ticket)
        worker = ticket.cache_worker
        if ticket.history is not None and ticket.decode_worker is not worker:
            self.release(ticket)
            ticket.handed_over = True
            worker.load.occupancy.use(ticket.lineage, ticket.own_tokens, ticket.tenant)
        self.advance(worker)

    def _begin(self, ticket: Ticket) -> None:
        ticket.used_before = 0
        worker, lineage = ticket.cache_worker, ticket.lineage
        if not _is_followed(ticket, worker):
            return
        occupancy = worker.load.occupancy
        if shared_tokens := ticket.shared_tokens(ticket.prompt_tokens):
            chain = ticket.chain
            at = bisect_left(chain.ends, ticket.shared_bytes)
            occupancy.share(chain.hashes[min(at, len(chain.hashes) - 1)], shared_tokens)
        ticket.used_before = occupancy.last_use(lineage)
        self._keep(ticket, occupancy.use(lineage, ticket.own_tokens, ticket.tenant))
        self.is_there(lineage, worker)
        if occupancy.is_overfull():
            self._note(occupancy.evicted(), worker)

    def _keep(self, ticket: Ticket, history: History | None) -> None:
        """Mark a history as in use by a turn, until `release`."""
        if history is not None:
            history.turns += 1
        self.release(ticket)
        ticket.history = history

    def end(self, lineage: int, ticket: Ticket, own_tokens: int) -> None:
        """A turn has ended, and left `own_tokens` in the cache of its worker."""
        self.release(ticket)
        worker = ticket.cache_worker
        worker.load.residents.resize(lineage, own_tokens)
        if not _is_followed(ticket, worker):
            return
        occupancy = worker.load.occupancy
        if ticket.handed_over:
            occupancy.resize(lineage, own_tokens)
            return
        occupancy.use(lineage, own_tokens, ticket.tenant)
        self.is_there(lineage, worker)
        if occupancy.is_overfull():
            self._note(occupancy.evicted(), worker)

    def release(self, ticket: Ticket) -> None:
        history, ticket.history = ticket.history, None
        if history is not None:
            history.turns -= 1

    def observe(self, ticket: Ticket, prompt_tokens: int, cached_tokens: int, shared_tokens: int) -> None:
        worker = ticket.cache_worker
        occupancy = worker.load.occupancy
        occupancy.reports = occupancy.reports or cached_tokens > 0
        if not _is_followed(ticket, worker) or not occupancy.reports:
            return
        expected = ticket.prompt_tokens - ticket.uncached - shared_tokens
        found = cached_tokens - shared_tokens
        least = max(MIN_TOKENS, MIN_SHARE * prompt_tokens)
        if expected >= least and 2 * found < expected and ticket.used_before > 0:
            self._note(occupancy.missed(ticket.lineage, ticket.used_before), worker)
        elif found - max(0, expected) >= least:
            occupancy.found()

    def _note(self, evicted: list[Evicted], worker: WorkerState) -> None:
        gone, division = self.gone, self._division
        for lineage, left, tenant in evicted:
            if lineage not in gone:
                gone[lineage] = {}
                if tenant:
                    division.owners[lineage] = tenant
                if division.begun or 2 * len(gone) > self._max_entries:
                    division.stored(lineage, gone)
            gone[lineage][worker] = left
        while len(gone) > self._max_entries:
            first = division.next_to_go()
            del gone[first]
            division.discard(first)

    def is_there(self, lineage: int, worker: WorkerState) -> None:
        """Forget a worker's eviction of a lineage's history: the history is there again, or the index knows of the
        eviction.
        """
        elsewhere = self.gone.get(lineage)
        if elsewhere is not None and elsewhere.pop(worker, None) is not None and not elsewhere:
            del self.gone[lineage]
            self._division.discard(lineage)


def _is_followed(ticket: Ticket, worker: WorkerState) -> bool:
    """Whether a worker's evictions have to be guessed: it is in this region, and has only one tier and no KV events."""
    return ticket.decode_worker is not None and not worker.tiered and not worker.load.occupancy.has_events
