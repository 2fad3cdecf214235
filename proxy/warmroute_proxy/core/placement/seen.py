"""What was seen of the caches that a turn was expected to find more in: evictions, and prompts that were under way.

A prompt counts as cached from when it is sent, and is found only once it is computed. Prompts with one beginning that
are sent at once, as by parallel sub-agents, may each compute it. So a ticket keeps the chains of those that were under
way when it was sent: at its own worker, and where another worker was expected to hold more, at those of the region.

Limit: the newest `MAX_BEHIND` prompts of a worker, and of all others together.
"""

from typing import Final

from warmroute_proxy.core.accounting.losses import Seen
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet_state import Fleet
from warmroute_proxy.core.placement.ticket import Ticket
from warmroute_proxy.core.prompt.chain import Chain

MAX_BEHIND: Final = 64


def under_way(fleet: Fleet, chosen: WorkerState, decision: Decision) -> list[Chain]:
    """The prompts whose computation has not ended: those of the chosen worker, and of others that may hold more."""
    found = _chains(chosen)
    if decision.other_worker_tokens > decision.predicted_cached_tokens:
        others: list[Chain] = []
        for worker in fleet.workers.values():
            if worker is not chosen and worker.worker is not None and worker.load.prefills.tokens:
                others += _chains(worker)
                if len(others) >= MAX_BEHIND:
                    break
        found += others[:MAX_BEHIND]
    return found


def seen_of(fleet: Fleet, ticket: Ticket, prompt_tokens: int) -> Seen:
    """What was seen until now. `prompt_tokens`: those that the engine has counted."""
    here = ticket.cache_worker
    own = here.load.must_have_evicted()
    # An engine with events says what it evicts: what the index still had there, and since then nothing was removed.
    is_there = here.load.occupancy.has_events and ticket.removals == fleet.index.removals
    evicted = own or any(worker.caches_prompts and worker.load.must_have_evicted() for worker in fleet.workers.values())
    shared = max((_common(ticket.chain, chain) for chain in ticket.behind), default=0)
    total = ticket.chain.total_bytes
    waiting = shared * prompt_tokens // total if total else 0
    return Seen(own and not is_there, evicted, waiting=waiting)


def _chains(worker: WorkerState) -> list[Chain]:
    return [each.chain for each in worker.load.prefills.newest(MAX_BEHIND) if isinstance(each, Ticket)]


def _common(one: Chain, other: Chain) -> int:
    """The bytes that two prompts have in common. A cut of a chain stands for all before it."""
    low, high = 0, min(len(one.hashes), len(other.hashes))
    while low < high:
        middle = (low + high + 1) // 2
        if one.hashes[middle - 1] == other.hashes[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return one.ends[low - 1] if low else 0
