"""Applies dispatched attempts to the fleet: adds them to loads, caches and traffic, and removes them at their end.

Attempts of this process and of its peer processes go through the same calls, so the state of the fleet does not depend
on which process sent an attempt.
"""

from collections.abc import Collection

from warmroute_proxy.core.cache.index import MAX_CUTS
from warmroute_proxy.core.load.load import WorkerLoad
from warmroute_proxy.core.placement.fleet_state import Fleet
from warmroute_proxy.core.placement.histories import Histories
from warmroute_proxy.core.placement.ticket import Ticket


class InFlight:
    """The attempts under way on one fleet. Each has a ticket, which ends by one call of `end`, `fail` or `drop`."""

    def __init__(self, fleet: Fleet, histories: Histories) -> None:
        self._fleet = fleet
        self._histories = histories

    def begin(self, ticket: Ticket, begins: bool, cached_share: float, now_s: float) -> None:
        """An attempt was sent: its prompt counts as cached from now on, and the attempt counts as load until it ends.

        `begins`: whether a conversation begins with it. `cached_share`: the share of the prompt that was cached there
        before.
        """
        fleet = self._fleet
        fleet.level_rates()
        index, traffic = fleet.index, fleet.traffic
        cache_worker, decode_worker = ticket.cache_worker, ticket.decode_worker
        load = cache_worker.load
        ticket.sent_s = now_s
        ticket.removals = index.removals
        cached_cuts = 0 if cache_worker.tiered else ticket.from_cut
        index.insert(ticket.chain.hashes, 1 << cache_worker.slot, begins=begins, cached=cached_cuts)
        if now_s >= traffic.renew_at_s:
            fleet.renew_weights(now_s)
        uncached = ticket.uncached
        weight = traffic.sent(cached_share, uncached * load.prefill_s_per_token, now_s)
        load.inserted += uncached * weight * load.fills_sooner
        if not load.availability.ready:
            load.availability.breaker.sent(ticket, now_s)
        if decode_worker is cache_worker:
            load.prefill_begins(ticket, uncached, now_s, ticket.resident, ticket.sequences, ticket.moving_tokens)
            return
        load.prefill_begins(ticket, uncached, now_s, 0, ticket.sequences, ticket.moving_tokens)
        if decode_worker is not None:
            decode_worker.load.add_running(ticket.sequences, ticket.resident)
            decode_worker.load.availability.breaker.sent(ticket, now_s)

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        if ticket.computed or not ticket.open:
            return
        fleet = self._fleet
        fleet.level_rates()
        ticket.computed = True
        cache_worker, decode_worker = ticket.cache_worker, ticket.decode_worker
        load = cache_worker.load
        load.prefill_ended(ticket, now_s)
        self._histories.computed(ticket)
        if load.shown_tokens is not None:
            load.computed(ticket.uncached)
        if decode_worker is not None:
            if decode_worker is not cache_worker:
                load.add_running(-ticket.sequences, 0)
                load.departures.observe(now_s - ticket.sent_s, now_s)
                load = decode_worker.load
            ticket.first_s = now_s
            ticket.prefilling_s = load.prefills.busy_s(now_s)
            ticket.slowdown_s = load.slowdown_s() - load.slower_s
        # Insert the prompt again: the index entries made at dispatch may have been removed since. If the worker has
        # several tiers, those entries named only the device.
        if (ticket.removals != fleet.index.removals or cache_worker.tiered) and fleet.has_same_cache(cache_worker):
            fleet.index.insert(ticket.chain.hashes, cache_worker.slots)

    def progress(self, ticket: Ticket, completion_tokens: int) -> None:
        if ticket.decode_worker is not None and ticket.open:
            resident = ticket.prompt_tokens + completion_tokens
            ticket.decode_worker.load.add_running(0, resident - ticket.resident)
            ticket.resident = resident

    def end(self, ticket: Ticket, now_s: float, streamed_tokens: int | None) -> None:
        if not ticket.computed:
            self.first_token(ticket, now_s)
        cache_worker, decode_worker = ticket.cache_worker, ticket.decode_worker
        if streamed_tokens is not None and decode_worker is not None:
            self._observe_pace(ticket, decode_worker.load, streamed_tokens, now_s)
        ticket.close(now_s)
        self._fleet.working_set.ended(ticket, now_s)
        cache_worker.load.availability.succeeded()
        if decode_worker is not cache_worker and decode_worker is not None:
            decode_worker.load.availability.succeeded()

    def fail(self, ticket: Ticket, now_s: float, at_fault: Collection[str]) -> None:
        """An attempt failed. `at_fault`: the ids of workers (or `region:<name>`) at fault; empty if the client left."""
        self._close(ticket, now_s)
        fleet = self._fleet
        if not ticket.computed and fleet.has_same_cache(ticket.cache_worker):
            fleet.index.forget(ticket.chain.hashes[ticket.from_cut : MAX_CUTS], 1 << ticket.cache_worker.slot)
        for id_ in at_fault:
            worker = fleet.workers.get(id_)
            if worker is not None:
                worker.load.availability.failed(ticket, now_s)
        self._end_trials(ticket)

    def drop(self, ticket: Ticket, now_s: float) -> None:
        """Remove the load of an attempt whose outcome is unknown."""
        self._close(ticket, now_s)
        self._end_trials(ticket)

    def _close(self, ticket: Ticket, now_s: float) -> None:
        ticket.close(now_s)
        self._fleet.working_set.ended(ticket, now_s)
        self._histories.release(ticket)
        self._histories.advance(ticket.cache_worker)

    def _end_trials(self, ticket: Ticket) -> None:
        for worker in ticket.workers():
            worker.load.availability.breaker.ended(ticket)

    def _observe_pace(self, ticket: Ticket, load: WorkerLoad, tokens: int, now_s: float) -> None:
        prefilling_s = load.prefills.busy_s(now_s) - ticket.prefilling_s
        slowdown_s = load.slowdown_s() - load.slower_s
        if slowdown_s < ticket.slowdown_s:  # noqa: PLR1730 - max() takes three times as long
            slowdown_s = ticket.slowdown_s
        stream_s = now_s - ticket.first_s
        if load.pace.observe(tokens - 1, stream_s, prefilling_s, slowdown_s, now_s):
            self._fleet.compare_paces(now_s)
