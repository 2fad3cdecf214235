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

What differs between workers stands in columns (`_Weighed`), and one line adds them up, because that is done for each
worker and each request; everything else is made for the chosen one, or when somebody asks for reasons.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from warmroute_proxy.core.choices import Choices, Place
from warmroute_proxy.core.decision import Candidate, Decision, Policy, Reasons
from warmroute_proxy.core.facts import Facts
from warmroute_proxy.core.fleet import Peer, Worker
from warmroute_proxy.core.index import Match
from warmroute_proxy.core.load import waits_s
from warmroute_proxy.core.prices import Prices
from warmroute_proxy.core.tiers import MIN_FETCH_TOKENS, NOTHING_HELD, Held
from warmroute_proxy.core.traffic import Traffic, inserted_tokens

TRANSFER_S_PER_TOKEN: Final = 2e-7
"""KV from prefill to decode: 70 KB a token (MLA) over eight 400 Gb/s links."""

_MASK_64: Final = (1 << 64) - 1


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt as the index and the learned ratio see it."""

    tokens: int
    bytes_per_token: float
    match: Match

    def tokens_of(self, prefix_bytes: int) -> int:
        """Tokens of a prefix; never the whole prompt, because an engine computes at least the last token."""
        found, most = int(prefix_bytes / self.bytes_per_token), self.tokens - 1
        return found if found < most else most  # noqa: FURB136 - min() takes three times as long

    def held(self, place: Place, matched: dict[int, int]) -> tuple[int, Held]:
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


class _Known(msgspec.Struct, frozen=True, gc=False):
    """What is cached of a prompt at a place, and costs what."""

    uncached: int
    compute_s: float
    load_s: float
    transfer_s: float
    reuse_s: float
    others_s_per_s: float
    """For each second that others queue there."""
    matched: int
    held: Held


_Fixed = tuple[float, float, _Known]
"""The seconds of a place that do not depend on what it is busy with, the cost of a second that its queue is long, and
what both were made of. Few differ, so that places share them."""
_NOTHING: Final = (0.0, 0.0, _Known(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, NOTHING_HELD))

_Away = tuple[Place, int, Held, Candidate]
"""A peer region, bytes that matched there, tokens held, and its cost."""


class _Weighed(msgspec.Struct, frozen=True, gc=False):
    """The holders in columns, then the peers. A number is a place among both."""

    holders: Sequence[Place]
    costs_s: list[float]
    queues_s: list[float]
    slowdowns_s: list[float]
    churns_s_per_token: list[float]
    fixed: list[_Fixed]
    output_tokens: int
    decode_id: str
    away: list[_Away]

    def candidates(self, winner: int, limit: int) -> tuple[Candidate, ...]:
        costs_s = self.costs_s
        order = sorted(range(len(costs_s)), key=lambda number: (number != winner, costs_s[number], number))
        return tuple([self._candidate(number) for number in order[:limit]])

    def _candidate(self, number: int) -> Candidate:
        if number >= len(self.holders):
            return self.away[number - len(self.holders)][-1]
        place, queue_s, (_, _, known) = self.holders[number], self.queues_s[number], self.fixed[number]
        churn_s_per_token = self.churns_s_per_token[number] if self.churns_s_per_token else 0.0
        return Candidate(
            id=place.id,
            cost_s=self.costs_s[number],
            network_s=0.0,
            queue_s=queue_s,
            compute_s=known.compute_s,
            load_s=known.load_s,
            decode_s=self.slowdowns_s[number] * self.output_tokens,
            transfer_s=known.transfer_s,
            others_s=queue_s * known.others_s_per_s,
            reuse_s=known.reuse_s,
            churn_s=churn_s_per_token * known.uncached,
            uncached_tokens=known.uncached,
            host_tokens=known.held.host,
            storage_tokens=known.held.storage,
            note=self.decode_id if place.role == "prefill" else "",
        )


def place_by_cost(
    facts: Facts, choices: Choices, prompt: Prompt, home: str | None, traffic: Traffic, now_s: float
) -> Decision:
    """The cheapest place. `choices` are usable ones, not empty; `home` is a region or None."""
    holders, output_tokens = choices.holders, facts.expected_output_tokens
    rates_s = [load.prefill_s_per_token for load in choices.loads or [place.load for place in choices.peers]]
    prices = _prices(choices, rates_s, prompt, traffic, now_s)
    queues_s, slowdowns_s = waits_s(choices.loads, now_s)
    decode = None
    if choices.decodes:
        decode, least = _best_decode(facts, choices.decodes, now_s)
        pairs = zip(holders, slowdowns_s, strict=True)
        slowdowns_s = [least if place.role == "prefill" else own for place, own in pairs]
    if choices.plain and rates_s.count(rates_s[0]) == len(rates_s):
        fixed = _plainly_fixed(choices, prompt, prices, rates_s[0])
    else:
        fixed = _fixed(holders, prompt, prices)
    columns = zip(fixed, queues_s, slowdowns_s, strict=True)
    costs_s = [
        fixed_s + queue_s * each_queued_s + slowdown_s * output_tokens
        for (fixed_s, each_queued_s, _), queue_s, slowdown_s in columns
    ]
    churns_s_per_token = prices.churn_s_per_token
    if churns_s_per_token:
        with_churn = zip(costs_s, churns_s_per_token, fixed, strict=True)
        costs_s = [cost_s + churn_s * known.uncached for cost_s, churn_s, (_, _, known) in with_churn]
    away: list[_Away] = []
    if choices.peers:
        if facts.derived and prompt.match.drops:
            home = None  # equal prompts share a derived key: it counts only where no prefix is known at all
        away = _away(facts, choices.peers, prompt, prices, home, now_s)
        costs_s += [candidate.cost_s for *_, candidate in away]
    least_s = min(costs_s)
    winner = costs_s.index(least_s)
    if costs_s.count(least_s) > 1:
        winner = _settle_tie([at for at, cost_s in enumerate(costs_s) if cost_s == least_s], facts, choices, home)
    decode_id = "" if decode is None else decode.id
    weighed = _Weighed(
        holders, costs_s, queues_s, slowdowns_s, churns_s_per_token, fixed, output_tokens, decode_id, away
    )
    reasons = Reasons(None, weighed, winner)
    if winner < len(holders):
        _, _, known = fixed[winner]
        return _decision(holders[winner], decode, known.matched, known.held, choices.region, prompt, "cost", reasons)
    place, matched, held, _ = away[winner - len(holders)]
    return _decision(place, None, matched, held, choices.region, prompt, "cost", reasons)


def place_in_turn(choices: Choices, prompt: Prompt, turn: int) -> Decision:
    """Round robin, for comparison: the `turn`-th unit of this region, whatever is cached where. Never forwards."""
    place = choices.holders[turn % len(choices.holders)]
    decode = choices.decodes[turn % len(choices.decodes)] if choices.decodes else None
    matched, held = prompt.held(place, prompt.match.bytes_by_slot)
    terms_s = [0.0] * 10
    uncached = prompt.tokens - sum(held)
    reason = Candidate._make((place.id, *terms_s, uncached, held.host, held.storage, "in turn"))
    return _decision(place, decode, matched, held, choices.region, prompt, "round_robin", Reasons((reason,)))


def rendezvous(session: int, id_: str) -> int:
    """The weight of a worker for a session; the heaviest wins. Equal in all replicas, and stable when others change."""
    return xxh3_64_intdigest(id_.encode(), session & _MASK_64)


def estimate_tokens(prompt_bytes: int, bytes_per_token: float) -> int:
    """Tokens of a prompt, at least one."""
    return math.ceil(prompt_bytes / bytes_per_token) or 1


def _best_decode(facts: Facts, decodes: Sequence[Place], now_s: float) -> tuple[Place, float]:
    """The decode worker that is slowed least, and by how much a token."""
    _, slowed = waits_s([place.load for place in decodes], now_s)
    least = min(slowed)
    if slowed.count(least) == 1:
        return decodes[slowed.index(least)], least
    key = _rendezvous_key(facts)
    best = [place for place, slowdown in zip(decodes, slowed, strict=True) if slowdown == least]
    return max(best, key=lambda place: rendezvous(key, place.id)), least


def _prices(choices: Choices, rates_s: Sequence[float], prompt: Prompt, traffic: Traffic, now_s: float) -> Prices:
    """What this prompt's uncached tokens cost others, by where the fleet stands now."""
    count = len(rates_s)
    busy, returning_per_s = traffic.of_each(count, now_s)
    match = prompt.match
    best = match.drops[-1][1] if match.drops else 0
    inserted: Sequence[float] = ()
    if best <= (match.shared[-1][0] if match.shared else 0):
        inserted = inserted_tokens(choices.inserted, now_s)
    return Prices(
        prompt.bytes_per_token, sum(rates_s) / count, match.shared, best, count, busy, returning_per_s, inserted
    )


def _plainly_fixed(choices: Choices, prompt: Prompt, prices: Prices, s_per_token: float) -> list[_Fixed]:
    """Of equally fast holders with one tier each that need no transfer: one for each set that leaves the chain."""
    drops = prompt.match.drops
    begun = 0
    for mask, _ in drops:
        begun |= mask
    if begun & choices.mask == choices.mask:  # a prompt that all have the beginning of
        fixed = [_NOTHING] * len(choices.holders)
    else:
        fixed = [_fixed_of(prompt, prices, s_per_token, 0, NOTHING_HELD)] * len(choices.holders)
    for mask, matched in drops:
        one = _fixed_of(prompt, prices, s_per_token, matched, Held(prompt.tokens_of(matched), 0, 0))
        for at in choices.at(mask):
            fixed[at] = one
    return fixed


def _fixed(holders: Sequence[Place], prompt: Prompt, prices: Prices) -> list[_Fixed]:
    """Of holders of any kind."""
    by_slot = prompt.match.bytes_by_slot
    fixed: list[_Fixed] = []
    for place in holders:
        load = place.load
        matched, held = prompt.held(place, by_slot)
        transfer_s = prompt.tokens * TRANSFER_S_PER_TOKEN if place.role == "prefill" else 0.0
        load_s = load.moves.seconds(held)
        fixed.append(_fixed_of(prompt, prices, load.prefill_s_per_token, matched, held, load_s, transfer_s))
    return fixed


def _fixed_of(
    prompt: Prompt,
    prices: Prices,
    s_per_token: float,
    matched: int,
    held: Held,
    load_s: float = 0.0,
    transfer_s: float = 0.0,
) -> _Fixed:
    device, host, storage = held
    uncached = prompt.tokens - device - host - storage
    compute_s, reuse_s = uncached * s_per_token, prices.reuse_s(matched)
    others = prices.delayed_per_s * compute_s
    known = _Known(uncached, compute_s, load_s, transfer_s, reuse_s, others, matched, held)
    return compute_s + load_s + transfer_s + reuse_s, 1.0 + others, known


def _away(
    facts: Facts, peers: Sequence[Place], prompt: Prompt, prices: Prices, home: str | None, now_s: float
) -> list[_Away]:
    """The peer regions."""
    found: list[_Away] = []
    by_slot = prompt.match.bytes_by_slot
    queues_s, _ = waits_s([place.load for place in peers], now_s)
    for place, queue_s in zip(peers, queues_s, strict=True):
        peer = place.on
        assert isinstance(peer, Peer)
        matched = by_slot.get(place.slot, 0)
        network_s, note = peer.rtt_s, ""
        if peer.region == home:
            network_s, note = 0.0, "home"
            matched = max(matched, facts.structural_bytes)
        held = Held(prompt.tokens_of(matched), 0, 0)
        uncached = prompt.tokens - held.device
        compute_s = uncached * prices.s_per_token
        others_s = prices.delayed_per_s * queue_s * compute_s
        reuse_s = prices.reuse_s(matched)
        churn_s = prices.mean_churn_s_per_token * uncached
        cost_s = network_s + queue_s + compute_s + others_s + reuse_s + churn_s
        candidate = Candidate(
            place.id, cost_s, network_s, queue_s, compute_s, 0.0, 0.0, 0.0, others_s, reuse_s, churn_s, uncached, 0, 0,
            note,
        )  # fmt: skip
        found.append((place, matched, held, candidate))
    return found


def _settle_tie(tied: list[int], facts: Facts, choices: Choices, home: str | None) -> int:
    """The winner among the cheapest: a home next door, then this region, then by rendezvous."""
    places = (*choices.holders, *choices.peers)
    homes = [at for at in tied if places[at].region and places[at].region == home]
    here = [at for at in tied if at < len(choices.holders)]
    key = _rendezvous_key(facts)
    return max(homes or here or tied, key=lambda at: rendezvous(key, places[at].id))


def _decision(
    place: Place,
    decode: Place | None,
    matched: int,
    held: Held,
    region: str,
    prompt: Prompt,
    policy: Policy,
    reasons: Reasons,
) -> Decision:
    others = ~place.slots
    elsewhere = 0
    for mask, length in prompt.match.drops:  # from short to long
        if mask & others:
            elsewhere = length
    on = place.on
    worker = on if isinstance(on, Worker) else None
    partner = decode.on if decode is not None and place.role == "prefill" else None
    device, host, storage = held
    return Decision(
        kind="local" if worker is not None else "forward",
        region=region if worker is not None else place.region,
        prefill=worker if partner is not None else None,
        decode=partner if isinstance(partner, Worker) else None,
        worker=worker if partner is None else None,
        predicted_cached_tokens=device + host + storage,
        predicted=held,
        known_tokens=prompt.tokens_of(prompt.match.known_bytes),
        best_elsewhere_tokens=prompt.tokens_of(elsewhere),
        prompt_tokens_est=prompt.tokens,
        reasons=reasons,
        policy=policy,
        holder=place.id,
        matched_bytes=matched,
    )


def _rendezvous_key(facts: Facts) -> int:
    return facts.lineage if facts.session is None else facts.session
