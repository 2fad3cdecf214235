"""Where conversations left their histories, so that those which a cache has dropped are known (`retention`).

What a turn under way uses is not evicted. Nothing is kept before an engine has been found to evict, so that a fleet
whose caches are large enough pays for none of this. Limit: `MAX_ENTRIES` lineages; the one that was used least lately
goes first, and counts as held then.
"""

import math
from typing import Final

from warmroute_proxy.core.cache.retention import MIN_TOKENS
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.ticket import Ticket

MAX_ENTRIES: Final = 20_000

_Left = tuple[WorkerState, float, int]
"""The place; what its cache had used, less what was in use then; the number of the turn under way, 0 for none."""


class Histories:
    """By lineage: the place, and what its cache had used when the last turn ended, less what was in use then."""

    __slots__ = ("_left", "_max_entries", "_turns", "active")

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._left: dict[int, _Left] = {}
        self._turns = 0
        self.active = False
        """Whether an engine has been found to evict."""

    def gone_from(self, lineage: int) -> WorkerState | None:
        """The place that had the history of a lineage, if it has been evicted there."""
        left = self._left.get(lineage)
        if left is None:
            return None
        retention = left[0].load.retention
        return left[0] if retention.used_tokens - left[1] > retention.kept_tokens else None

    def begin(self, lineage: int, ticket: Ticket) -> None:
        """A turn was sent, and uses what it finds."""
        left = self._left.get(lineage)
        self._turns += 1
        ticket.turn = self._turns
        self._put(lineage, (ticket.cache_worker, math.inf, ticket.turn))
        if left is not None and left[0] is ticket.cache_worker and left[1] != math.inf:
            retention = ticket.cache_worker.load.retention
            ticket.distance = retention.used_tokens - left[1]
            retention.used_again(ticket.decision.predicted_cached_tokens, ticket.distance)

    def end(self, lineage: int, ticket: Ticket, completion_tokens: int | None) -> None:
        """A turn has ended, and is load no more."""
        cache_worker = ticket.cache_worker
        load = cache_worker.load
        if ticket.decode_worker is None or cache_worker.tiered or load.retention.told:
            return
        left = self._left.get(lineage)
        if left is not None and left[2] and left[2] != ticket.turn:
            return  # a later one is under way
        if ticket.decode_worker is cache_worker:
            load.retention.used_tokens += completion_tokens or 0
        in_use = max(0, load.resident_tokens - load.prefill_tokens)
        self._put(lineage, (cache_worker, load.retention.used_tokens - in_use, 0))

    def tells(self, ticket: Ticket, cached_tokens: int) -> bool:
        """Whether what was reported as cached says something of what its cache keeps."""
        retention = ticket.cache_worker.load.retention
        missed = ticket.decision.predicted_cached_tokens - cached_tokens >= MIN_TOKENS
        if missed and ticket.decode_worker is not None and not ticket.cache_worker.tiered:
            self.active = self.active or not retention.told
        if cached_tokens:
            retention.reports = True
        return ticket.distance > 0 and (missed or ticket.distance > retention.kept_tokens)

    def _put(self, lineage: int, left: _Left) -> None:
        self._left.pop(lineage, None)
        if len(self._left) >= self._max_entries:
            del self._left[next(iter(self._left))]
        self._left[lineage] = left
