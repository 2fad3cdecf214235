"""Placement: one cost, in seconds, and the decision with its reasons.

For a prompt and each place that could hold its KV cache (a prefill worker, an aggregated worker, a peer region):

    cost = network + queue + u * uncached * prefill_s_per_token + decode_slowdown * expected_output + transfer

`network` is the round trip to a peer region. `queue` is the prefill that is ahead at that place. `uncached` is what
the index does not predict to be cached there. u is 5: a request's own uncached tokens also delay everyone behind it;
at u = 1 (plain expected TTFT) a queueing model loses 2 to 10 points of hit ratio under load, and 4 to 6 is flat.
A prefill worker is priced together with the decode worker that is best for all of them: the least slowed one. Both
roles of an aggregated worker are its own, and it needs no transfer.

So affinity can never hurt: a warm home wins while it is idle, and a busy one loses to an idle stranger exactly when
recomputing the prefix is cheaper for the fleet than waiting. Nothing else ties a session to a worker.

A *home* region (the client's hint, or where its session was served) is worth one network hop, and what the previous
turn must have cached there if the index of this proxy does not know. The home of a derived session counts only where
the index knows no prefix of the prompt at all. A peer's queue is what this proxy has forwarded
and not yet seen answered; its prefill rate is taken to be like ours.

Ties are broken by rendezvous hash of (session, worker), so that replicas agree without talking.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from xxhash import xxh3_64_intdigest

from warmroute_proxy.core.facts import Facts
from warmroute_proxy.core.fleet import Peer, Role, Worker
from warmroute_proxy.core.index import Match
from warmroute_proxy.core.load import WorkerLoad

U: Final = 5.0
"""How many seconds of the fleet's time a second of a request's own prefill is worth."""

TRANSFER_S_PER_TOKEN: Final = 2e-7
"""KV from prefill to decode: 70 KB a token (MLA) over eight 400 Gb/s links."""

MAX_REASONS: Final = 16

Policy = Literal["cost", "round_robin"]
_MASK_64: Final = (1 << 64) - 1
_PEER: Final = 1 << 20


class NoWorker(Exception):
    """Nothing can serve the request. `served`: a worker or peer for the model exists, but none can be used now."""

    def __init__(self, model: str, served: bool) -> None:
        super().__init__(f"no worker {'is available' if served else 'exists'} for model {model!r}")
        self.model = model
        self.served = served


class Candidate(NamedTuple):
    """One possible place and each term of its cost. `id` is a worker's, or `region:<name>`."""

    id: str
    cost_s: float
    network_s: float
    queue_s: float
    compute_s: float
    decode_s: float
    transfer_s: float
    uncached_tokens: int
    note: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes, what was expected there, and why.

    `holder` is the worker (or `region:<name>`) whose cache the prompt will be in; `matched_bytes` of the prompt are
    there already, by the index or by the home hint.
    """

    kind: Literal["local", "forward"]
    region: str
    prefill: Worker | None
    decode: Worker | None
    worker: Worker | None
    predicted_cached_tokens: int
    known_tokens: int
    best_elsewhere_tokens: int
    prompt_tokens_est: int
    reasons: tuple[Candidate, ...]
    policy: Policy
    holder: str
    matched_bytes: int

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers of this region that take part: prefill and decode, or the aggregated one; none for a forward."""
        return tuple(worker for worker in (self.prefill, self.decode, self.worker) if worker is not None)


class Place:
    """A worker or a peer region, with its load and its slot in the index."""

    __slots__ = ("id", "load", "on", "region", "role", "slot")

    def __init__(self, id_: str, on: Worker | Peer, load: WorkerLoad, slot: int) -> None:
        self.id = id_
        self.on = on
        self.role: Role | None = on.role if isinstance(on, Worker) else None
        self.region = on.region if isinstance(on, Peer) else ""
        self.load = load
        self.slot = slot


class Choices(NamedTuple):
    """All that serves a model, usable now or not. Holders keep prefixes: prefill and aggregated workers."""

    region: str
    holders: tuple[Place, ...]
    decodes: tuple[Place, ...]
    peers: tuple[Place, ...]
    mask: int
    """Slots of holders and peers."""

    def usable(self, facts: Facts, now_s: float, exclude: frozenset[str]) -> "Choices":
        """What of it this request may use. A prefill worker is of no use without a decode worker, nor the reverse."""
        allowed = facts.allowed_regions
        holders: tuple[Place, ...] = ()
        decodes: tuple[Place, ...] = ()
        peers: tuple[Place, ...] = ()
        if allowed is None or self.region in allowed:
            decodes = _usable(self.decodes, now_s, exclude)
            holders = _usable(self.holders, now_s, exclude)
            if not decodes:
                holders = tuple(place for place in holders if place.role == "aggregated")
        if facts.may_forward and self.peers:
            peers = _usable(self.peers, now_s, exclude)
            if allowed is not None:
                peers = tuple(place for place in peers if place.region in allowed)
        if not holders and not peers:
            raise NoWorker(facts.model, served=bool(self.holders or self.peers))
        return Choices(self.region, holders, decodes, peers, self.mask)


class Prompt(NamedTuple):
    """A prompt as the index and the learned ratio see it."""

    tokens: int
    bytes_per_token: float
    match: Match

    def tokens_of(self, prefix_bytes: int) -> int:
        """Tokens of a prefix; never the whole prompt, because an engine computes at least the last token."""
        return min(int(prefix_bytes / self.bytes_per_token), self.tokens - 1)


# A row of the table that is sorted: cost first, then a number that is different in each row, so that no comparison
# goes on to the rest. Plain tuples, because one is made for each place and each request.
_Row = tuple[float, int, Place, float, float, float, float, float, int, int, str]


def place_by_cost(facts: Facts, choices: Choices, prompt: Prompt, home: str | None, now_s: float) -> Decision:
    """The cheapest place. `choices` are usable ones, not empty; `home` is a region or None."""
    decode, decode_s = _best_decode(facts, choices.decodes, now_s)
    rows = _local_rows(facts, choices.holders, prompt, decode, decode_s, now_s)
    if facts.derived and any(prompt.match.bytes_by_slot.values()):
        home = None  # equal prompts share a derived key: it counts only where no prefix is known at all
    if choices.peers:
        rates = [place.load.prefill_s_per_token for place in choices.holders or choices.peers]
        rows += _peer_rows(facts, choices.peers, prompt, home, sum(rates) / len(rates), now_s)
    rows.sort()
    if len(rows) > 1 and rows[0][0] == rows[1][0]:
        _settle_tie(rows, facts, home)
    return _decision(rows, decode, choices.region, prompt, "cost")


def place_in_turn(choices: Choices, prompt: Prompt, turn: int) -> Decision:
    """Round robin, for comparison: the `turn`-th unit of this region, whatever is cached where. Never forwards."""
    place = choices.holders[turn % len(choices.holders)]
    decode = choices.decodes[turn % len(choices.decodes)] if choices.decodes else None
    matched = prompt.match.bytes_by_slot.get(place.slot, 0)
    uncached = prompt.tokens - prompt.tokens_of(matched)
    row = (0.0, 0, place, 0.0, 0.0, 0.0, 0.0, 0.0, matched, uncached, "in turn")
    return _decision([row], decode, choices.region, prompt, "round_robin")


def rendezvous(session: int, id_: str) -> int:
    """The weight of a worker for a session; the heaviest wins. Equal in all replicas, and stable when others change."""
    return xxh3_64_intdigest(id_.encode(), session & _MASK_64)


def estimate_tokens(prompt_bytes: int, bytes_per_token: float) -> int:
    """Tokens of a prompt, at least one."""
    return max(1, math.ceil(prompt_bytes / bytes_per_token))


def _best_decode(facts: Facts, decodes: Sequence[Place], now_s: float) -> tuple[Place | None, float]:
    """The decode worker that is slowed least, and by how much."""
    if not decodes:
        return None, 0.0
    slowed = [place.load.decode_slowdown_s(now_s) for place in decodes]
    least = min(slowed)
    least_s = least * facts.expected_output_tokens
    if slowed.count(least) == 1:
        return decodes[slowed.index(least)], least_s
    key = _rendezvous_key(facts)
    best = [place for place, slowdown in zip(decodes, slowed, strict=True) if slowdown == least]
    return max(best, key=lambda place: rendezvous(key, place.id)), least_s


def _local_rows(
    facts: Facts, holders: Sequence[Place], prompt: Prompt, decode: Place | None, paired_s: float, now_s: float
) -> list[_Row]:
    rows: list[_Row] = []
    tokens, bytes_by_slot = prompt.tokens, prompt.match.bytes_by_slot
    for number, place in enumerate(holders):
        load = place.load
        matched = bytes_by_slot.get(place.slot, 0)
        uncached = tokens - prompt.tokens_of(matched) if matched else tokens
        queue_s = load.queue_s(now_s)
        compute_s = U * uncached * load.prefill_s_per_token
        if place.role == "prefill" and decode is not None:
            decode_s, transfer_s, note = paired_s, tokens * TRANSFER_S_PER_TOKEN, decode.id
        else:
            decode_s, transfer_s, note = load.decode_slowdown_s(now_s) * facts.expected_output_tokens, 0.0, ""
        cost_s = queue_s + compute_s + decode_s + transfer_s
        rows.append((cost_s, number, place, 0.0, queue_s, compute_s, decode_s, transfer_s, matched, uncached, note))
    return rows


def _peer_rows(
    facts: Facts, peers: Sequence[Place], prompt: Prompt, home: str | None, rate: float, now_s: float
) -> list[_Row]:
    rows: list[_Row] = []
    for number, place in enumerate(peers):
        peer = place.on
        assert isinstance(peer, Peer)
        matched = prompt.match.bytes_by_slot.get(place.slot, 0)
        network_s, note = peer.rtt_s, ""
        if peer.region == home:
            network_s, note = 0.0, "home"
            matched = max(matched, facts.structural_bytes)
        uncached = prompt.tokens - prompt.tokens_of(matched)
        queue_s = place.load.queue_s(now_s)
        compute_s = U * uncached * rate
        cost_s = network_s + queue_s + compute_s
        # Numbered below local rows: of equal ones, this region comes first in the reasons.
        rows.append((cost_s, _PEER + number, place, network_s, queue_s, compute_s, 0.0, 0.0, matched, uncached, note))
    return rows


def _settle_tie(rows: list[_Row], facts: Facts, home: str | None) -> None:
    """Put the winner among the cheapest first: a home next door, then this region, then by rendezvous."""
    cheapest = rows[0][0]
    tied = [row for row in rows if row[0] == cheapest]
    peers = [row for row in tied if row[1] >= _PEER]
    homes = [row for row in peers if row[2].region == home]
    key = _rendezvous_key(facts)
    candidates = homes or tied[: len(tied) - len(peers)] or peers
    winner = max(candidates, key=lambda row: rendezvous(key, row[2].id))
    rows.remove(winner)
    rows.insert(0, winner)


def _decision(rows: list[_Row], decode: Place | None, region: str, prompt: Prompt, policy: Policy) -> Decision:
    _, _, place, *_, matched, uncached, _ = rows[0]
    bytes_by_slot = prompt.match.bytes_by_slot
    elsewhere = max((length for slot, length in bytes_by_slot.items() if slot != place.slot), default=0)
    on = place.on
    worker = on if isinstance(on, Worker) else None
    partner = decode.on if decode is not None and place.role == "prefill" else None
    return Decision(
        kind="local" if worker is not None else "forward",
        region=region if worker is not None else place.region,
        prefill=worker if partner is not None else None,
        decode=partner if isinstance(partner, Worker) else None,
        worker=worker if partner is None else None,
        predicted_cached_tokens=prompt.tokens - uncached,
        known_tokens=prompt.tokens_of(prompt.match.known_bytes),
        best_elsewhere_tokens=prompt.tokens_of(elsewhere),
        prompt_tokens_est=prompt.tokens,
        reasons=tuple([_candidate(row) for row in rows[:MAX_REASONS]]),
        policy=policy,
        holder=place.id,
        matched_bytes=matched,
    )


def _candidate(row: _Row) -> Candidate:
    cost_s, _, place, network_s, queue_s, compute_s, decode_s, transfer_s, _, uncached, note = row
    return Candidate._make((place.id, cost_s, network_s, queue_s, compute_s, decode_s, transfer_s, uncached, note))


def _usable(places: tuple[Place, ...], now_s: float, exclude: frozenset[str]) -> tuple[Place, ...]:
    if not exclude and all([place.load.ready for place in places]):  # noqa: C419 - a list is faster than a generator
        return places
    return tuple([place for place in places if place.load.usable(now_s) and place.id not in exclude])


def _rendezvous_key(facts: Facts) -> int:
    return facts.lineage if facts.session is None else facts.session
