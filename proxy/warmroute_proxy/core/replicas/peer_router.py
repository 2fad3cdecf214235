"""A router with peer processes: several processes behind one port, each of which decides for a share of the requests.

Decisions of many routers are as good as those of one if each knows what the others know. So each router sends the
others what became of its requests, by the four calls that change a router's state: sent, first token, served, lost;
which history it has found to be evicted; and what clients say of their sessions. A peer makes the same calls on its
own state, with a ticket of its own for each request: then its index, loads, traffic, affinity and what it knows of
evictions are those of one router that had been given all requests, some ms late. Decisions of two processes within
that time do not include each other.

Load is not sent as a number: when a prompt is computed at an engine depends on the order of all prompts, and numbers
alone cost a third of the gain in TTFT p90 (docs/decisions/011-processes.md). As each load belongs to an open request of
one peer, it ends with the request, or with the peer: nothing drifts.

Not sent: tokens that were generated so far (a request counts as its prompt), probes and KV events (each process gets
those itself), and what only pages show.

Free of I/O like all of the core: `server.processes` transports the events.

Limits: the newest `MAX_OPEN` requests of each peer are known until they end.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from warmroute_proxy.core.cache.regional_turn import RegionalTurn
from warmroute_proxy.core.cache.return_times import OVER, UNKNOWN
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.decision import Decision, Policy
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.homes import home_key
from warmroute_proxy.core.placement.router import Router, Settled
from warmroute_proxy.core.placement.ticket import Ticket
from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.core.replicas.peer_events import Computed, Event, Evicted, Lost, Sent, Served, SessionObserved

MAX_OPEN: Final = 16_384


class PeerTicket(Ticket):
    """A request that a peer has sent. It has no decision: the peer has made it."""

    __slots__ = ()

    def __init__(self, sent: Sent, cache_worker: WorkerState, decode_worker: WorkerState | None) -> None:
        self.chain = sent.chain
        self.cache_worker = cache_worker
        self.decode_worker = decode_worker
        self.sequences = sent.sequences
        self.from_cut = sent.from_cut
        self.uncached = sent.prompt_tokens - sent.cached_tokens
        self.resident = sent.prompt_tokens
        self.computed = False
        self.handed_over = False
        self.history = None
        self.lineage = sent.lineage
        self.shared_bytes = sent.shared_bytes
        self.used_before = -1
        self.open = True

    @property
    def prompt_tokens(self) -> int:
        return self.resident  # what is generated is not sent


class PeerRouter(Router):
    """A router that sends events of its own requests to its peers, and applies theirs."""

    def __init__(
        self,
        region: str,
        workers: Iterable[Worker],
        peers: Iterable[Peer] = (),
        policy: Policy = "cost",
        *,
        send: Callable[[Event, float], None],
        receive: Callable[[], None] | None = None,
    ) -> None:
        """`send(event, now_s)` takes an event for all peer processes; `receive`, called before a decision, may call
        `apply`. `peers` are regions.
        """
        super().__init__(region, workers, peers, policy)
        self._send = send
        self._receive = receive
        self._numbers: dict[Ticket, int] = {}  # of own requests under way
        self._sent_count = 0
        self._tickets_by_peer: dict[int, OrderedDict[int, PeerTicket]] = {}  # of requests under way

    # Own requests

    def place(self, facts: Facts, now_s: float, exclude: frozenset[str] = frozenset()) -> Decision:
        if self._receive is not None:
            self._receive()
        return super().place(facts, now_s, exclude)

    def dispatched(self, facts: Facts, decision: Decision, now_s: float) -> Ticket:
        begins = self._begins(facts)
        ticket = super().dispatched(facts, decision, now_s)
        self._sent_count += 1
        self._numbers[ticket] = self._sent_count
        self._send(
            Sent(
                self._sent_count,
                ticket.cache_worker.id,
                None if ticket.decode_worker is None else ticket.decode_worker.id,
                ticket.chain,
                begins,
                ticket.from_cut,
                decision.prompt_tokens_est,
                decision.predicted_cached_tokens,
                ticket.sequences,
                ticket.lineage,
                ticket.shared_bytes,
            ),
            now_s,
        )
        return ticket

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        if not ticket.computed:
            self._send_computed(ticket, now_s)
        super().first_token(ticket, now_s)

    def settled(
        self,
        ticket: Ticket,
        facts: Facts,
        now_s: float,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        completion_tokens: int | None,
        streamed_tokens: int | None = None,
    ) -> Settled:
        if not ticket.computed:
            self._send_computed(ticket, now_s)
        expected = self.working_set.expected(ticket)
        settled = super().settled(
            ticket, facts, now_s, prompt_tokens, cached_tokens, completion_tokens, streamed_tokens
        )
        turn = self._settled_turn(ticket, facts, prompt_tokens, cached_tokens, completion_tokens)
        number = self._numbers.pop(ticket)
        session = home_key(facts)
        served = Served(number, facts.lineage, session, facts.thread, facts.model, turn, streamed_tokens, expected)
        self._send(served, now_s)
        return settled

    def failed(self, ticket: Ticket, now_s: float, at_fault: Collection[str]) -> None:
        super().failed(ticket, now_s, at_fault)
        self._send(Lost(self._numbers.pop(ticket), list(at_fault)), now_s)

    def observe_turn(self, turn: RegionalTurn, now_s: float) -> None:
        super().observe_turn(turn, now_s)
        self._send(turn, now_s)

    def observe_session(self, session: int, returns: int, now_s: float) -> None:
        super().observe_session(session, returns, now_s)
        self._send(SessionObserved(session, returns), now_s)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        if self._receive is not None:
            self._receive()
        return super().snapshot(now_s)

    @property
    def last_number(self) -> int:
        """The number of the request that this router sent last."""
        return self._sent_count

    def _forget_history(self, lineage: int, worker: WorkerState, cuts: list[int], now_s: float) -> None:
        super()._forget_history(lineage, worker, cuts, now_s)
        self._send(Evicted(lineage, worker.id, cuts), now_s)

    def _send_computed(self, ticket: Ticket, now_s: float) -> None:
        number = self._numbers.get(ticket)
        if number is not None:  # it has not ended
            self._send(Computed(number), now_s)

    # Requests of the peers

    def apply(self, peer: int, event: Event, now_s: float) -> None:
        """Apply an event of a peer, in its order. Ends of requests that are not known are ignored."""
        under_way = self._tickets_by_peer.setdefault(peer, OrderedDict())
        if isinstance(event, RegionalTurn):
            super().observe_turn(event, now_s)
        elif isinstance(event, Sent):
            self._apply_sent(event, under_way, now_s)
        elif isinstance(event, Computed):
            ticket = under_way.get(event.number)
            if ticket is not None:
                self._in_flight.first_token(ticket, now_s)
        elif isinstance(event, SessionObserved):
            super().observe_session(event.session, event.returns, now_s)
        elif isinstance(event, Evicted):
            worker = self._fleet.workers.get(event.worker)
            if worker is not None:
                self._histories.is_there(event.lineage, worker)
                super()._forget_history(event.lineage, worker, event.cuts, now_s)
        else:
            ticket = under_way.pop(event.number, None)
            if ticket is None:
                return
            if isinstance(event, Served):
                self._apply_served(event, ticket, now_s)
            else:
                self._in_flight.fail(ticket, now_s, event.at_fault)

    def ticket_of(self, peer: int, number: int) -> Ticket | None:
        """A request of a peer that is under way."""
        under_way = self._tickets_by_peer.get(peer)
        return under_way.get(number) if under_way is not None else None

    def forget(self, peer: int, now_s: float) -> None:
        """A peer has died, or its events were missed: its requests count as load no more."""
        for ticket in self._tickets_by_peer.pop(peer, OrderedDict()).values():
            self._in_flight.drop(ticket, now_s)

    def _apply_sent(self, sent: Sent, under_way: OrderedDict[int, PeerTicket], now_s: float) -> None:
        workers = self._fleet.workers
        cache_worker = workers.get(sent.cache_worker)
        decode_worker = workers.get(sent.decode_worker) if sent.decode_worker is not None else None
        if cache_worker is None or (decode_worker is None and sent.decode_worker is not None):
            return  # a worker that only the peer knows yet
        if sent.number in under_way:
            self._in_flight.drop(under_way.pop(sent.number), now_s)
        ticket = under_way[sent.number] = PeerTicket(sent, cache_worker, decode_worker)
        self._in_flight.begin(ticket, sent.begins, sent.cached_tokens / sent.prompt_tokens, now_s)
        self._histories.dispatched(sent.lineage, ticket)
        self.working_set.sent(ticket)
        if len(under_way) > MAX_OPEN:
            self._in_flight.drop(under_way.popitem(last=False)[1], now_s)

    def _apply_served(self, served: Served, ticket: PeerTicket, now_s: float) -> None:
        turn = served.settled_turn
        self.working_set.expect(ticket, served.returns if 0 <= served.returns <= OVER else UNKNOWN)
        self._in_flight.end(ticket, now_s, served.streamed_tokens)
        counts = turn.prompt_tokens, turn.cached_tokens, turn.completion_tokens
        self.working_set.belongs(served.lineage, served.session)
        self._end_history(ticket, served.lineage, *counts)
        self._remember(served.model, served.lineage, ticket.chain, turn, served.session, served.thread)
