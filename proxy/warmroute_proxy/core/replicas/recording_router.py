"""A router that writes down what it is told and what it decided, and a playback that decides it all again.

A router has no inputs but its calls: no clock, no randomness, no other state. So the log of its calls, in order, is
the input of every decision, and with the decisions that came out it is a proof: made again, on a new router, each
decision must come out the same, with every term of its cost.
"""

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, Final

import msgspec

from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision, Policy
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router, Settled, Ticket
from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.core.replicas.record import (
    UNKNOWN_REGION,
    Call,
    Dispatched,
    Ended,
    Failed,
    FirstToken,
    Opened,
    Placed,
    Progress,
    RecordError,
    Told,
)


class RecordedRouter(Router):
    """A router that writes down what it is told, and what it decided.

    A `Router` by type only: everything is done by the one inside, so that calls which a router makes to itself are
    not written twice. Methods that are not written out here are added below.
    """

    def __init__(  # not the base's: the state is inside
        self,
        write: Callable[[Call], None],
        software: str,
        region: str,
        workers: Iterable[Worker],
        peers: Iterable[Peer] = (),
        policy: Policy = "cost",
    ) -> None:
        """`write` must not raise: a request does not fail because its record does."""
        workers, peers = list(workers), list(peers)
        self._inside = Router(region, workers, peers, policy)
        self._write = write
        self._regions = frozenset({region, *(peer.region for peer in peers)})
        self._last: tuple[Facts, Decision] | None = None
        self._tickets: dict[Ticket, tuple[int, Facts]] = {}
        self._dispatches = 0
        write(Opened(software, region, policy, workers, peers))

    def place(self, facts: Facts, now_s: float, exclude: frozenset[str] = frozenset()) -> Decision:
        try:
            decision = self._inside.place(facts, now_s, exclude)
        except NoWorker as error:
            self._write(Placed(now_s, self._named(facts), exclude, None, error.served))
            raise
        self._last = facts, decision
        self._write(Placed(now_s, self._named(facts), exclude, decision))
        return decision

    def dispatched(self, facts: Facts, decision: Decision, now_s: float) -> Ticket:
        ticket = self._inside.dispatched(facts, decision, now_s)
        self._tickets[ticket] = self._dispatches, facts
        self._dispatches += 1
        last = self._last
        if last is not None and last[0] is facts and last[1] is decision:
            self._write(Dispatched(now_s))
        else:
            self._write(Dispatched(now_s, self._named(facts), decision))
        return ticket

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        self._inside.first_token(ticket, now_s)
        if ticket in self._tickets:
            self._write(FirstToken(self._tickets[ticket][0], now_s))

    def progress(self, ticket: Ticket, completion_tokens: int) -> None:
        self._inside.progress(ticket, completion_tokens)
        if ticket in self._tickets:
            self._write(Progress(self._tickets[ticket][0], completion_tokens))

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
        counts = prompt_tokens, cached_tokens, completion_tokens
        settled = self._inside.settled(ticket, facts, now_s, *counts, streamed_tokens)
        number, dispatched = self._tickets.pop(ticket)
        other = None if dispatched is facts else self._named(facts)
        self._write(Ended(number, now_s, *counts, other, streamed_tokens))
        return settled

    def failed(self, ticket: Ticket, now_s: float, at_fault: Collection[str]) -> None:
        self._inside.failed(ticket, now_s, at_fault)
        self._write(Failed(self._tickets.pop(ticket)[0], now_s, list(at_fault)))

    def _named(self, facts: Facts) -> Facts:
        if facts.home_hint is None or facts.home_hint in self._regions:
            return facts
        return msgspec.structs.replace(facts, home_hint=UNKNOWN_REGION)


ASKED: Final = frozenset(
    {"busy", "full", "has_capacity", "has_capacity_at", "is_full", "last", "next_end_s", "running", "snapshot"}
)
"""Methods of a router that change nothing: they are not written down."""

TOLD: Final[dict[str, dict[str, Any]]] = {
    "add_worker": {"worker": Worker},
    "remove_worker": {"worker_id": str},
    "worker_restarted": {"worker_id": str},
    "set_draining": {"worker_id": str, "draining": bool},
    "set_up": {"worker_id": str, "up": bool},
    "set_peer_up": {"region": str, "up": bool},
    "observe_loads": {"worker_id": str, "loads": EngineLoads, "now_s": float},
    "cache_stored": {"worker_id": str, "keys": list[int], "tier": Tier},
    "cache_removed": {"worker_id": str, "keys": list[int], "tier": Tier},
    "cache_cleared": {"worker_id": str},
    "observe_moves": {"worker_id": str, "tier": Tier, "tokens": int, "seconds": float},
}
"""Methods by which a router learns of its fleet, and their arguments in order: a compiled one does not show them."""


def _asked(name: str) -> Callable[..., Any]:
    method = getattr(Router, name)

    @wraps(method)
    def ask(self: RecordedRouter, *arguments: Any, **named: Any) -> Any:
        return method(self._inside, *arguments, **named)

    return ask


def _told(name: str) -> Callable[..., Any]:
    method = getattr(Router, name)
    parameters = TOLD[name]

    @wraps(method)
    def tell(self: RecordedRouter, *arguments: Any, **named: Any) -> Any:
        answer = method(self._inside, *arguments, **named)
        self._write(Told(name, dict(zip(parameters, arguments, strict=False)) | named))
        return answer

    return tell


for _name in ASKED:
    setattr(RecordedRouter, _name, _asked(_name))
for _name in TOLD:
    setattr(RecordedRouter, _name, _told(_name))


class Playback:
    """Makes the calls of a record again, on a new router."""

    def __init__(self, opened: Opened) -> None:
        self._router = Router(opened.region, opened.workers, opened.peers, opened.policy)
        self._last: Placed | None = None
        self._tickets: dict[int, tuple[Ticket, Facts]] = {}
        self._dispatches = 0

    def place(self, call: Placed) -> Placed:
        """The call with the decision that comes out now."""
        self._last = call
        try:
            return msgspec.structs.replace(call, decision=self._router.place(call.facts, call.now_s, call.exclude))
        except NoWorker as error:
            return msgspec.structs.replace(call, decision=None, served=error.served)

    def tell(self, call: Call) -> None:
        """Any other call. Dispatches are made as decided then, so that each decision is judged by itself."""
        match call:
            case Dispatched():
                self._dispatch(call)
            case FirstToken():
                self._router.first_token(self._tickets[call.ticket][0], call.now_s)
            case Progress():
                self._router.progress(self._tickets[call.ticket][0], call.completion_tokens)
            case Ended():
                ticket, facts = self._tickets.pop(call.ticket)
                counts = call.prompt_tokens, call.cached_tokens, call.completion_tokens
                self._router.settled(ticket, call.facts or facts, call.now_s, *counts, call.streamed_tokens)
            case Failed():
                self._router.failed(self._tickets.pop(call.ticket)[0], call.now_s, call.at_fault)
            case Told():
                self._tell(call)

    def _dispatch(self, call: Dispatched) -> None:
        facts, decision = call.facts, call.decision
        if self._last is not None:
            facts, decision = facts or self._last.facts, decision or self._last.decision
        if facts is None or decision is None:
            raise RecordError("a dispatch without a decision")
        self._tickets[self._dispatches] = self._router.dispatched(facts, decision, call.now_s), facts
        self._dispatches += 1

    def _tell(self, call: Told) -> None:
        if call.name not in TOLD:
            raise RecordError(f"{call.name!r} is nothing that this warmroute's router is told")
        method, types = getattr(self._router, call.name), TOLD[call.name]
        method(**{name: msgspec.convert(value, types.get(name, Any)) for name, value in call.arguments.items()})
