"""Placement: one cost, in seconds, and the decision with its reasons.

For a prompt and each place that could hold its KV cache (a prefill worker, an aggregated worker, a peer region):

    cost = network + queue + compute + load + decode_slowdown * expected_output + transfer + others + reuse + churn

The first six are the request's own time. `network` is the round trip to a peer region, `queue` the prefill ahead at
that place, `compute` what the index does not predict to be cached there in any tier, `load` the time to bring cached
tokens to the device (`tiers`). A prefill worker is priced together with the decode worker that is best for all of
them: the least slowed one. Both roles of an aggregated worker are its own, and it needs no transfer. The last three
are what the placement costs everybody else (`prices`). So a warm home wins while it is idle, and a busy one loses to
an idle stranger when recomputing the prefix is cheaper for the fleet than waiting. Nothing else ties a session to a
worker.

A *home* region (the client's hint, or where its session was served) is worth one network hop, and what the previous
turn must have cached there if the index of this proxy does not know. The home of a derived session counts only where
the index knows no prefix of the prompt at all. A peer's queue is what this proxy has forwarded
and not yet seen answered; its prefill rate is taken to be like ours.

Ties are broken by rendezvous hash of (session, worker), so that replicas agree without talking.

Workers with the same part of the prompt and the same rate differ only by what they are busy with, so all other terms
are computed once for each such kind, beginning with the one that has most of the prompt. What a kind costs while
nothing is ahead is the least that any of its workers can cost: where the cheapest place so far costs less, nobody looks
at them. So a known conversation is placed without a look at most of the fleet. What each place would have cost is
computed when somebody asks for reasons, from what lay there when it was decided.
"""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from xxhash import xxh3_64_intdigest

from warmroute_proxy.core.base.frozen import Frozen
from warmroute_proxy.core.cache.index import Match
from warmroute_proxy.core.cache.tiers import MIN_FETCH_TOKENS, NOTHING_HELD, Held
from warmroute_proxy.core.load.load import Ahead, waits_s
from warmroute_proxy.core.load.traffic import Traffic
from warmroute_proxy.core.placement.choices import Choices, WorkerState
from warmroute_proxy.core.placement.decision import MAX_REASONS, Candidate, Decision, Policy, Reasons
from warmroute_proxy.core.placement.fleet import Peer
from warmroute_proxy.core.placement.prices import CHURN, Prices, churn_s
from warmroute_proxy.core.prompt.facts import Facts

TRANSFER_S_PER_TOKEN: Final = 2e-7
"""KV from prefill to decode: 70 KB a token (MLA) over eight 400 Gb/s links."""

_MASK_64: Final = (1 << 64) - 1
_inserted: Final = itemgetter(2)  # of what is ahead


class Prompt(Frozen, frozen=True):
    """A prompt as the index and the learned ratio see it."""

    tokens: int
    bytes_per_token: float
    match: Match

    def tokens_of(self, prefix_bytes: int) -> int:
        """Tokens of a prefix; never the whole prompt, because an engine computes at least the last token."""
        found, most = int(prefix_bytes / self.bytes_per_token), self.tokens - 1
        return found if found < most else most  # noqa: FURB136 - min() takes three times as long

    def held(self, place: WorkerState, matched: dict[int, int]) -> tuple[int, Held]:
        """What of the prompt the place has in its tiers, by bytes of each slot: bytes in all, and tokens of each."""
        device_bytes = matched.get(place.slot, 0)
        host_bytes = max(device_bytes, matched.get(place.host_slot, 0))
        all_bytes = max(host_bytes, matched.get(place.store_slot, 0))
        if not all_bytes:
            return 0, NOTHING_HELD
        device = self.tokens_of(device_bytes)
        host = device if host_bytes == device_bytes else self.tokens_of(host_bytes)
        storage = host if all_bytes == host_bytes else self.tokens_of(all_bytes)
        if storage - host < MIN_FETCH_TOKENS:
            all_bytes, storage = host_bytes, host
        return all_bytes, Held(device, host - device, storage - host)


_Terms = tuple[float, float, float, float, float]
"""Seconds of compute, load, transfer and reuse, and what each second of queue costs others."""
_Known = tuple[float, float, int, int, tuple[int, int, int], _Terms]
"""What a kind of workers costs while nothing is ahead, and what a second of queue costs there; tokens to compute, bytes
that are cached, cached tokens by tier; and what the seconds are made of.
"""
_Kind = tuple[_Known, tuple[int, ...]]
"""And the numbers of these workers among the holders."""
_Away = tuple[WorkerState, int, tuple[int, int, int], Candidate]
"""A peer region, bytes that matched there, tokens held, and its cost."""


def place_by_cost(
    facts: Facts, choices: Choices, prompt: Prompt, home: str | None, traffic: Traffic, now_s: float
) -> Decision:
    """The cheapest place. `choices` are usable ones, not empty; `home` is a region or None."""
    match, output_tokens = prompt.match, facts.expected_output_tokens
    ahead = [load.ahead or load.look() for load in choices.loads]
    decode, decode_id = None, ""
    if choices.decodes:
        decode, slowdown_s = _best_decode(facts, choices.decodes, now_s)
        decode_id = decode.id
        ahead = _decoding_there(choices.cache_workers, ahead, slowdown_s)
    s_per_token, count = choices.mean_s_per_token, choices.count
    best = match.drops[-1][1] if match.drops else 0
    churn = 0.0
    if best <= (match.shared[-1][0] if match.shared else 0):
        churn = churn_s(sum(map(_inserted, ahead)), len(ahead), s_per_token)
    busy, returning_per_s = traffic.of_each(count, now_s)
    prices = Prices(prompt.bytes_per_token, s_per_token, match.shared, best, count, busy, returning_per_s)
    kinds = _alike(choices, prompt, prices) if choices.plain else _each(choices.cache_workers, prompt, prices)
    away: list[_Away] = []
    if choices.peers:
        if facts.derived and match.drops:
            home = None  # equal prompts share a derived key: it counts only where no prefix is known at all
        away = _away(facts, choices.peers, prompt, prices, CHURN * s_per_token if churn else 0.0, home, now_s)
    cheapest = _cheapest(kinds, ahead, churn, away, output_tokens, now_s)
    winner = cheapest[0] if len(cheapest) == 1 else _settle_tie(cheapest, facts, choices, home)
    weighed = (winner, choices.cache_workers, kinds, ahead, churn, away, output_tokens, decode_id, now_s)
    reasons = Reasons(None, _candidates, weighed)
    if winner >= len(ahead):
        place, matched, held, _ = away[winner - len(ahead)]
        return _decision(place, None, matched, held, choices.region, prompt, "cost", reasons)
    known = kinds[0][0]
    for kind, numbers in kinds:
        if winner in numbers:
            known = kind
    return _decision(choices.cache_workers[winner], decode, known[3], known[4], choices.region, prompt, "cost", reasons)


def _cheapest(
    kinds: list[_Kind],
    ahead: list[Ahead],
    churn_s_per_inserted: float,
    away: list[_Away],
    output_tokens: int,
    now_s: float,
) -> tuple[int, ...]:
    """The numbers of the cheapest places: of holders, then of peers. More than one where they cost the same."""
    least_s = math.inf
    cheapest: tuple[int, ...] = ()
    for (fixed_s, queued_s_per_s, uncached, _, _, _), numbers in kinds:
        if fixed_s > least_s:
            continue
        for number in numbers:
            each = ahead[number]
            if each[0]:
                queue_s, slowdown_s = waits_s(each, now_s)
                cost_s = fixed_s + queue_s * queued_s_per_s + slowdown_s * output_tokens
            else:
                cost_s = fixed_s + each[1] * output_tokens
            if churn_s_per_inserted:
                cost_s += churn_s_per_inserted * each[2] * uncached
            if cost_s < least_s:
                least_s, cheapest = cost_s, (number,)
            elif cost_s == least_s:
                cheapest = (*cheapest, number)
    if away:
        for number, (_, _, _, candidate) in enumerate(away, len(ahead)):
            if candidate.cost_s < least_s:
                least_s, cheapest = candidate.cost_s, (number,)
            elif candidate.cost_s == least_s:
                cheapest = (*cheapest, number)
    return cheapest


def _candidates(
    winner: int,
    cache_workers: tuple[WorkerState, ...],
    kinds: list[_Kind],
    ahead: list[Ahead],
    churn_s_per_inserted: float,
    away: list[_Away],
    output_tokens: int,
    decode_id: str,
    now_s: float,
    *,
    alone: bool = False,
) -> tuple[Candidate, ...]:
    """The winner, then (if it is not wanted alone) the cheapest of the others, with the terms of their costs."""
    found: list[tuple[bool, float, int, Candidate]] = []
    for (fixed_s, queued_s_per_s, uncached, _, (_, host, storage), terms), numbers in kinds:
        compute_s, load_s, transfer_s, reuse_s, others_s_per_s = terms
        for number in numbers:
            if alone and number != winner:
                continue
            place, churn_s = cache_workers[number], churn_s_per_inserted * ahead[number][2]
            queue_s, slowdown_s = waits_s(ahead[number], now_s)
            cost_s = fixed_s + queue_s * queued_s_per_s + slowdown_s * output_tokens + churn_s * uncached
            candidate = Candidate(
                place.id, cost_s, 0.0, queue_s, compute_s, load_s, slowdown_s * output_tokens, transfer_s,
                queue_s * others_s_per_s, reuse_s, churn_s * uncached, uncached, host, storage,
                decode_id if place.role == "prefill" else "",
            )  # fmt: skip
            found.append((number != winner, cost_s, number, candidate))
    for number, (_, _, _, candidate) in enumerate(away, len(cache_workers)):
        found.append((number != winner, candidate.cost_s, number, candidate))
    return tuple([candidate for _, _, _, candidate in sorted(found)[:MAX_REASONS]])


def place_in_turn(choices: Choices, prompt: Prompt, turn: int) -> Decision:
    """Round robin, for comparison: the `turn`-th unit of this region, whatever is cached where. Never forwards."""
    place = choices.cache_workers[turn % len(choices.cache_workers)]
    decode = choices.decodes[turn % len(choices.decodes)] if choices.decodes else None
    matched, held = prompt.held(place, prompt.match.bytes_by_slot)
    terms_s = [0.0] * 10
    uncached = prompt.tokens - sum(held)
    reason = Candidate._make((place.id, *terms_s, uncached, held.host, held.storage, "in turn"))
    return _decision(place, decode, matched, held, choices.region, prompt, "round_robin", Reasons((reason,)))


def rendezvous(session: int, id_: str) -> int:
    """The weight of a worker for a session; the heaviest wins. Equal in all replicas, and stable when others change."""
    return xxh3_64_intdigest(id_.encode(), session & _MASK_64)


def _best_decode(facts: Facts, decodes: Sequence[WorkerState], now_s: float) -> tuple[WorkerState, float]:
    """The decode worker that is slowed least, and by how much a token."""
    slowed = [place.load.decode_slowdown_s(now_s) for place in decodes]
    least = min(slowed)
    if slowed.count(least) == 1:
        return decodes[slowed.index(least)], least
    tied = [number for number, slowdown_s in enumerate(slowed) if slowdown_s == least]
    return decodes[_heaviest(_rendezvous_key(facts), tied, decodes)], least


def _decoding_there(cache_workers: Sequence[WorkerState], ahead: list[Ahead], slowdown_s: float) -> list[Ahead]:
    """What is ahead where prompts of prefill workers are decoded by a worker that is slowed so much."""
    found: list[Ahead] = []
    for place, each in zip(cache_workers, ahead, strict=True):
        waits, _, inserted, work_s, since_s, at_work_s, others = each
        if place.role != "prefill":
            found.append(each)
        elif others is None:
            found.append((waits, slowdown_s, inserted, work_s, since_s, at_work_s, None))
        else:
            found.append((waits, slowdown_s, inserted, work_s, since_s, at_work_s, (others[0], others[1], slowdown_s)))
    return found


def _alike(choices: Choices, prompt: Prompt, prices: Prices) -> list[_Kind]:
    """Kinds of equally fast holders with one tier each that need no transfer: those that leave the chain together."""
    kinds: list[_Kind] = []
    s_per_token, others = choices.s_per_token, choices.mask
    for mask, matched in reversed(prompt.match.drops):
        others &= ~mask
        numbers = choices.at(mask)
        if numbers:
            device = prompt.tokens_of(matched)
            known = _known(prices, s_per_token, prompt.tokens - device, matched, (device, 0, 0), 0.0, 0.0)
            kinds.append((known, numbers))
    numbers = choices.at(others) if others else ()
    if numbers:
        kinds.append((_known(prices, s_per_token, prompt.tokens, 0, (0, 0, 0), 0.0, 0.0), numbers))
    return kinds


def _each(cache_workers: Sequence[WorkerState], prompt: Prompt, prices: Prices) -> list[_Kind]:
    """Each holder by itself, of any kind."""
    by_slot = prompt.match.bytes_by_slot
    kinds: list[_Kind] = []
    for number, place in enumerate(cache_workers):
        load = place.load
        matched, held = prompt.held(place, by_slot)
        transfer_s = prompt.tokens * TRANSFER_S_PER_TOKEN if place.role == "prefill" else 0.0
        load_s, uncached = load.moves.seconds(held), prompt.tokens - sum(held)
        known = _known(prices, load.prefill_s_per_token, uncached, matched, held, load_s, transfer_s)
        kinds.append((known, (number,)))
    return kinds


def _known(
    prices: Prices,
    s_per_token: float,
    uncached: int,
    matched: int,
    held: tuple[int, int, int],
    load_s: float,
    transfer_s: float,
) -> _Known:
    compute_s = uncached * s_per_token
    reuse_s = prices.reuse_s(matched) if matched < prices.best else 0.0
    others_s_per_s = prices.delayed_per_s * compute_s
    terms = (compute_s, load_s, transfer_s, reuse_s, others_s_per_s)
    return compute_s + load_s + transfer_s + reuse_s, 1.0 + others_s_per_s, uncached, matched, held, terms


def _away(
    facts: Facts,
    peers: Sequence[WorkerState],
    prompt: Prompt,
    prices: Prices,
    churn_s_per_token: float,
    home: str | None,
    now_s: float,
) -> list[_Away]:
    """The peer regions."""
    found: list[_Away] = []
    by_slot = prompt.match.bytes_by_slot
    for place in peers:
        peer, queue_s = place.on, place.load.queue_s(now_s)
        assert isinstance(peer, Peer)
        matched = by_slot.get(place.slot, 0)
        network_s, note = peer.rtt_s, ""
        if peer.region == home:
            network_s, note = 0.0, "home"
            matched = max(matched, facts.structural_bytes)
        held = prompt.tokens_of(matched)
        uncached = prompt.tokens - held
        compute_s = uncached * prices.s_per_token
        others_s = prices.delayed_per_s * queue_s * compute_s
        reuse_s = prices.reuse_s(matched)
        churn_s = churn_s_per_token * uncached
        cost_s = network_s + queue_s + compute_s + others_s + reuse_s + churn_s
        candidate = Candidate(
            place.id, cost_s, network_s, queue_s, compute_s, 0.0, 0.0, 0.0, others_s, reuse_s, churn_s, uncached, 0, 0,
            note,
        )  # fmt: skip
        found.append((place, matched, (held, 0, 0), candidate))
    return found


def _settle_tie(tied: Sequence[int], facts: Facts, choices: Choices, home: str | None) -> int:
    """The winner among the cheapest: a home next door, then this region, then by rendezvous."""
    places = (*choices.cache_workers, *choices.peers)
    homes = [number for number in tied if places[number].region and places[number].region == home]
    here = [number for number in tied if number < len(choices.cache_workers)]
    return _heaviest(_rendezvous_key(facts), homes or here or tied, places)


def _heaviest(session: int, tied: Sequence[int], places: Sequence[WorkerState]) -> int:
    """By rendezvous."""
    weights = [rendezvous(session, places[number].id) for number in tied]
    return tied[weights.index(max(weights))]


def _decision(
    place: WorkerState,
    decode: WorkerState | None,
    matched: int,
    held: tuple[int, int, int],
    region: str,
    prompt: Prompt,
    policy: Policy,
    reasons: Reasons,
) -> Decision:
    match, others, elsewhere = prompt.match, ~place.slots, 0
    cached_tokens = held[0] + held[1] + held[2]
    known_tokens = cached_tokens if matched == match.known_bytes else prompt.tokens_of(match.known_bytes)
    for mask, length in match.drops:  # from short to long
        if mask & others:
            elsewhere = length
    worker = place.worker
    prefill = partner = None
    if decode is not None and place.role == "prefill":
        prefill, partner, worker = worker, decode.worker, None
    return Decision(
        "forward" if place.worker is None else "local",
        place.region if place.worker is None else region,
        prefill,
        partner,
        worker,
        cached_tokens,
        Held(*held) if matched else NOTHING_HELD,
        known_tokens,
        known_tokens if elsewhere == match.known_bytes else prompt.tokens_of(elsewhere),
        prompt.tokens,
        reasons,
        policy,
        place.id,
        matched,
    )


def _rendezvous_key(facts: Facts) -> int:
    return facts.lineage if facts.session is None else facts.session
