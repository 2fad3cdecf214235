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
turn must have cached there if the index of this proxy does not know. A peer's queue is what this proxy has forwarded
and not yet seen answered; its prefill rate is taken to be like ours.

Ties are broken by rendezvous hash of (session, worker), so that replicas agree without talking.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from xxhash import xxh3_64_intdigest

from warmroute_proxy.core.facts import Facts
from warmroute_proxy.core.fleet import Peer, Worker
from warmroute_proxy.core.index import Match
from warmroute_proxy.core.load import WorkerLoad

U: Final = 5.0
"""How many seconds of the fleet's time a second of a request's own prefill is worth."""

TRANSFER_S_PER_TOKEN: Final = 2e-7
"""KV from prefill to decode: 70 KB a token (MLA) over eight 400 Gb/s links."""

DECODE_S_PER_RUNNING: Final = 1e-4
"""What each running request adds to a decode step."""

DECODE_S_PER_RESIDENT_TOKEN: Final = 2e-9
"""What each resident token adds to a decode step: 70 KB read at about 35 TB/s (eight GPUs)."""

MAX_REASONS: Final = 16

Policy = Literal["cost", "round_robin"]
_MASK_64: Final = (1 << 64) - 1


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

    __slots__ = ("id", "load", "on", "slot")

    def __init__(self, id_: str, on: Worker | Peer, load: WorkerLoad, slot: int) -> None:
        self.id = id_
        self.on = on
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
                holders = tuple(place for place in holders if _worker(place).role == "aggregated")
        if facts.may_forward and self.peers:
            peers = tuple(
                place
                for place in _usable(self.peers, now_s, exclude)
                if allowed is None or place.on.region in allowed  # type: ignore[union-attr]  # peers are on a Peer
            )
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


class _Row(NamedTuple):
    cost_s: float
    place: Place
    network_s: float
    queue_s: float
    compute_s: float
    decode_s: float
    transfer_s: float
    matched_bytes: int
    uncached_tokens: int
    note: str


def place_by_cost(facts: Facts, choices: Choices, prompt: Prompt, home: str | None, now_s: float) -> Decision:
    """The cheapest place. `choices` are usable ones, not empty; `home` is a region or None."""
    decode, decode_s = _best_decode(facts, choices.decodes, now_s)
    rows = [_local_row(facts, place, prompt, decode, decode_s, now_s) for place in choices.holders]
    if choices.peers:
        rates = [place.load.prefill_s_per_token for place in choices.holders]
        rate = sum(rates) / len(rates) if rates else choices.peers[0].load.prefill_s_per_token
        rows += [_peer_row(facts, place, prompt, home, rate, now_s) for place in choices.peers]
    rows.sort(key=_cost)
    if len(rows) > 1 and rows[0].cost_s == rows[1].cost_s:
        _settle_tie(rows, facts, choices.region, home)
    return _decision(rows[0], decode, choices.region, prompt, _reasons(rows), "cost")


def place_in_turn(choices: Choices, prompt: Prompt, turn: int) -> Decision:
    """Round robin, for comparison: the `turn`-th unit of this region, whatever is cached where. Never forwards."""
    place = choices.holders[turn % len(choices.holders)]
    decode = choices.decodes[turn % len(choices.decodes)] if choices.decodes else None
    matched = prompt.match.bytes_by_slot.get(place.slot, 0)
    uncached = prompt.tokens - prompt.tokens_of(matched)
    row = _Row(0.0, place, 0.0, 0.0, 0.0, 0.0, 0.0, matched, uncached, "in turn")
    return _decision(row, decode, choices.region, prompt, _reasons([row]), "round_robin")


def rendezvous(session: int, id_: str) -> int:
    """The weight of a worker for a session; the heaviest wins. Equal in all replicas, and stable when others change."""
    return xxh3_64_intdigest(id_, session & _MASK_64)


def _best_decode(facts: Facts, decodes: Sequence[Place], now_s: float) -> tuple[Place | None, float]:
    """The decode worker that is slowed least, and by how much."""
    if not decodes:
        return None, 0.0
    slowed = [_decode_s(place.load, facts.expected_output_tokens, now_s) for place in decodes]
    least = min(slowed)
    best = [place for place, seconds in zip(decodes, slowed, strict=True) if seconds == least]
    if len(best) == 1:
        return best[0], least
    key = _rendezvous_key(facts)
    return max(best, key=lambda place: rendezvous(key, place.id)), least


def _decode_s(load: WorkerLoad, expected_output_tokens: int, now_s: float) -> float:
    step_s = load.running * DECODE_S_PER_RUNNING + load.decode_tokens(now_s) * DECODE_S_PER_RESIDENT_TOKEN
    return step_s * expected_output_tokens


def _local_row(facts: Facts, place: Place, prompt: Prompt, decode: Place | None, decode_s: float, now_s: float) -> _Row:
    load = place.load
    matched = prompt.match.bytes_by_slot.get(place.slot, 0)
    uncached = prompt.tokens - prompt.tokens_of(matched)
    queue_s = load.queue_s(now_s)
    compute_s = U * uncached * load.prefill_s_per_token
    if _worker(place).role == "prefill" and decode is not None:
        transfer_s, note = prompt.tokens * TRANSFER_S_PER_TOKEN, decode.id
    else:
        decode_s, transfer_s, note = _decode_s(load, facts.expected_output_tokens, now_s), 0.0, ""
    cost_s = queue_s + compute_s + decode_s + transfer_s
    return _Row(cost_s, place, 0.0, queue_s, compute_s, decode_s, transfer_s, matched, uncached, note)


def _peer_row(facts: Facts, place: Place, prompt: Prompt, home: str | None, rate: float, now_s: float) -> _Row:
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
    return _Row(cost_s, place, network_s, queue_s, compute_s, 0.0, 0.0, matched, uncached, note)


def _settle_tie(rows: list[_Row], facts: Facts, region: str, home: str | None) -> None:
    """Put the winner among the cheapest first: home, then this region, then by rendezvous."""
    key = _rendezvous_key(facts)

    def rank(row: _Row) -> tuple[bool, bool, int]:
        on = row.place.on
        where = on.region if isinstance(on, Peer) else region
        return where == home, where == region, rendezvous(key, row.place.id)

    tied = [row for row in rows if row.cost_s == rows[0].cost_s]
    rows[: len(tied)] = sorted(tied, key=rank, reverse=True)


def _decision(
    row: _Row, decode: Place | None, region: str, prompt: Prompt, reasons: tuple[Candidate, ...], policy: Policy
) -> Decision:
    on = row.place.on
    elsewhere = [matched for slot, matched in prompt.match.bytes_by_slot.items() if slot != row.place.slot]
    paired = isinstance(on, Worker) and on.role == "prefill" and decode is not None
    return Decision(
        kind="forward" if isinstance(on, Peer) else "local",
        region=on.region if isinstance(on, Peer) else region,
        prefill=on if isinstance(on, Worker) and paired else None,
        decode=_worker(decode) if decode is not None and paired else None,
        worker=on if isinstance(on, Worker) and not paired else None,
        predicted_cached_tokens=prompt.tokens - row.uncached_tokens,
        known_tokens=prompt.tokens_of(prompt.match.known_bytes),
        best_elsewhere_tokens=prompt.tokens_of(max(elsewhere, default=0)),
        prompt_tokens_est=prompt.tokens,
        reasons=reasons,
        policy=policy,
        holder=row.place.id,
        matched_bytes=row.matched_bytes,
    )


def _reasons(rows: Sequence[_Row]) -> tuple[Candidate, ...]:
    return tuple(
        [
            Candidate(place.id, cost, network, queue, compute, decode, transfer, uncached, note)
            for cost, place, network, queue, compute, decode, transfer, _, uncached, note in rows[:MAX_REASONS]
        ]
    )


def _usable(places: tuple[Place, ...], now_s: float, exclude: frozenset[str]) -> tuple[Place, ...]:
    return tuple([place for place in places if place.load.usable(now_s) and place.id not in exclude])


def _worker(place: Place) -> Worker:
    assert isinstance(place.on, Worker)
    return place.on


def _cost(row: _Row) -> float:
    return row.cost_s


def _rendezvous_key(facts: Facts) -> int:
    return facts.lineage if facts.session is None else facts.session


def estimate_tokens(prompt_bytes: int, bytes_per_token: float) -> int:
    """Tokens of a prompt, at least one."""
    return max(1, math.ceil(prompt_bytes / bytes_per_token))
