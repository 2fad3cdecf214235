"""Chooses the cheapest worker or peer region for a prompt, and makes the decision with its reasons.

`costs` defines the cost. A conversation's home is the worker, or the other region, that served its previous turn. While
the home is idle, it wins, because the prefix is cached there. A busy home loses to an idle worker without the prefix if
computing the prefix again is cheaper for the fleet than waiting. But a turn of a known conversation stays at a home
that has capacity, unless moving saves time for the turn itself (see below). Nothing else ties a session to a worker.

Text that the previous turn has certainly cached in the home *region* (`homes`) counts as cached there, even if this
proxy's index does not know it. If the session was only guessed from the prompt, a home that may be wrong is used only
if the index does not know any prefix of the prompt.

Ties are broken in favour of the home region, then of this region, then by rendezvous hash of (session, worker), so that
replicas agree without communication.

Workers that differ only by their queues form a group. No worker of a group costs less than it would with an empty
queue. Groups are examined from the longest cached prefix on, and a group whose least possible cost exceeds the best
cost so far is skipped. So a known conversation is placed without examining most of the fleet. The costs at the other
workers are computed only when the decision's reasons are read, from the values in `Weighed`.
"""

import math
from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.cache.index import Match
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.cache.tiers import NOTHING_HELD, Held, cacheable_tokens
from warmroute_proxy.core.load.ahead import Ahead, OthersAhead, waits_s
from warmroute_proxy.core.load.traffic import Traffic
from warmroute_proxy.core.placement.choices import Choices, WorkerState
from warmroute_proxy.core.placement.costs import Group, PeerCost, costs_s, groups_of, peer_costs
from warmroute_proxy.core.placement.decision import MAX_REASONS, Candidate, Decision, Reasons
from warmroute_proxy.core.placement.homes import Home, repeats
from warmroute_proxy.core.placement.matched_prompt import MatchedPrompt
from warmroute_proxy.core.placement.prices import CHURN, PromptPrices, churn_s
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

# A known conversation stays where its prefix is cached (warm).
#
# The last three terms of a cost (`others`, `reuse`, `churn`) are what a placement costs all other requests. They decide
# where a new conversation settles, and where a shared prefix gets its next copy. They do not move a warm conversation,
# because its own turn would have to wait for the new copy. So a turn of a known conversation goes home while its home
# has capacity, unless the cheapest place is also cheaper by the terms of the turn's own time (network, queue, compute,
# load, decode, transfer).
#
# Home is the worker of this region that computed the previous turn, or the other region that did. A conversation is
# known if its previous turn is known. A session that is derived from the prompt is a guess, and several conversations
# can share it. Its conversation is known only if the prompt repeats the whole previous turn; a first turn is always
# new.

NOWHERE: Final = -1


def is_known(routing: RoutingRequest, last_turn: SettledTurn | None) -> bool:
    """Whether a request is the next turn of a conversation whose previous turn is known."""
    if last_turn is None:
        return False
    return not routing.derived or (routing.turn > 1 and repeats(routing.chain, last_turn))


def home_number(choices: Choices, last_turn: SettledTurn, home: Home | None) -> int:
    """The number of the home, counted over cache workers and then peers; `NOWHERE` if the home cannot be used."""
    if last_turn.region == choices.region:
        for number, worker in enumerate(choices.cache_workers):
            if worker.id in last_turn.workers:
                return number
        return NOWHERE
    if home is None or not home.certain:
        return NOWHERE
    for number, peer in enumerate(choices.peers, len(choices.cache_workers)):
        if peer.region == home.region:
            return number
    return NOWHERE


def has_capacity(choices: Choices, number: int) -> bool:
    """Whether a worker would run another request now. True for a peer region, whose bounds are not known here."""
    if number >= len(choices.loads):
        return True
    load = choices.loads[number]
    return load.has_slots() and load.prefills.tokens < load.capacity.prefill


def own_s(
    number: int,
    groups: Sequence[Group],
    ahead: Sequence[Ahead],
    peers: Sequence[PeerCost],
    output_tokens: int,
    now_s: float,
) -> float:
    """The sum of those terms of a cost that are the request's own time."""
    if number >= len(ahead):
        there = peers[number - len(ahead)].candidate
        return there.network_s + there.queue_s + there.compute_s
    queue_s, slowdown_s = waits_s(ahead[number], now_s)
    found_s = queue_s + slowdown_s * output_tokens
    for group in groups:
        if number in group.numbers:
            return found_s + group.compute_s + group.load_s + group.transfer_s
    return found_s


_MASK_64: Final = (1 << 64) - 1


class Weighed(Frozen, frozen=True):
    """All values on which the costs of a decision depend.

    Workers are numbered from 0 in the order of `cache_workers`, and then peers in the order of `peers`. `ahead`: one
    entry for each cache worker. `decode_id`: the decode worker that would be the partner of a prefill worker.
    """

    cache_workers: tuple[WorkerState, ...]
    groups: list[Group]
    ahead: list[Ahead]
    churn_s_per_inserted: float
    peers: list[PeerCost]
    output_tokens: int
    decode_id: str
    now_s: float

    def or_home(
        self, winner: int, cheapest: tuple[int, ...], choices: Choices, last_turn: SettledTurn | None, home: Home | None
    ) -> int:
        """The number of the home if a known conversation stays there, otherwise `winner`."""
        assert last_turn is not None
        at_home = winner
        if winner >= len(self.ahead) or self.cache_workers[winner].id not in last_turn.workers:
            at_home = home_number(choices, last_turn, home)
        if at_home in {winner, NOWHERE} or not has_capacity(choices, at_home):
            return winner
        if at_home in cheapest:
            return at_home
        groups, ahead, peers, output_tokens = self.groups, self.ahead, self.peers, self.output_tokens
        home_s = own_s(at_home, groups, ahead, peers, output_tokens, self.now_s)
        return at_home if home_s < own_s(winner, groups, ahead, peers, output_tokens, self.now_s) else winner

    def cheapest(self) -> tuple[int, ...]:
        """The numbers of the cheapest workers and peers: several if they cost the same."""
        ahead, churn, output_tokens, now_s = self.ahead, self.churn_s_per_inserted, self.output_tokens, self.now_s
        least_s = math.inf
        cheapest: tuple[int, ...] = ()
        for group in self.groups:
            if group.idle_s > least_s:
                continue
            costs = costs_s(group, ahead, output_tokens, churn, now_s)
            group_least_s = min(costs)
            if group_least_s > least_s:
                continue
            if group_least_s < least_s:
                least_s, cheapest = group_least_s, ()
            if costs.count(least_s) == 1:
                cheapest = (*cheapest, group.numbers[costs.index(least_s)])
            else:
                cheapest += tuple([n for n, each_s in zip(group.numbers, costs, strict=True) if each_s == least_s])
        for number, peer in enumerate(self.peers, len(ahead)):
            candidate_s = peer.candidate.cost_s
            if candidate_s < least_s:
                least_s, cheapest = candidate_s, (number,)
            elif candidate_s == least_s:
                cheapest = (*cheapest, number)
        return cheapest


def place_by_cost(
    routing: RoutingRequest, choices: Choices, prompt: MatchedPrompt, home: Home | None, traffic: Traffic, now_s: float
) -> Decision:
    """Choose the cheapest worker or peer. `choices`: usable and not empty. `home`: as found by `homes`."""
    match, fork = prompt.match, prompt.fork
    ahead = [load.ahead or load.look() for load in choices.loads]
    decode, decode_id = None, ""
    if choices.decode_workers:
        decode, slowdown_s = _best_decode(routing, choices.decode_workers, now_s)
        decode_id = decode.id
        ahead = _decoding_there(choices.cache_workers, ahead, slowdown_s)
    s_per_token, count = choices.mean_s_per_token, choices.count
    best_bytes = match.drops[-1][1] if match.drops else 0
    churn = 0.0
    if fork is None and best_bytes <= (match.shared[-1][0] if match.shared else 0):
        churn = churn_s(sum([load.inserted for load in choices.loads]), len(ahead), s_per_token)
    busy, returning_per_s = traffic.of_each(count, now_s)
    prices = PromptPrices(prompt.bytes_per_token, s_per_token, match.shared, best_bytes, count, busy, returning_per_s)
    if fork is not None:
        head_tokens = best_bytes / prompt.bytes_per_token
        prices.in_fork(fork.branches if fork.covers_a_copy(head_tokens, prompt.tokens - head_tokens) else 0)
    peers: list[PeerCost] = []
    if choices.peers:
        if routing.derived and match.drops and home is not None and not home.certain:
            home = None  # a guess: this home counts only if the index knows no prefix at all
        peers = peer_costs(choices, prompt, prices, CHURN * s_per_token if churn else 0.0, home, now_s)
    groups = groups_of(choices, prompt, prices)
    weighed = Weighed(
        choices.cache_workers, groups, ahead, churn, peers, routing.expected_output_tokens, decode_id, now_s
    )
    cheapest = weighed.cheapest()
    winner = cheapest[0] if len(cheapest) == 1 else _break_tie(cheapest, routing, choices, home)
    known = is_known(routing, prompt.last_turn)
    if known and fork is None:
        winner = weighed.or_home(winner, cheapest, choices, prompt.last_turn, home)
    reasons = Reasons(None, candidates, weighed, winner)
    if winner >= len(ahead):
        there = peers[winner - len(ahead)]
        return _decision(there.peer, None, there.matched_bytes, there.held, choices, prompt, known, reasons)
    chosen = groups[0]
    for group in groups:
        if winner in group.numbers:
            chosen = group
    worker = choices.cache_workers[winner]
    return _decision(worker, decode, chosen.matched_bytes, chosen.held, choices, prompt, known, reasons)


def candidates(weighed: Weighed, winner: int, *, alone: bool = False) -> tuple[Candidate, ...]:
    """The winner, then (unless `alone`) the cheapest other candidates, with the terms of their costs."""
    churn, output_tokens, now_s = weighed.churn_s_per_inserted, weighed.output_tokens, weighed.now_s
    found: list[tuple[bool, float, int, Candidate]] = []
    for group in weighed.groups:
        costs = costs_s(group, weighed.ahead, output_tokens, churn, now_s)
        for number, worker_cost_s in zip(group.numbers, costs, strict=True):
            if alone and number != winner:
                continue
            worker, ahead = weighed.cache_workers[number], weighed.ahead[number]
            queue_s, slowdown_s = waits_s(ahead, now_s)
            candidate = Candidate(
                worker.id,
                worker_cost_s,
                0.0,
                queue_s,
                group.compute_s,
                group.load_s,
                slowdown_s * output_tokens,
                group.transfer_s,
                queue_s * group.others_s_per_queue_s,
                group.reuse_s,
                churn * ahead.inserted * group.uncached_tokens,
                group.uncached_tokens,
                group.held.host,
                group.held.storage,
                weighed.decode_id if worker.role == "prefill" else "",
            )
            found.append((number != winner, candidate.cost_s, number, candidate))
    for number, peer in enumerate(weighed.peers, len(weighed.cache_workers)):
        found.append((number != winner, peer.candidate.cost_s, number, peer.candidate))
    return tuple([candidate for _, _, _, candidate in sorted(found)[:MAX_REASONS]])


def place_round_robin(choices: Choices, prompt: MatchedPrompt, position: int) -> Decision:
    """Place by round robin, for comparison: `position` selects a worker of this region, whatever is cached. Requests
    are never forwarded.
    """
    worker = choices.cache_workers[position % len(choices.cache_workers)]
    decode = choices.decode_workers[position % len(choices.decode_workers)] if choices.decode_workers else None
    matched, held = prompt.held(worker, prompt.match.bytes_by_slot)
    reason = Candidate(
        worker.id, cost_s=0.0, network_s=0.0, queue_s=0.0, compute_s=0.0, load_s=0.0, decode_s=0.0, transfer_s=0.0,
        others_s=0.0, reuse_s=0.0, churn_s=0.0, uncached_tokens=prompt.tokens - sum(held), host_tokens=held.host,
        storage_tokens=held.storage, note="in turn",
    )  # fmt: skip
    return _decision(worker, decode, matched, held, choices, prompt, None, Reasons((reason,)))


def rendezvous(session: int, id_: str) -> int:
    """The weight of a worker for a session; the heaviest worker wins. All replicas compute equal weights."""
    return xxh3_64_intdigest(id_.encode(), session & _MASK_64)


def _best_decode(
    routing: RoutingRequest, decode_workers: Sequence[WorkerState], now_s: float
) -> tuple[WorkerState, float]:
    """The decode worker that is slowed least by its load, and by how many seconds each token is delayed there."""
    slowed = [worker.load.decode_slowdown_s(now_s) for worker in decode_workers]
    least = min(slowed)
    if slowed.count(least) == 1:
        return decode_workers[slowed.index(least)], least
    tied = [number for number, slowdown_s in enumerate(slowed) if slowdown_s == least]
    return decode_workers[_heaviest(_rendezvous_key(routing), tied, decode_workers)], least


def _decoding_there(cache_workers: Sequence[WorkerState], ahead: list[Ahead], slowdown_s: float) -> list[Ahead]:
    """For each worker, the work that a new request would wait for (`load.ahead`). For prefill workers, the slowdown is
    replaced by that of the decode worker."""
    found: list[Ahead] = []
    for worker, each in zip(cache_workers, ahead, strict=True):
        if worker.role != "prefill":
            found.append(each)
            continue
        others = each.others
        if others is not None:
            others = OthersAhead(others.until_s, others.queue_s, slowdown_s)
        found.append(Ahead(each.waits, slowdown_s, each.inserted, each.queue_s, each.since_s, each.at_work_s, others))
    return found


def _break_tie(tied: Sequence[int], routing: RoutingRequest, choices: Choices, home: Home | None) -> int:
    """The winner among the cheapest: the home region, then this region, then by rendezvous hash."""
    all_ = (*choices.cache_workers, *choices.peers)
    homes = [number for number in tied if home is not None and all_[number].region == home.region]
    here = [number for number in tied if number < len(choices.cache_workers)]
    return _heaviest(_rendezvous_key(routing), homes or here or tied, all_)


def _heaviest(session: int, tied: Sequence[int], workers: Sequence[WorkerState]) -> int:
    weights = [rendezvous(session, workers[number].id) for number in tied]
    return tied[weights.index(max(weights))]


def _decision(
    chosen: WorkerState,
    decode: WorkerState | None,
    matched: int,
    held: Held,
    choices: Choices,
    prompt: MatchedPrompt,
    known: bool | None,
    reasons: Reasons,
) -> Decision:
    """The decision for the chosen worker or peer. `known`: None for round robin, which does not compute costs."""
    match, others, moved, worker = prompt.match, ~chosen.slots & ~choices.peer_slots, 0, chosen.worker
    if matched:
        held = prompt.with_answer(chosen, matched, held)
    cached_tokens = sum(held)
    known_tokens = cached_tokens if matched == match.known_bytes else prompt.tokens_of(match.known_bytes)
    for mask, length in match.drops:  # from the shortest prefix to the longest
        if mask & others:
            moved = length
    if worker is not None and cached_tokens + worker.page_tokens >= prompt.tokens:
        cached_tokens = min(cached_tokens, cacheable_tokens(prompt.tokens, worker.page_tokens))
        held = held.within(cached_tokens)
    other_region, other_region_bytes = _other_region(chosen, choices, match) if choices.peer_slots else ("", 0)
    prefill = partner = None
    if decode is not None and chosen.role == "prefill":
        prefill, partner, worker = worker, decode.worker, None
    return Decision(
        "forward" if chosen.worker is None else "local",
        chosen.region if chosen.worker is None else choices.region,
        prefill,
        partner,
        worker,
        cached_tokens,
        held if matched else NOTHING_HELD,
        known_tokens,
        known_tokens if moved == match.known_bytes else prompt.tokens_of(moved),
        prompt.tokens,
        reasons,
        "round_robin" if known is None else "cost",
        chosen.id,
        matched,
        other_region,
        prompt.tokens_of(other_region_bytes) if other_region_bytes else 0,
        match.shared[-1][0] if match.shared else 0,
        known,
        prompt.tokens_of(prompt.restarted_bytes) if prompt.restarted_bytes else 0,
        head_bytes=prompt.head_bytes,
        branches=0 if prompt.fork is None else prompt.fork.branches,
    )


def _other_region(chosen: WorkerState, choices: Choices, match: Match) -> tuple[str, int]:
    """The region that has most of the prompt cached, except the chosen region, and the cached bytes. An empty name if
    no region has any.
    """
    region, most = "", 0
    for mask, length in match.drops:  # from the shortest prefix to the longest
        if mask & choices.peer_slots:
            for peer in choices.known_peers:
                if mask >> peer.slot & 1 and peer is not chosen:
                    region, most = peer.region, length
    return region, most


def _rendezvous_key(routing: RoutingRequest) -> int:
    return routing.lineage if routing.session is None else routing.session
