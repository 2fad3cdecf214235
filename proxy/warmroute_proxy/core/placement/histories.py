"""Where conversations left their histories, to detect those that a cache has evicted since (`cache.retention`).

What a turn under way uses is not evicted. Nothing is stored before an engine has been found to evict, so that a fleet
whose caches are large enough pays nothing for this. Limit: `MAX_ENTRIES` lineages; the one that was used least lately
is dropped first, and then counts as cached.
"""

import math
from typing import Final, NamedTuple

from warmroute_proxy.core.cache.retention import MIN_TOKENS
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.ticket import Ticket

MAX_ENTRIES: Final = 20_000


class _LastUse(NamedTuple):
    """The worker that has a history; the tokens that its cache had used when the last turn ended, less those in use
    then (infinite while a turn is under way); the number of the turn under way, 0 for none.
    """

    worker: WorkerState
    used_tokens: float
    turn: int


class Histories:
    """The last use of each lineage's history."""

    __slots__ = ("_last_use", "_max_entries", "_turns", "active")

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._last_use: dict[int, _LastUse] = {}  # by lineage
        self._turns = 0
        self.active = False
        """Whether an engine has been found to evict."""

    def evicted_from(self, lineage: int) -> WorkerState | None:
        """The worker that had the history of a lineage, if it has been evicted there."""
        last_use = self._last_use.get(lineage)
        if last_use is None:
            return None
        retention = last_use.worker.load.retention
        distance = retention.used_tokens - last_use.used_tokens
        return last_use.worker if distance > retention.kept_tokens else None

    def begin(self, lineage: int, ticket: Ticket) -> None:
        """A turn was sent, and uses what it finds."""
        last_use = self._last_use.get(lineage)
        self._turns += 1
        ticket.turn = self._turns
        self._store(lineage, _LastUse(ticket.cache_worker, math.inf, ticket.turn))
        if last_use is not None and last_use.worker is ticket.cache_worker and last_use.used_tokens != math.inf:
            retention = ticket.cache_worker.load.retention
            ticket.distance = retention.used_tokens - last_use.used_tokens
            retention.used_again(ticket.decision.predicted_cached_tokens, ticket.distance)

    def end(self, lineage: int, ticket: Ticket, completion_tokens: int | None) -> None:
        """A turn has ended, and its load has been removed."""
        cache_worker = ticket.cache_worker
        load = cache_worker.load
        if ticket.decode_worker is None or cache_worker.tiered or load.retention.has_events:
            return
        last_use = self._last_use.get(lineage)
        if last_use is not None and last_use.turn and last_use.turn != ticket.turn:
            return  # a later one is under way
        if ticket.decode_worker is cache_worker:
            load.retention.used_tokens += completion_tokens or 0
        in_use = max(0, load.resident_tokens - load.prefills.tokens)
        self._store(lineage, _LastUse(cache_worker, load.retention.used_tokens - in_use, 0))

    def observe(self, ticket: Ticket, cached_tokens: int) -> bool:
        """Apply what was reported as cached. True if it shows something of how long the cache keeps histories."""
        retention = ticket.cache_worker.load.retention
        missed = ticket.decision.predicted_cached_tokens - cached_tokens >= MIN_TOKENS
        if missed and ticket.decode_worker is not None and not ticket.cache_worker.tiered:
            self.active = self.active or not retention.has_events
        if cached_tokens:
            retention.reports = True
        return ticket.distance > 0 and (missed or ticket.distance > retention.kept_tokens)

    def _store(self, lineage: int, last_use: _LastUse) -> None:
        self._last_use.pop(lineage, None)
        if len(self._last_use) >= self._max_entries:
            del self._last_use[next(iter(self._last_use))]
        self._last_use[lineage] = last_use
