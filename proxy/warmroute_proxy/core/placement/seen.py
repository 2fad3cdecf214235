"""Collects why a turn may have found less cached than expected: evictions, and prompts that were still being computed.

The router counts a prompt as cached as soon as it is sent, but an engine can reuse the prompt only after it is
computed. If several prompts with a common beginning are sent at once, for example by parallel sub-agents, each of them
may have to compute this beginning. So a request's ticket keeps the chains (prefix hashes) of the prompts that were
under way at its worker when the request was sent. If another worker was expected to hold more of the prompt, the ticket
also keeps the chains that were under way at the other workers of the region.

Limit: the newest `MAX_BEHIND` prompts of the ticket's worker, and `MAX_BEHIND` prompts of all other workers together.
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
    """The prompts that the chosen worker still computes; also those of all others, if one was expected to hold more."""
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
    """What was seen so far that may explain missing cache hits. `prompt_tokens`: as the engine counted them."""
    here = ticket.cache_worker
    own = here.load.must_have_evicted()
    # An engine with KV events reports what it evicts. So if nothing was removed since dispatch, the prefix is still
    # there.
    is_there = here.load.occupancy.has_events and ticket.removals == fleet.index.removals
    evicted = own or any(worker.caches_prompts and worker.load.must_have_evicted() for worker in fleet.workers.values())
    shared = max((_common(ticket.chain, chain) for chain in ticket.behind), default=0)
    total = ticket.chain.total_bytes
    waiting = shared * prompt_tokens // total if total else 0
    return Seen(own and not is_there, evicted, waiting=waiting)


def _chains(worker: WorkerState) -> list[Chain]:
    return [each.chain for each in worker.load.prefills.newest(MAX_BEHIND) if isinstance(each, Ticket)]


def _common(one: Chain, other: Chain) -> int:
    """The length of two prompts' common beginning, in bytes. If a hash is equal, all text before its cut is equal,
    too.
    """
    low, high = 0, min(len(one.hashes), len(other.hashes))
    while low < high:
        middle = (low + high + 1) // 2
        if one.hashes[middle - 1] == other.hashes[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return one.ends[low - 1] if low else 0
