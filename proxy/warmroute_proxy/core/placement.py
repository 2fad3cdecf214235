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
"""

import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, cast, overload

import msgspec
from xxhash import xxh3_64_intdigest

from warmroute_proxy.core.facts import Facts
from warmroute_proxy.core.fleet import Peer, Role, Worker
from warmroute_proxy.core.index import Match
from warmroute_proxy.core.load import WorkerLoad, waits_s
from warmroute_proxy.core.prices import Prices
from warmroute_proxy.core.tiers import MIN_FETCH_TOKENS, NOTHING_HELD, Held
from warmroute_proxy.core.traffic import Traffic

TRANSFER_S_PER_TOKEN: Final = 2e-7
"""KV from prefill to decode: 70 KB a token (MLA) over eight 400 Gb/s links."""

MAX_REASONS: Final = 8

Policy = Literal["cost", "round_robin"]
_MASK_64: Final = (1 << 64) - 1
_PEER: Final = 1 << 20

NO_SLOT: Final = -1
"""Where a place lacks a tier."""


class NoWorker(Exception):
    """Nothing can serve the request. `served`: a worker or peer for the model exists, but none can be used now."""

    def __init__(self, model: str, served: bool) -> None:
        super().__init__(f"no worker {'is available' if served else 'exists'} for model {model!r}")
        self.model = model
        self.served = served


class Candidate(NamedTuple):
    """One possible place and each term of its cost: their sum is `cost_s`. `id` is a worker's, or `region:<name>`."""

    id: str
    cost_s: float
    network_s: float
    queue_s: float
    compute_s: float
    load_s: float
    decode_s: float
    transfer_s: float
    others_s: float
    reuse_s: float
    churn_s: float
    uncached_tokens: int
    host_tokens: int
    storage_tokens: int
    note: str


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes, what was expected there, and why.

    `holder` is the worker (or `region:<name>`) whose cache the prompt will be in; `matched_bytes` of the prompt are
    there already, by the index or by the home hint; `predicted` says in which tiers. `reasons` are the cheapest
    places, the chosen one first: a tuple where a decision was read, `Reasons` where it was made.
    """

    kind: Literal["local", "forward"]
    region: str
    prefill: Worker | None
    decode: Worker | None
    worker: Worker | None
    predicted_cached_tokens: int
    predicted: Held
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
        if self.worker is not None:
            return (self.worker,)
        return tuple([worker for worker in (self.prefill, self.decode) if worker is not None])


class Place:
    """A worker or a peer region, with its load and its slots in the index: one for each tier that it has."""

    __slots__ = ("host_slot", "id", "load", "on", "region", "role", "slot", "store_slot", "tiered")

    def __init__(
        self,
        id_: str,
        on: Worker | Peer,
        load: WorkerLoad,
        slot: int,
        host_slot: int = NO_SLOT,
        store_slot: int = NO_SLOT,
    ) -> None:
        self.id = id_
        self.on = on
        self.role: Role | None = on.role if isinstance(on, Worker) else None
        self.region = on.region if isinstance(on, Peer) else ""
        self.load = load
        self.slot = slot
        self.host_slot = host_slot
        self.store_slot = store_slot
        self.tiered = host_slot != NO_SLOT or store_slot != NO_SLOT

    @property
    def slots(self) -> int:
        """The mask of its slots."""
        return sum(1 << slot for slot in (self.slot, self.host_slot, self.store_slot) if slot != NO_SLOT)


class Choices(NamedTuple):
    """All that serves a model, usable now or not. Holders keep prefixes: prefill and aggregated workers."""

    region: str
    holders: tuple[Place, ...]
    decodes: tuple[Place, ...]
    peers: tuple[Place, ...]
    mask: int
    """Slots of holders and peers, of all tiers."""
    split: bool
    """Whether any holder needs a decode worker beside it."""

    def usable(self, facts: Facts, now_s: float, exclude: frozenset[str]) -> "Choices":
        """What of it this request may use. A prefill worker is of no use without a decode worker, nor the reverse."""
        allowed = facts.allowed_regions
        holders: tuple[Place, ...] = ()
        decodes: tuple[Place, ...] = ()
        peers: tuple[Place, ...] = ()
        if allowed is None or self.region in allowed:
            decodes = _usable(self.decodes, now_s, exclude)
            holders = _usable(self.holders, now_s, exclude)
            if not decodes and self.split:
                holders = tuple(place for place in holders if place.role == "aggregated")
        if facts.may_forward and self.peers:
            peers = _usable(self.peers, now_s, exclude)
            if allowed is not None:
                peers = tuple(place for place in peers if place.region in allowed)
        if not holders and not peers:
            raise NoWorker(facts.model, served=bool(self.holders or self.peers))
        if holders is self.holders and decodes is self.decodes and len(peers) == len(self.peers):
            return self  # all of it, as almost always
        return Choices(self.region, holders, decodes, peers, self.mask, self.split)


class Prompt(NamedTuple):
    """A prompt as the index and the learned ratio see it."""

    tokens: int
    bytes_per_token: float
    match: Match

    def tokens_of(self, prefix_bytes: int) -> int:
        """Tokens of a prefix; never the whole prompt, because an engine computes at least the last token."""
        return min(int(prefix_bytes / self.bytes_per_token), self.tokens - 1)

    def held(self, place: Place) -> tuple[int, Held]:
        """What of the prompt the place has in its tiers: bytes in all, and tokens of each."""
        matched = self.match.bytes_by_slot
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


# A place with what it would cost: cost, then a number that is different in each, so that no comparison goes on to the
# rest: place, bytes matched, what is held, uncached tokens, and a candidate's seconds from network to churn, and its
# note. Plain tuples, because one is made for each place and each request.
_Row = tuple[
    float, int, Place, int, Held, int, float, float, float, float, float, float, float, float, float, str
]  # fmt: skip


class Reasons(Sequence[Candidate]):
    """The cheapest places, the chosen one first; at most `MAX_REASONS`. Equal to the tuple of them.

    Candidates are made when somebody looks: few decisions are ever looked at, and each has been taken by then.
    """

    __slots__ = ("_made", "_rows", "_winner")

    def __init__(self, rows: list[_Row], winner: _Row) -> None:
        self._rows = rows
        self._winner = winner
        self._made: tuple[Candidate, ...] | None = None

    def made(self) -> tuple[Candidate, ...]:
        """All of them."""
        if self._made is None:
            others = sorted([row for row in self._rows if row is not self._winner])
            self._made = tuple([_candidate(row) for row in (self._winner, *others[: MAX_REASONS - 1])])
            self._rows = []
        return self._made

    @overload
    def __getitem__(self, at: int) -> Candidate: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, at: int | slice) -> Candidate | tuple[Candidate, ...]:
        return self.made()[at]

    def __len__(self) -> int:
        return len(self.made())

    def __eq__(self, other: object) -> bool:
        return self.made() == (other.made() if isinstance(other, Reasons) else other)

    def __hash__(self) -> int:
        return hash(self.made())

    def __repr__(self) -> str:
        return repr(self.made())


def place_by_cost(
    facts: Facts, choices: Choices, prompt: Prompt, home: str | None, traffic: Traffic, now_s: float
) -> Decision:
    """The cheapest place. `choices` are usable ones, not empty; `home` is a region or None."""
    decode, decode_s = _best_decode(facts, choices.decodes, now_s)
    prices = _prices(choices, prompt, traffic, now_s)
    rows = _local_rows(facts, choices.holders, prompt, prices, decode, decode_s, now_s)
    if facts.derived and any(prompt.match.bytes_by_slot.values()):
        home = None  # equal prompts share a derived key: it counts only where no prefix is known at all
    if choices.peers:
        rows += _peer_rows(facts, choices.peers, prompt, prices, home, now_s)
    cheapest = min(rows)
    tied = [row for row in rows if row[0] == cheapest[0]]
    if len(tied) > 1:
        cheapest = _settle_tie(tied, facts, home)
    return _decision(cheapest, rows, decode, choices.region, prompt, "cost")


def place_in_turn(choices: Choices, prompt: Prompt, turn: int) -> Decision:
    """Round robin, for comparison: the `turn`-th unit of this region, whatever is cached where. Never forwards."""
    place = choices.holders[turn % len(choices.holders)]
    decode = choices.decodes[turn % len(choices.decodes)] if choices.decodes else None
    matched, held = prompt.held(place)
    uncached = prompt.tokens - sum(held)
    row = (0.0, 0, place, matched, held, uncached, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "in turn")
    return _decision(row, [row], decode, choices.region, prompt, "round_robin")


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
    _, slowed = waits_s([place.load for place in decodes], now_s)
    least = min(slowed)
    least_s = least * facts.expected_output_tokens
    if slowed.count(least) == 1:
        return decodes[slowed.index(least)], least_s
    key = _rendezvous_key(facts)
    best = [place for place, slowdown in zip(decodes, slowed, strict=True) if slowdown == least]
    return max(best, key=lambda place: rendezvous(key, place.id)), least_s


def _prices(choices: Choices, prompt: Prompt, traffic: Traffic, now_s: float) -> Prices:
    """What this prompt's uncached tokens cost others, by where the fleet stands now."""
    holders = choices.holders
    loads = [place.load for place in holders or choices.peers]
    count = len(loads)
    busy, returning_per_s = traffic.of_each(count, now_s)
    bytes_by_slot, shared = prompt.match.bytes_by_slot, prompt.match.shared
    best = max(bytes_by_slot.values(), default=0)
    inserted: list[float] = []
    if holders and best <= (shared[-1][0] if shared else 0):
        inserted = [load.inserted.tokens(now_s) for load in loads]
    return Prices(
        bytes_per_token=prompt.bytes_per_token,
        s_per_token=sum([load.prefill_s_per_token for load in loads]) / count,
        shared=shared,
        best=best,
        places=count,
        busy=busy,
        returning_per_s=returning_per_s,
        inserted=inserted,
    )


def _local_rows(
    facts: Facts,
    holders: Sequence[Place],
    prompt: Prompt,
    prices: Prices,
    decode: Place | None,
    paired_s: float,
    now_s: float,
) -> list[_Row]:
    rows: list[_Row] = []
    add = rows.append
    tokens, output_tokens = prompt.tokens, facts.expected_output_tokens
    all_transfer_s = tokens * TRANSFER_S_PER_TOKEN
    matched_by_slot = prompt.match.bytes_by_slot
    delayed_per_s = prices.delayed_per_s
    none = NOTHING_HELD, tokens, prices.reuse_s(0)
    held_by_matched = {0: none}  # with uncached tokens and the reuse price: few differ
    queues_s, slowdowns_s = waits_s([place.load for place in holders], now_s)
    churns_s_per_token = prices.churn_s_per_token or [0.0] * len(holders)
    columns = zip(holders, queues_s, slowdowns_s, churns_s_per_token, strict=True)
    for number, (place, queue_s, slowdown_s, churn_s_per_token) in enumerate(columns):
        load = place.load
        load_s = transfer_s = 0.0
        note = ""
        if place.tiered:
            matched, held = prompt.held(place)
            uncached, reuse_s, load_s = tokens - sum(held), prices.reuse_s(matched), load.moves.seconds(held)
        else:
            matched, known = 0, none
            if place.slot in matched_by_slot:
                matched = matched_by_slot[place.slot]
                if matched not in held_by_matched:
                    held = Held(prompt.tokens_of(matched), 0, 0)
                    held_by_matched[matched] = held, tokens - held.device, prices.reuse_s(matched)
                known = held_by_matched[matched]
            held, uncached, reuse_s = known
        compute_s = uncached * load.prefill_s_per_token
        others_s = delayed_per_s * queue_s * compute_s
        churn_s = churn_s_per_token * uncached
        if decode is not None and place.role == "prefill":
            decode_s, transfer_s, note = paired_s, all_transfer_s, decode.id
        else:
            decode_s = slowdown_s * output_tokens
        cost_s = queue_s + compute_s + load_s + decode_s + transfer_s + others_s + reuse_s + churn_s
        add((cost_s, number, place, matched, held, uncached, 0.0, queue_s, compute_s, load_s, decode_s, transfer_s,
             others_s, reuse_s, churn_s, note))  # fmt: skip
    return rows


def _peer_rows(
    facts: Facts, peers: Sequence[Place], prompt: Prompt, prices: Prices, home: str | None, now_s: float
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
        held = Held(prompt.tokens_of(matched), 0, 0)
        uncached = prompt.tokens - held.device
        queue_s = place.load.queue_s(now_s)
        compute_s = uncached * prices.s_per_token
        others_s = prices.delayed_per_s * queue_s * compute_s
        reuse_s = prices.reuse_s(matched)
        churn_s = prices.mean_churn_s_per_token * uncached
        cost_s = network_s + queue_s + compute_s + others_s + reuse_s + churn_s
        # Numbered below local rows: of equal ones, this region comes first in the reasons.
        rows.append(
            (cost_s, _PEER + number, place, matched, held, uncached, network_s, queue_s, compute_s, 0.0, 0.0, 0.0,
             others_s, reuse_s, churn_s, note)
        )  # fmt: skip
    return rows


def _settle_tie(tied: list[_Row], facts: Facts, home: str | None) -> _Row:
    """The winner among the cheapest: a home next door, then this region, then by rendezvous."""
    peers = [row for row in tied if row[1] >= _PEER]
    homes = [row for row in peers if row[2].region == home]
    key = _rendezvous_key(facts)
    candidates = homes or tied[: len(tied) - len(peers)] or peers
    return max(candidates, key=lambda row: rendezvous(key, row[2].id))


def _decision(
    winner: _Row, rows: list[_Row], decode: Place | None, region: str, prompt: Prompt, policy: Policy
) -> Decision:
    place, matched, held, uncached = winner[2:6]
    bytes_by_slot = prompt.match.bytes_by_slot
    own = (place.slot, place.host_slot, place.store_slot)
    elsewhere = 0
    for slot, length in bytes_by_slot.items():
        if length > elsewhere and slot not in own:
            elsewhere = length
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
        predicted=held,
        known_tokens=prompt.tokens_of(prompt.match.known_bytes),
        best_elsewhere_tokens=prompt.tokens_of(elsewhere),
        prompt_tokens_est=prompt.tokens,
        reasons=cast("tuple[Candidate, ...]", Reasons(rows, winner)),  # what a record gives back
        policy=policy,
        holder=place.id,
        matched_bytes=matched,
    )


def _candidate(row: _Row) -> Candidate:
    cost_s, _, place, _, held, uncached, *terms, note = row
    return Candidate._make((place.id, cost_s, *terms, uncached, held.host, held.storage, note))


def _usable(places: tuple[Place, ...], now_s: float, exclude: frozenset[str]) -> tuple[Place, ...]:
    if not exclude and all([place.load.ready for place in places]):  # noqa: C419 - a list is faster than a generator
        return places
    return tuple([place for place in places if place.load.usable(now_s) and place.id not in exclude])


def _rendezvous_key(facts: Facts) -> int:
    return facts.lineage if facts.session is None else facts.session
