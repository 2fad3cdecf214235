"""Computes the cost of placing one prompt at each worker and each peer region, in seconds.

    cost = network + queue + compute + load + decode_slowdown * expected_output + transfer + others + reuse + churn

The first six terms are the request's own time. `network` is the round trip to a peer region. `queue` is the prefill
ahead of the request. `compute` is the prefill of the tokens that the index does not predict to be cached in any tier of
the worker. `load` is the time to bring cached tokens to the device (`cache.tiers`), `transfer` the time to send KV from
a prefill to a decode worker. The last three terms are what the placement costs all other requests (`prices`). `others`
is proportional to `queue`, and is computed together with it.

All prefill workers are priced with the same decode worker: the one that is slowed least. An aggregated worker has both
roles and needs no transfer. A peer region's queue consists of the requests that this proxy has forwarded there and that
are not answered yet; its prefill rate is assumed to be like that of this region.

Workers that have an equal part of the prompt cached, and an equal rate, form a `Group`: they differ only by what is
ahead of a new request there. All other terms are computed once for the group.
"""

from collections.abc import Sequence
from typing import Final

from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.cache.tiers import NOTHING_HELD, Held
from warmroute_proxy.core.load.ahead import Ahead, waits_s
from warmroute_proxy.core.placement.choices import Choices, WorkerState
from warmroute_proxy.core.placement.decision import Candidate
from warmroute_proxy.core.placement.fleet import Peer
from warmroute_proxy.core.placement.homes import Home
from warmroute_proxy.core.placement.matched_prompt import MatchedPrompt
from warmroute_proxy.core.placement.prices import PromptPrices

TRANSFER_S_PER_TOKEN: Final = 2e-7
"""KV from prefill to decode: 70 KB a token (MLA) over eight 400 Gb/s links."""


class Group(Frozen, frozen=True):
    """Workers that differ only by what is ahead of a new request there, and the terms that they share.

    `numbers`: their positions among the cache workers. `others_s_per_queue_s`: what each second of queue costs other
    requests. `idle_s`: the cost while nothing is ahead, which is the least that any of these workers can cost.
    """

    numbers: tuple[int, ...]
    idle_s: float
    compute_s: float
    load_s: float
    transfer_s: float
    reuse_s: float
    others_s_per_queue_s: float
    uncached_tokens: int
    matched_bytes: int
    held: Held


class PeerCost(Frozen, frozen=True):
    """A peer region, how much of the prompt is cached there, and the cost of placing the prompt there."""

    peer: WorkerState
    matched_bytes: int
    held: Held
    candidate: Candidate


def costs_s(
    group: Group, ahead: Sequence[Ahead], output_tokens: int, churn_s_per_inserted: float, now_s: float
) -> list[float]:
    """The cost at each worker of a group, in the order of its numbers. `network` is 0 for workers of this region.

    A new term also belongs in `peer_costs`, in `candidates` and `own_s` (`placement`), and in `receipt_words.TERMS`.
    """
    idle_s, uncached_tokens = group.idle_s, group.uncached_tokens
    queue_and_others = 1.0 + group.others_s_per_queue_s
    found: list[float] = []
    for number in group.numbers:
        here = ahead[number]
        queue_s, slowdown_s = 0.0, here.slowdown_s
        if here.waits:
            queue_s, slowdown_s = waits_s(here, now_s)
        found.append(
            idle_s  # compute + load + transfer + reuse
            + queue_s * queue_and_others
            + slowdown_s * output_tokens
            + churn_s_per_inserted * here.inserted * uncached_tokens
        )
    return found


def groups_of(choices: Choices, prompt: MatchedPrompt, prices: PromptPrices) -> list[Group]:
    """All cache workers, in groups. For `plain` choices, the groups with the longest cached prefix come first."""
    if choices.plain:
        return _groups_by_match(choices, prompt, prices)
    return _groups_of_one(choices.cache_workers, prompt, prices)


def _groups_by_match(choices: Choices, prompt: MatchedPrompt, prices: PromptPrices) -> list[Group]:
    """Group the workers of `plain` choices, which differ only by cached length, if nothing is ahead of a request."""
    groups: list[Group] = []
    s_per_token, other_slots = choices.s_per_token, choices.mask
    for mask, matched in reversed(prompt.match.drops):
        other_slots &= ~mask
        numbers = choices.numbers_of(mask)
        if numbers:
            held = Held(prompt.tokens_of(matched), 0, 0)
            groups.append(_group(numbers, prompt, prices, s_per_token, matched, held))
    numbers = choices.numbers_of(other_slots) if other_slots else ()
    if numbers:
        groups.append(_group(numbers, prompt, prices, s_per_token, 0, NOTHING_HELD))
    return groups


def _groups_of_one(cache_workers: Sequence[WorkerState], prompt: MatchedPrompt, prices: PromptPrices) -> list[Group]:
    """Make a group for each worker, whatever its role, rate and tiers."""
    bytes_by_slot = prompt.match.bytes_by_slot
    groups: list[Group] = []
    for number, worker in enumerate(cache_workers):
        load = worker.load
        matched, held = prompt.held(worker, bytes_by_slot)
        transfer_s = prompt.tokens * TRANSFER_S_PER_TOKEN if worker.role == "prefill" else 0.0
        load_s, s_per_token = load.moves.seconds(held), load.prefill_s_per_token
        groups.append(_group((number,), prompt, prices, s_per_token, matched, held, load_s, transfer_s))
    return groups


def _group(
    numbers: tuple[int, ...],
    prompt: MatchedPrompt,
    prices: PromptPrices,
    s_per_token: float,
    matched: int,
    held: Held,
    load_s: float = 0.0,
    transfer_s: float = 0.0,
) -> Group:
    device, host, storage = held
    uncached = prompt.tokens - (device + host + storage)
    compute_s = uncached * s_per_token
    reuse_s = prices.reuse_s(matched) if matched < prices.best_bytes else 0.0
    idle_s = compute_s + load_s + transfer_s + reuse_s
    others_s_per_queue_s = prices.delayed_per_s * compute_s
    return Group(numbers, idle_s, compute_s, load_s, transfer_s, reuse_s, others_s_per_queue_s, uncached, matched, held)


def peer_costs(
    choices: Choices, prompt: MatchedPrompt, prices: PromptPrices, churn: float, home: Home | None, now_s: float
) -> list[PeerCost]:
    """The cost of each peer region.

    `churn`: what a token of a new conversation costs at a peer; 0 for a known conversation. The home region has no
    churn, because it is better to keep a session's cache together than to balance caches.
    """
    found: list[PeerCost] = []
    bytes_by_slot = prompt.match.bytes_by_slot
    for state in choices.peers:
        peer, queue_s = state.target, state.load.queue_s(now_s)
        assert isinstance(peer, Peer)
        matched = bytes_by_slot.get(state.slot, 0)
        network_s, note = peer.rtt_s, ""
        is_home = home is not None and peer.region == home.region
        if home is not None and is_home:
            network_s, note = 0.0, "home"
            matched = max(matched, home.held_bytes)
        cached = prompt.tokens_of(matched)
        uncached = prompt.tokens - cached
        compute_s = uncached * prices.s_per_token
        others_s = prices.delayed_per_s * queue_s * compute_s
        reuse_s = prices.reuse_s(matched)
        churn_s = 0.0 if is_home else churn * uncached
        peer_cost_s = network_s + queue_s + compute_s + others_s + reuse_s + churn_s
        candidate = Candidate(
            state.id, peer_cost_s, network_s, queue_s, compute_s, 0.0, 0.0, 0.0, others_s, reuse_s, churn_s, uncached,
            0, 0, note,
        )  # fmt: skip
        found.append(PeerCost(state, matched, Held(cached, 0, 0), candidate))
    return found
