"""A router that has siblings: several processes behind one port, each of which decides for a part of the requests.

Decisions of many are as good as of one if each knows what the others know. So each router tells the others what became
of its requests, in the four calls that end up in a router's state: sent, first token, served, lost. A sibling makes
the same calls on its own maps, with a ticket of its own for each request: then its index, loads, traffic and affinity
are those of one router that had been given all requests, some ms late. What two decide within that time, neither sees
of the other.

Load is not sent as a number, because when a prompt's turn comes at an engine depends on the order of all of them:
numbers alone cost a third of the gain in TTFT p90 (docs/decisions/011-processes.md). As every raise belongs to an open
request of one sibling, it ends with the request, or with the sibling: nothing drifts.

Not told: tokens that were generated so far (a request counts as its prompt), what probes and KV events say (each hears
that itself), and what only pages show.

Pure like all of the core: who carries the events is not said here.

Limits: the newest `MAX_OPEN` requests of each sibling are known until they end.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.decision import Decision, Policy
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router, Settled
from warmroute_proxy.core.placement.ticket import Ticket
from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.core.replicas.peer_events import Computed, Event, Lost, Sent, Served

MAX_OPEN: Final = 16_384


class PeerTicket(Ticket):
    """A request that a sibling has sent. It has no decision: that is the sibling's."""

    __slots__ = ()

    def __init__(self, sent: Sent, cache_worker: WorkerState, decode_worker: WorkerState | None) -> None:
        self.chain = sent.chain
        self.cache_worker = cache_worker
        self.decode_worker = decode_worker
        self.from_cut = sent.from_cut
        self.uncached = sent.prompt_tokens - sent.cached_tokens
        self.resident = sent.prompt_tokens
        self.computed = False
        self.distance = 0.0
        self.turn = 0
        self.open = True


class PeerRouter(Router):
    """A router that tells its siblings, and hears them."""

    def __init__(
        self,
        region: str,
        workers: Iterable[Worker],
        peers: Iterable[Peer] = (),
        policy: Policy = "cost",
        *,
        tell: Callable[[Event, float], None],
        listen: Callable[[], None] | None = None,
    ) -> None:
        """`tell(event, now_s)` takes what the siblings are to hear; `listen`, before a decision, may call `hear`."""
        super().__init__(region, workers, peers, policy)
        self._tell = tell
        self._listen = listen
        self._numbers: dict[Ticket, int] = {}  # of own requests under way
        self._count = 0
        self._heard: dict[int, OrderedDict[int, PeerTicket]] = {}  # requests under way, by sibling

    # What this one does

    def place(self, facts: Facts, now_s: float, exclude: frozenset[str] = frozenset()) -> Decision:
        if self._listen is not None:
            self._listen()
        return super().place(facts, now_s, exclude)

    def dispatched(self, facts: Facts, decision: Decision, now_s: float) -> Ticket:
        begins = self._begins(facts)
        ticket = super().dispatched(facts, decision, now_s)
        self._count += 1
        self._numbers[ticket] = self._count
        self._tell(
            Sent(
                self._count,
                ticket.cache_worker.id,
                None if ticket.decode_worker is None else ticket.decode_worker.id,
                ticket.chain,
                begins,
                ticket.from_cut,
                decision.prompt_tokens_est,
                decision.predicted_cached_tokens,
            ),
            now_s,
        )
        return ticket

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        number = self._numbers.get(ticket)  # None where it has ended, or is a sibling's
        if number is not None and not ticket.computed:
            self._tell(Computed(number), now_s)
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
        settled = super().settled(
            ticket, facts, now_s, prompt_tokens, cached_tokens, completion_tokens, streamed_tokens
        )
        last = self._last_of(ticket, facts, prompt_tokens, cached_tokens, completion_tokens)
        session = None if facts.derived else facts.session
        number = self._numbers.pop(ticket)
        self._tell(Served(number, facts.lineage, session, facts.thread, facts.model, last, streamed_tokens), now_s)
        return settled

    def failed(self, ticket: Ticket, now_s: float, at_fault: Collection[str]) -> None:
        super().failed(ticket, now_s, at_fault)
        self._tell(Lost(self._numbers.pop(ticket), list(at_fault)), now_s)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        if self._listen is not None:
            self._listen()
        return super().snapshot(now_s)

    # What the others do

    def hear(self, peer: int, event: Event, now_s: float) -> None:
        """What a sibling has done, in its order. Ends of requests that are not known are ignored."""
        under_way = self._heard.setdefault(peer, OrderedDict())
        if isinstance(event, Sent):
            self._hear_sent(event, under_way, now_s)
        elif isinstance(event, Computed):
            ticket = under_way.get(event.number)
            if ticket is not None:
                super().first_token(ticket, now_s)
        else:
            ticket = under_way.pop(event.number, None)
            if ticket is None:
                return
            if isinstance(event, Served):
                self._hear_served(event, ticket, now_s)
            else:
                super().failed(ticket, now_s, event.at_fault)

    def heard(self, peer: int, number: int) -> Ticket | None:
        """A sibling's request that is under way."""
        under_way = self._heard.get(peer)
        return under_way.get(number) if under_way is not None else None

    @property
    def sent(self) -> int:
        """The number of the request that this router sent last."""
        return self._count

    def forget(self, peer: int, now_s: float) -> None:
        """A sibling is gone, or nobody knows what it did: its requests count as load no more."""
        for ticket in self._heard.pop(peer, OrderedDict()).values():
            self._let_go(ticket, now_s)

    def _hear_sent(self, sent: Sent, under_way: OrderedDict[int, PeerTicket], now_s: float) -> None:
        cache_worker = self._places.get(sent.cache_worker)
        decode_worker = self._places.get(sent.decode_worker) if sent.decode_worker is not None else None
        if cache_worker is None or (decode_worker is None and sent.decode_worker is not None):
            return  # a worker that only the sibling knows yet
        ticket = under_way[sent.number] = PeerTicket(sent, cache_worker, decode_worker)
        self._begin(ticket, sent.begins, sent.cached_tokens / sent.prompt_tokens, now_s)
        if len(under_way) > MAX_OPEN:
            self._let_go(under_way.popitem(last=False)[1], now_s)

    def _let_go(self, ticket: PeerTicket, now_s: float) -> None:
        """It counts no more, and nobody knows how it ended."""
        ticket.close(now_s)
        for place in ticket.parties():
            place.load.breaker.ended(ticket)

    def _hear_served(self, served: Served, ticket: PeerTicket, now_s: float) -> None:
        last = served.last
        self._end(ticket, now_s, served.streamed_tokens)
        if self._histories.active:
            self._histories.end(served.lineage, ticket, last.completion_tokens)
        if last.prompt_tokens is not None:
            self._bytes_per_token.observe(served.model, last.prompt_bytes, last.prompt_tokens)
        self._affinity.remember(served.lineage, ticket.chain, last, served.session, served.thread)
