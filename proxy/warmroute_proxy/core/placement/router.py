"""Decides where each request goes, and learns from the results.

For each attempt of a request the server calls `place` and `dispatched`, then `first_token` and `progress` as the stream
goes on, and at the end either `settled` or `failed`. The router holds all state. Its calls are its only inputs: it has
no clock and no I/O. So recorded traffic that is replayed through a router gives the same decisions.

The prompt of a dispatched request counts as cached at its worker before the engine has computed it; otherwise sessions
would be scattered under overload. This is correct because an engine computes prompts in order of arrival: when the
engine reaches a later request, the earlier prompt is cached. The wait until then is in the queue term of the later
request's cost. Histories that a worker must have evicted by now (`cache.occupancy`) do not count. A router serves one
region, on one thread.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from warmroute_proxy.core.accounting.losses import Seen
from warmroute_proxy.core.base.compiled import Frozen, mypyc_attr
from warmroute_proxy.core.cache.affinity import Affinity
from warmroute_proxy.core.cache.index import PrefixIndex
from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.core.cache.tiers import Tier, cacheable_tokens
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.accuracy import Accuracy
from warmroute_proxy.core.placement.choices import (
    Choices,
    NoWorker,
    WorkerState,
    has_idle_prefill,
    is_full,
    may_forward,
)
from warmroute_proxy.core.placement.decision import Decision, Policy
from warmroute_proxy.core.placement.fleet import Peer, Worker, peer_id
from warmroute_proxy.core.placement.fleet_state import Fleet
from warmroute_proxy.core.placement.forks import MIN_HEAD_TOKENS, MIN_OWN_TOKENS, Forks, branches_under_way
from warmroute_proxy.core.placement.histories import Histories
from warmroute_proxy.core.placement.homes import home_key, home_of, regional, repeats
from warmroute_proxy.core.placement.in_flight import InFlight
from warmroute_proxy.core.placement.listener import Listener
from warmroute_proxy.core.placement.matched_prompt import MatchedPrompt
from warmroute_proxy.core.placement.placement import place_by_cost, place_round_robin
from warmroute_proxy.core.placement.seen import seen_of, under_way
from warmroute_proxy.core.placement.ticket import Ticket
from warmroute_proxy.core.placement.waits import Waits, WaitsElsewhere
from warmroute_proxy.core.placement.working_set import SMALL_TOKENS
from warmroute_proxy.core.prompt.bytes_per_token import BytesPerToken, bounded_bytes_per_token
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

__all__ = ["Decision", "NoWorker", "Router", "Settled", "SettledTurn", "Ticket"]


class Settled(Frozen, frozen=True):
    """The result of an attempt. `error_tokens`: predicted minus reported cached tokens; None without a report."""

    error_tokens: int | None
    predicted_cached_tokens: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Router:
    """Places the requests of one region on its workers and peer regions. Each method takes the time as an argument."""

    def __init__(
        self,
        region: str,
        workers: Iterable[Worker],
        peers: Iterable[Peer] = (),
        policy: Policy = "cost",
        *,
        index: PrefixIndex | None = None,
        affinity: Affinity | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._region = region
        self._policy: Policy = policy
        self.listeners = listeners
        self.fleet = Fleet(region, PrefixIndex() if index is None else index)
        self.working_set = self.fleet.working_set
        self.waits_elsewhere = WaitsElsewhere()
        self._affinity = Affinity() if affinity is None else affinity
        self._bytes_per_token = BytesPerToken()
        self.histories = Histories()
        self.in_flight = InFlight(self.fleet, self.histories)
        self._accuracy = Accuracy()
        self._forks = Forks()
        self._round_robin = 0  # requests placed by round robin
        for worker in workers:
            self.fleet.add_worker(worker, serves_traffic=self._affinity.lineages > 0)
        for peer in peers:
            if peer.region != region:
                self.fleet.add_peer(peer)

    # Decisions

    def place(self, routing: RoutingRequest, now_s: float, exclude: frozenset[str] = frozenset()) -> Decision:
        """Choose where a request goes, or raise `NoWorker`. `exclude`: ids of workers and regions that failed."""
        if not self.listeners:
            return self._place(routing, now_s, exclude)
        for each in self.listeners:
            each.before_reading()
        try:
            decision = self._place(routing, now_s, exclude)
        except NoWorker as error:
            for each in self.listeners:
                each.placed(routing, exclude, None, error.served, now_s)
            raise
        for each in self.listeners:
            each.placed(routing, exclude, decision, True, now_s)
        return decision

    def _place(self, routing: RoutingRequest, now_s: float, exclude: frozenset[str]) -> Decision:
        fleet = self.fleet
        fleet.level_rates_and_forget_paces(now_s)
        choices = fleet.choices(routing.model)
        last_turn = self._affinity.last_settled(routing.lineage, routing.chain, routing.turn)
        if self._policy == "round_robin":
            usable = choices.alone().usable(routing, now_s, exclude)
            self._round_robin += 1
            return place_round_robin(usable, self._match(routing, choices, last_turn, now_s), self._round_robin - 1)
        usable = choices.usable(routing, now_s, exclude)
        home = None
        if usable.peers:
            regions = [peer.region for peer in usable.peers]
            home = home_of(routing, last_turn, self._affinity, self._region, regions)
        prompt = self._match(routing, choices, last_turn, now_s)
        return place_by_cost(routing, usable, prompt, home, fleet.traffic, now_s)

    def has_capacity(self, model: str, decision: Decision, now_s: float) -> bool:
        """Whether a request with this decision would run now, rather than wait inside the engine (`load.load`)."""
        fleet = self.fleet
        load = fleet.workers[decision.cache_worker].load
        if not load.has_slots():
            return False
        if decision.decode is not None and not fleet.workers[decision.decode.id].load.has_slots():
            return False
        return load.prefills.tokens < load.capacity.prefill or has_idle_prefill(fleet.choices(model), now_s)

    def has_capacity_at(self, model: str, worker_id: str, now_s: float) -> bool:
        """Whether a worker would run another request for a model now. True if the worker is unusable, because requests
        do not wait for such a worker.
        """
        worker = self.fleet.workers.get(worker_id)
        if worker is None or not worker.load.availability.is_usable(now_s):
            return True
        load = worker.load
        return load.has_slots() and (
            load.prefills.tokens < load.capacity.prefill or has_idle_prefill(self.fleet.choices(model), now_s)
        )

    def next_end_s(self, worker_id: str, now_s: float) -> float:
        """Expected seconds between the ends of two requests at a worker (`Departures`); 0 if the worker is unknown."""
        worker = self.fleet.workers.get(worker_id)
        return 0.0 if worker is None else worker.load.departures.next_s(worker.load.running, now_s)

    def is_full(self, model: str, now_s: float) -> bool:
        """Whether no worker of a model has capacity. False if a peer region is usable."""
        return is_full(self.fleet.choices(model), now_s)

    def may_forward(self, model: str, now_s: float) -> bool:
        return may_forward(self.fleet.choices(model), now_s)

    def full(self, model: str) -> frozenset[str]:
        """The ids of a model's workers without a free slot, which would queue another request in the engine."""
        choices = self.fleet.choices(model)
        workers = (*choices.cache_workers, *choices.decode_workers)
        return frozenset(worker.id for worker in workers if not worker.load.has_slots())

    def are_only_usable(self, model: str, worker_ids: Collection[str], now_s: float) -> bool:
        """Whether a model has no other usable worker of the kind of these (computing prompts, or only decoding)."""
        choices = self.fleet.choices(model)
        decode = any(worker.id in worker_ids for worker in choices.decode_workers)
        workers = choices.decode_workers if decode else choices.cache_workers
        return not any(worker.load.availability.is_usable(now_s) for worker in workers if worker.id not in worker_ids)

    def engine_of(self, worker_id: str) -> str:
        """The engine of a worker. Any other id stands for itself."""
        state = self.fleet.workers.get(worker_id)
        return worker_id if state is None or state.worker is None else state.worker.engine

    def ranks_beside(self, worker_ids: Collection[str]) -> frozenset[str]:
        """The ids of all workers (ranks) of the engines that these workers belong to."""
        engines = {self.engine_of(id_) for id_ in worker_ids}
        return frozenset(id_ for id_ in self.fleet.workers if self.engine_of(id_) in engines)

    def reports_hits(self, worker_id: str) -> bool:
        """Whether a worker has reported any token as cached since it started."""
        worker = self.fleet.workers.get(worker_id)
        return worker is not None and worker.load.occupancy.reports

    def running(self, worker_id: str) -> int:
        worker = self.fleet.workers.get(worker_id)
        return 0 if worker is None else worker.load.running

    # Attempts

    def dispatched(self, routing: RoutingRequest, decision: Decision, now_s: float) -> Ticket:
        """A request was sent as decided: add its load, and count its prefix as cached at the cache worker."""
        workers = self.fleet.workers
        cache_worker = workers[decision.cache_worker]
        decode_worker = workers[decision.decode.id] if decision.decode is not None else cache_worker
        local = decode_worker if decision.kind == "local" else None
        chain, tokens, cached = routing.chain, decision.prompt_tokens_est, decision.predicted_cached_tokens
        from_cut = bisect_right(chain.ends, decision.matched_bytes)
        ticket = Ticket(
            chain, cache_worker, local, routing.sequences, from_cut, tokens, cached, decision=decision
        )  # fmt: skip
        ticket.shared_bytes = decision.shared_bytes
        if cache_worker.load.prefills.tokens or decision.other_worker_tokens > cached:
            ticket.behind = under_way(self.fleet, cache_worker, decision)
        ticket.tenant = routing.tenant
        load = cache_worker.load
        if cache_worker.tiered:
            ticket.moving_tokens = int(load.moves.seconds(decision.predicted) / load.prefill_s_per_token)
        if (head_bytes := decision.head_bytes) > 0:  # other prompts may branch off after the same head
            ends, at = chain.ends, from_cut
            if head_bytes != decision.matched_bytes:
                at = bisect_right(ends, head_bytes)
            cut, head_tokens, before = chain.hashes[at - 1], tokens * head_bytes // ends[-1], None
            if decision.branches:
                before = self._forks.of(cut, head_tokens * load.prefill_s_per_token, now_s)
            self._forks.sent(cut, tokens - head_tokens, cached < head_tokens // 2, before, now_s)
        begins = self._begins(routing)
        self.in_flight.begin(ticket, begins, cached / tokens, now_s)
        self.histories.dispatched(routing.lineage, ticket)
        self.working_set.sent(ticket, routing.expects, home_key(routing))
        for each in self.listeners:
            each.dispatched(ticket, routing, begins, now_s)
        return ticket

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        """The engine has computed the prompt. A second call, or a call after the end of the attempt, has no effect."""
        is_first = not ticket.computed
        self.in_flight.first_token(ticket, now_s)
        for each in self.listeners:
            each.first_token(ticket, is_first, now_s)

    def progress(self, ticket: Ticket, completion_tokens: int) -> None:
        """The stream has had `completion_tokens` since its beginning (not since the last call)."""
        self.in_flight.progress(ticket, completion_tokens)
        for each in self.listeners:
            each.progress(ticket, completion_tokens)

    def settled(
        self,
        ticket: Ticket,
        routing: RoutingRequest,
        now_s: float,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        completion_tokens: int | None,
        streamed_tokens: int | None = None,
    ) -> Settled:
        """An attempt succeeded: remove its load, and learn from its counts. A count is None if the engine did not
        report it.

        `completion_tokens`: the answer's tokens that the next prompt will contain. `streamed_tokens`: all tokens that
        were streamed.
        """
        expected = self.working_set.expected(ticket) if self.listeners else 0
        for each in self.listeners:
            each.ending(ticket, now_s)
        self.in_flight.end(ticket, now_s, streamed_tokens)
        predicted = ticket.decision.predicted_cached_tokens
        if prompt_tokens is not None and predicted:
            worker = ticket.cache_worker.worker
            if worker is not None and predicted + worker.page_tokens >= prompt_tokens:
                predicted = min(predicted, cacheable_tokens(prompt_tokens, worker.page_tokens))
        error = self._accuracy.observe(predicted, cached_tokens)
        self.end_history(ticket, routing.lineage, prompt_tokens, cached_tokens, completion_tokens)
        turn = self._settled_turn(ticket, routing, prompt_tokens, cached_tokens, completion_tokens)
        home, thread = home_key(routing), routing.thread
        self.remember(routing.model, routing.lineage, routing.chain, turn, home, thread, routing.tenant)
        for each in self.listeners:
            each.settled(ticket, routing, turn, streamed_tokens, expected, now_s)
        return Settled(error, predicted)

    def failed(self, ticket: Ticket, now_s: float, at_fault: Collection[str]) -> None:
        """An attempt failed. `at_fault`: ids of workers, or `region:<name>`; empty if the client left."""
        self.in_flight.fail(ticket, now_s, at_fault)
        for each in self.listeners:
            each.failed(ticket, at_fault, now_s)

    # The fleet

    def add_worker(self, worker: Worker) -> None:
        """Add a worker at run time. A worker with this id is replaced, but its load and cache stay."""
        self.fleet.add_worker(worker, serves_traffic=self._affinity.lineages > 0)
        for each in self.listeners:
            each.updated("add_worker", worker)

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker. Unknown ids are ignored here and below: a probe may end after the removal of its worker."""
        self.fleet.remove_worker(worker_id)
        for each in self.listeners:
            each.updated("remove_worker", worker_id)

    def worker_restarted(self, worker_id: str) -> None:
        """An engine restarted: its cache is lost, except for what it wrote to a store."""
        self.fleet.worker_restarted(worker_id)
        for each in self.listeners:
            each.updated("worker_restarted", worker_id)

    def set_draining(self, worker_id: str, draining: bool) -> None:
        """A draining worker finishes its requests and gets no new ones."""
        self.fleet.set_draining(worker_id, draining)
        for each in self.listeners:
            each.updated("set_draining", worker_id, draining)

    def set_up(self, worker_id: str, up: bool) -> None:
        self.fleet.set_up(worker_id, up)
        for each in self.listeners:
            each.updated("set_up", worker_id, up)

    def set_peer_up(self, region: str, up: bool) -> None:
        """Apply the result of a probe of a peer region."""
        self.fleet.set_up(peer_id(region), up)
        for each in self.listeners:
            each.updated("set_peer_up", region, up)

    def suspect_peer(self, region: str) -> None:
        """The last probe of a peer region got no answer. Until the next probe, a request is sent there only if no other
        worker or region can serve it.
        """
        self.fleet.suspect(peer_id(region))
        for each in self.listeners:
            each.updated("suspect_peer", region)

    def observe_loads(self, worker_id: str, loads: EngineLoads, now_s: float) -> None:
        """Apply what an engine reports at `/v1/loads`."""
        self.fleet.observe_loads(worker_id, loads, now_s)
        for each in self.listeners:
            each.updated("observe_loads", worker_id, loads, now_s)

    def observe_moves(self, worker_id: str, tier: Tier, tokens: int, seconds: float) -> None:
        """Learn that a worker took `seconds` to move `tokens` out of a `tier` (`host` or `storage`)."""
        self.fleet.observe_moves(worker_id, tier, tokens, seconds)
        for each in self.listeners:
            each.updated("observe_moves", worker_id, tier, tokens, seconds)

    def cache_stored(self, worker_id: str, keys: list[int], tier: Tier) -> None:
        """A worker now holds these prefixes in a tier. `keys`: the hashes of the prefixes."""
        self.fleet.cache_stored(worker_id, keys, tier)
        for each in self.listeners:
            each.updated("cache_stored", worker_id, keys, tier)

    def cache_removed(self, worker_id: str, keys: list[int], tier: Tier) -> None:
        self.fleet.cache_removed(worker_id, keys, tier)
        for each in self.listeners:
            each.updated("cache_removed", worker_id, keys, tier)

    def cache_cleared(self, worker_id: str) -> None:
        """Forget what a worker holds on the device and in host memory: the cache is empty, or its content is
        unknown.
        """
        self.fleet.cache_cleared(worker_id)
        for each in self.listeners:
            each.updated("cache_cleared", worker_id)

    def observe_session(self, session: int, returns: int, now_s: float) -> None:
        """A client says how soon its session, or one conversation of the session, returns (`cache.return_times`).
        Unknown sessions are ignored.
        """
        self.working_set.observe_session(session, returns, now_s)
        for each in self.listeners:
            each.updated("observe_session", session, returns, now_s)

    def announce_waits(self, waits: Waits, now_s: float) -> None:
        """Tell the other processes, through the listeners, what waits for memory in the queue of this process."""
        for each in self.listeners:
            each.waits(waits, now_s)

    # Other regions

    def observe_turn(self, turn: RegionalTurn, now_s: float) -> None:
        self.learn_turn(turn)
        for each in self.listeners:
            each.updated("observe_turn", turn, now_s)

    def learn_turn(self, turn: RegionalTurn) -> None:
        """Learn a turn of another region without telling listeners."""
        self._affinity.observe(turn)
        if turn.new:
            self.fleet.cache_stored(peer_id(turn.turn.region), turn.new, "device")

    def regional_turn(
        self,
        ticket: Ticket,
        routing: RoutingRequest,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> RegionalTurn:
        """A turn of this region, as it is announced to other regions. Counts are None until the turn has settled."""
        turn = self._settled_turn(ticket, routing, prompt_tokens, cached_tokens, completion_tokens)
        before = self._affinity.last_settled(routing.lineage, routing.chain, 1)
        return regional(routing, home_key(routing), turn, before)

    # What is known

    def last_settled(self, routing: RoutingRequest) -> SettledTurn | None:
        """The most recent settled turn that a request continues: of its lineage (conversation branch), or of its
        thread.

        The thread is the lineage without its system prompt, and counts if the client has changed the system prompt.
        This is possible only from turn 2 on: titles and compactions, which have other system prompts anyway, are turn
        1. If a lineage has more conversations than are remembered, a request continues only a turn that it repeats.
        """
        turn = self._affinity.last_settled(routing.lineage, routing.chain, routing.turn)
        if turn is not None and self._affinity.is_full(routing.lineage) and not repeats(routing.chain, turn):
            return None
        if turn is None and routing.thread is not None and routing.turn > 1:
            return self._affinity.last_of_thread(routing.thread)
        return turn

    def last_number(self, lineage: int) -> int | None:
        return self._affinity.last_number(lineage)

    def turns_before(self, routing: RoutingRequest, last_number: int, is_compacted: Callable[[], bool]) -> int:
        """How many turns a compaction took out of a prompt.

        If the prompt repeats a known turn, the number is that turn's `turns_before`. If it repeats no known turn, and
        `is_compacted`, it follows the newest turn of its lineage, number `last_number`. For any other prompt the number
        is 0, because the prompt may be a fork (another branch of the conversation).
        """
        turn = self._affinity.last_settled(routing.lineage, routing.chain, routing.turn)
        if turn is not None and repeats(routing.chain, turn):
            return turn.turns_before
        before = last_number + 1 - routing.turn
        return before if before > 0 and is_compacted() else 0

    def seen(self, ticket: Ticket, prompt_tokens: int) -> Seen:
        """Collect what may explain that a turn found less cached than expected. Called before `settled`."""
        return seen_of(self.fleet, ticket, prompt_tokens)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        for each in self.listeners:
            each.before_reading()
        fleet = self.fleet
        fleet.level_rates()
        states = fleet.workers.values()
        return {
            "region": self._region,
            "policy": self._policy,
            "workers": {
                state.id: {"engine": state.worker.engine, "dp_rank": state.worker.dp_rank, "role": state.worker.role}
                | state.load.as_dict(now_s)
                for state in states
                if state.worker is not None
            },
            "peers": {
                state.target.region: {"rtt_s": state.target.rtt_s} | state.load.as_dict(now_s)
                for state in states
                if isinstance(state.target, Peer)
            },
            "index": {"entries": fleet.index.entries, "rotations": fleet.index.rotations},
            "affinity": {"lineages": self._affinity.lineages, "sessions": self._affinity.sessions},
            "bytes_per_token": self._bytes_per_token.as_dict(),
            "prediction": self._accuracy.as_dict(),
        }

    def waits_at_door(self, routing: RoutingRequest) -> bool:
        """Whether a turn would begin a session, and so has to wait while the door (`queue.door`) is shut: it is the
        first turn of its conversation, and neither its session nor its parent session has begun. A short first turn,
        such as a title, does not begin a session.
        """
        if not self._begins(routing) or self.working_set.knows(routing.lineage):
            return False
        sessions = [each for each in (home_key(routing), routing.parent) if each is not None]
        return not any(self._has_begun(session, routing.model) for session in sessions)

    def _has_begun(self, session: int, model: str) -> bool:
        if self.working_set.holds_kv(session):
            return True
        turn = self._affinity.longest(session)
        if turn is None:
            return False
        return turn.turn > 1 or turn.prompt_bytes >= SMALL_TOKENS * self._bytes_per_token.of(model)

    def estimated_tokens(self, routing: RoutingRequest) -> int:
        """The tokens of a prompt, estimated by the bytes per token of its model."""
        return math.ceil(routing.chain.total_bytes / self._bytes_per_token.of(routing.model)) or 1

    # Inside

    def _match(
        self, routing: RoutingRequest, choices: Choices, turn: SettledTurn | None, now_s: float
    ) -> MatchedPrompt:
        """Match a prompt with the index, and estimate its tokens, by the bytes per token of `turn` or of the model."""
        chain = routing.chain
        if turn is not None and turn.prompt_tokens:
            ratio = bounded_bytes_per_token(turn.prompt_bytes / turn.prompt_tokens)
        else:
            ratio = self._bytes_per_token.of(routing.model)
        if self.histories.gone:
            for worker, left_tokens in self.histories.evicted_from(routing.lineage).items():
                if self.fleet.workers.get(worker.id) is worker:
                    own_from = bisect_right(chain.ends, self._shared_bytes(chain) + int(left_tokens * ratio))
                    self.forget_history(worker, chain.hashes[own_from:])
                    for each in self.listeners:
                        each.evicted(routing.lineage, worker, chain.hashes[own_from:], now_s)
        tokens = math.ceil(chain.ends[-1] / ratio) if chain.ends else 1
        match = self.fleet.index.walk(chain, choices.mask)
        restarted_bytes = self.fleet.index.lost_to_restarts(chain, match)
        if tokens > MIN_HEAD_TOKENS and match.drops:
            mask, longest = match.drops[-1]
            head_tokens = int(longest / ratio)
            if head_tokens >= MIN_HEAD_TOKENS and tokens - head_tokens >= MIN_OWN_TOKENS:
                at = bisect_right(chain.ends, longest) - 1
                cut = chain.hashes[at]
                fork = self._forks.of(cut, head_tokens * choices.mean_s_per_token, now_s)
                if fork is None and turn is None:
                    fork = branches_under_way(choices.cache_workers, mask, at, cut, now_s)
                return MatchedPrompt(tokens, ratio, match, turn, restarted_bytes, longest, fork)
        return MatchedPrompt(tokens, ratio, match, turn, restarted_bytes)

    def _begins(self, routing: RoutingRequest) -> bool:
        return routing.turn == 1 and self._affinity.last_settled(routing.lineage, routing.chain, 1) is None

    def forget_history(self, worker: WorkerState, cuts: list[int]) -> None:
        """Do not predict `cuts` (prefix hashes), which only one conversation uses, at this worker any more: it has
        evicted them.
        """
        self.fleet.index.remove(cuts, 1 << worker.slot)

    def _shared_bytes(self, chain: Chain) -> int:
        shared = self.fleet.index.walk(chain, 0).shared
        return shared[-1][0] if shared else 0

    def end_history(
        self,
        ticket: Ticket,
        lineage: int,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        completion_tokens: int | None,
    ) -> None:
        """A turn has ended: learn from its counts what the worker has evicted, and note what the turn left there."""
        tokens = ticket.prompt_tokens if prompt_tokens is None else prompt_tokens
        shared = ticket.shared_tokens(tokens)
        if cached_tokens is not None:
            self.histories.observe(ticket, tokens, cached_tokens, shared)
        generated = 0 if ticket.decode_worker is not ticket.cache_worker else completion_tokens or 0
        self.histories.end(lineage, ticket, max(0, tokens + generated - shared))

    def _settled_turn(
        self,
        ticket: Ticket,
        routing: RoutingRequest,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        completion_tokens: int | None,
    ) -> SettledTurn:
        decision, chain = ticket.decision, routing.chain
        worker, partner = decision.cache_worker, decision.decode
        return SettledTurn(
            (worker,) if partner is None else (worker, partner.id),
            decision.region,
            chain.total_bytes,
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            routing.turn,
            routing.salt_epoch,
            chain.hashes[-1],
            routing.turns_before,
            routing.settings,
        )

    def remember(
        self,
        model: str,
        lineage: int,
        chain: Chain,
        turn: SettledTurn,
        session: int | None,
        thread: int | None,
        tenant: str,
    ) -> None:
        """Store a settled turn for those that follow it. `session`: None if no home is remembered for the session."""
        if turn.prompt_tokens is not None:
            self._bytes_per_token.observe(model, turn.prompt_bytes, turn.prompt_tokens)
        self._affinity.remember(lineage, chain, turn, session, thread, tenant)
