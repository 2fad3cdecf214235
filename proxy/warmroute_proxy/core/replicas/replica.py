"""Lets several processes behind one port share the state of their routers; each process places a share of the requests.

Many routers decide as well as one router if each knows what the others know. So each router sends three things to its
peers (the other processes): what became of its requests, which conversations' histories it found evicted, and what
clients say about their sessions. What became of a request is sent as the four calls that change a router's state: sent,
first token, served, lost. A peer makes these calls on its own state, with its own ticket for each request. So, with a
delay of a few ms, its index, loads, traffic, affinity and known evictions equal those of a single router that gets all
requests. If two processes decide within these ms, they do not see each other's decision.

Load is not sent as a number, because the order of all prompts decides when an engine computes each of them. With
numbers alone, a third of the gain in TTFT p90 was lost (docs/decisions/011-processes.md). Each load belongs to an open
request of one peer, and ends with the request or with the peer process, so loads do not drift.

Three things are not sent: tokens that were generated so far (a peer's request counts only with its prompt), probes and
KV events (each process gets these itself), and what only the status page shows.

This module does no I/O, like all of the core: `server.processes` transports the events.

Limit: only the newest `MAX_OPEN` open requests of each peer are known.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from warmroute_proxy.core.cache.return_times import OVER, UNKNOWN
from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.decision import Policy
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.homes import home_key
from warmroute_proxy.core.placement.listener import Listener
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.placement.ticket import Ticket
from warmroute_proxy.core.placement.waits import Waits
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.peer_events import Computed, Event, Evicted, Lost, Sent, Served, SessionObserved

MAX_OPEN: Final = 16_384


class Sending(Listener):
    """A listener that reports a router's calls to its peers."""

    def __init__(self, send: Callable[[Event, float], None], receive: Callable[[], None] | None) -> None:
        self._send = send
        self._receive = receive
        self._numbers: dict[Ticket, int] = {}  # the numbers of this router's requests under way
        self.last_number = 0
        """The number of the request that was sent last."""

    def before_reading(self) -> None:
        if self._receive is not None:
            self._receive()

    def dispatched(self, ticket: Ticket, routing: RoutingRequest, begins: bool, now_s: float) -> None:
        self.last_number += 1
        self._numbers[ticket] = self.last_number
        self._send(
            Sent(
                self.last_number,
                ticket.cache_worker.id,
                None if ticket.decode_worker is None else ticket.decode_worker.id,
                ticket.chain,
                begins,
                ticket.from_cut,
                ticket.prompt_tokens,
                ticket.prompt_tokens - ticket.uncached,
                ticket.sequences,
                ticket.lineage,
                ticket.shared_bytes,
                routing.tenant,
            ),
            now_s,
        )

    def first_token(self, ticket: Ticket, is_first: bool, now_s: float) -> None:
        number = self._numbers.get(ticket)
        if is_first and number is not None:  # the request has not ended
            self._send(Computed(number), now_s)

    def ending(self, ticket: Ticket, now_s: float) -> None:
        self.first_token(ticket, not ticket.computed, now_s)

    def settled(
        self,
        ticket: Ticket,
        routing: RoutingRequest,
        turn: SettledTurn,
        streamed_tokens: int | None,
        expected: int,
        now_s: float,
    ) -> None:
        number, session = self._numbers.pop(ticket), home_key(routing)
        served = Served(
            number, routing.lineage, session, routing.thread, routing.model, turn, streamed_tokens, expected
        )
        self._send(served, now_s)

    def failed(self, ticket: Ticket, at_fault: Collection[str], now_s: float) -> None:
        self._send(Lost(self._numbers.pop(ticket), list(at_fault)), now_s)

    def updated(self, method: str, *arguments: Any) -> None:
        if method == "observe_turn":
            turn, now_s = arguments
            self._send(turn, now_s)
        elif method == "observe_session":
            session, returns, now_s = arguments
            self._send(SessionObserved(session, returns), now_s)

    def waits(self, waits: Waits, now_s: float) -> None:
        self._send(waits, now_s)

    def evicted(self, lineage: int, worker: WorkerState, cuts: list[int], now_s: float) -> None:
        self._send(Evicted(lineage, worker.id, cuts), now_s)


class Replica:
    """A router that shares its state with peer processes: it sends them its events, and `apply` takes in theirs."""

    def __init__(
        self,
        region: str,
        workers: Iterable[Worker],
        peers: Iterable[Peer] = (),
        policy: Policy = "cost",
        *,
        send: Callable[[Event, float], None],
        receive: Callable[[], None] | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        """`send(event, now_s)` takes an event for all peer processes. `receive` is called before a decision, and may
        call `apply`. `peers`: peer regions, not processes. `listeners` are called after the listener that informs the
        peer processes.
        """
        self._sending = Sending(send, receive)
        self.router = Router(region, workers, peers, policy, listeners=(self._sending, *listeners))
        self._tickets_by_peer: dict[int, OrderedDict[int, Ticket]] = {}  # tickets of requests under way

    @property
    def last_number(self) -> int:
        """The number of the request that this router sent last."""
        return self._sending.last_number

    def apply(self, peer: int, event: Event, now_s: float) -> None:
        """Apply a peer process's event; events must come in the peer's order. Ends of unknown requests are ignored."""
        router = self.router
        for each in router.listeners:
            each.applied(peer, event, now_s)
        under_way = self._tickets_by_peer.setdefault(peer, OrderedDict())
        if isinstance(event, RegionalTurn):
            router.learn_turn(event)
        elif isinstance(event, Sent):
            self._apply_sent(event, under_way, now_s)
        elif isinstance(event, Computed):
            ticket = under_way.get(event.number)
            if ticket is not None:
                router.in_flight.first_token(ticket, now_s)
        elif isinstance(event, SessionObserved):
            router.working_set.observe_session(event.session, event.returns, now_s)
        elif isinstance(event, Waits):
            router.waits_elsewhere.observe(peer, event, now_s)
        elif isinstance(event, Evicted):
            worker = router.fleet.workers.get(event.worker)
            if worker is not None:
                router.histories.is_there(event.lineage, worker)
                router.forget_history(worker, event.cuts)
        else:
            ticket = under_way.pop(event.number, None)
            if ticket is None:
                return
            if isinstance(event, Served):
                self._apply_served(event, ticket, now_s)
            else:
                router.in_flight.fail(ticket, now_s, event.at_fault)

    def ticket_of(self, peer: int, number: int) -> Ticket | None:
        under_way = self._tickets_by_peer.get(peer)
        return under_way.get(number) if under_way is not None else None

    def forget(self, peer: int, now_s: float) -> None:
        """Drop the requests of a peer that has died, or whose events were missed, so that they do not count as load."""
        for each in self.router.listeners:
            each.forgotten(peer, now_s)
        self.router.waits_elsewhere.forget(peer)
        for ticket in self._tickets_by_peer.pop(peer, OrderedDict()).values():
            self.router.in_flight.drop(ticket, now_s)

    def _apply_sent(self, sent: Sent, under_way: OrderedDict[int, Ticket], now_s: float) -> None:
        router = self.router
        workers = router.fleet.workers
        cache_worker = workers.get(sent.cache_worker)
        decode_worker = workers.get(sent.decode_worker) if sent.decode_worker is not None else None
        if cache_worker is None or (decode_worker is None and sent.decode_worker is not None):
            return  # only the peer knows this worker so far
        if sent.number in under_way:
            router.in_flight.drop(under_way.pop(sent.number), now_s)
        ticket = under_way[sent.number] = Ticket(
            sent.chain, cache_worker, decode_worker, sent.sequences, sent.from_cut, sent.prompt_tokens,
            sent.cached_tokens,
        )  # fmt: skip
        ticket.shared_bytes = sent.shared_bytes
        ticket.tenant = sent.tenant
        router.in_flight.begin(ticket, sent.begins, sent.cached_tokens / sent.prompt_tokens, now_s)
        router.histories.dispatched(sent.lineage, ticket)
        router.working_set.sent(ticket)
        if len(under_way) > MAX_OPEN:
            router.in_flight.drop(under_way.popitem(last=False)[1], now_s)

    def _apply_served(self, served: Served, ticket: Ticket, now_s: float) -> None:
        router = self.router
        turn = served.settled_turn
        router.working_set.expect(ticket, served.returns if 0 <= served.returns <= OVER else UNKNOWN)
        router.in_flight.end(ticket, now_s, served.streamed_tokens)
        counts = turn.prompt_tokens, turn.cached_tokens, turn.completion_tokens
        router.working_set.belongs(served.lineage, served.session, ticket.tenant)
        router.end_history(ticket, served.lineage, *counts)
        router.remember(served.model, served.lineage, ticket.chain, turn, served.session, served.thread, ticket.tenant)
