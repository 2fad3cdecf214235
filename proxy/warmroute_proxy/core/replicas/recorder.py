"""Records the calls and decisions of a router (`Recorder`), and makes the decisions of a record again (`Playback`).

A router has no inputs but its calls: no clock, no randomness, no other state. So the calls in order are the complete
input of every decision. A record can therefore be verified: a new router that gets the recorded calls must make the
recorded decisions, with every term of their costs.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import msgspec

from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision, Policy
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.listener import Listener
from warmroute_proxy.core.placement.router import Ticket
from warmroute_proxy.core.placement.waits import Waits
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.peer_events import Event, Sent
from warmroute_proxy.core.replicas.record import (
    UNKNOWN_REGION,
    Applied,
    Dispatched,
    Ended,
    Failed,
    FirstToken,
    FleetUpdate,
    Forgotten,
    Opened,
    Placed,
    RecordedCall,
    RecordedProgress,
    RecordError,
)
from warmroute_proxy.core.replicas.replica import Replica

FLEET_UPDATES: Final[dict[str, dict[str, Any]]] = {
    "add_worker": {"worker": Worker},
    "remove_worker": {"worker_id": str},
    "worker_restarted": {"worker_id": str},
    "set_draining": {"worker_id": str, "draining": bool},
    "set_up": {"worker_id": str, "up": bool},
    "set_peer_up": {"region": str, "up": bool},
    "suspect_peer": {"region": str},
    "observe_loads": {"worker_id": str, "loads": EngineLoads, "now_s": float},
    "cache_stored": {"worker_id": str, "keys": list[int], "tier": Tier},
    "cache_removed": {"worker_id": str, "keys": list[int], "tier": Tier},
    "cache_cleared": {"worker_id": str},
    "observe_turn": {"turn": RegionalTurn, "now_s": float},
    "observe_session": {"session": int, "returns": int, "now_s": float},
    "observe_moves": {"worker_id": str, "tier": Tier, "tokens": int, "seconds": float},
}
"""The methods that change a router's fleet, by their names in records, with the types of their arguments in order. They
are written out because compiled methods have no annotations.
"""


class Recorder(Listener):
    """Writes each call that changes a router, and each decision.

    A router never calls its own recorded methods, so each call is recorded only once.
    """

    def __init__(
        self,
        write: Callable[[RecordedCall], None],
        software: str,
        region: str,
        workers: Iterable[Worker],
        peers: Iterable[Peer] = (),
        policy: Policy = "cost",
    ) -> None:
        """`region`, `workers`, `peers` and `policy`: the arguments with which the recorded router was made. `write`
        must not raise: a request must not fail because its record cannot be written.
        """
        workers, peers = list(workers), list(peers)
        self._write = write
        self._regions = frozenset({region, *(peer.region for peer in peers)})
        self._last_placed: tuple[RoutingRequest, Decision] | None = None
        self._tickets: dict[Ticket, tuple[int, RoutingRequest]] = {}
        self._dispatches = 0
        write(Opened(software, region, policy, workers, peers))

    def placed(
        self, routing: RoutingRequest, exclude: frozenset[str], decision: Decision | None, served: bool, now_s: float
    ) -> None:
        if decision is not None:
            self._last_placed = routing, decision
        self._write(Placed(now_s, self._without_names(routing), exclude, decision, served))

    def dispatched(self, ticket: Ticket, routing: RoutingRequest, begins: bool, now_s: float) -> None:  # noqa: ARG002
        self._tickets[ticket] = self._dispatches, routing
        self._dispatches += 1
        last_placed = self._last_placed
        if last_placed is not None and last_placed[0] is routing and last_placed[1] is ticket.decision:
            self._write(Dispatched(now_s))
        else:
            self._write(Dispatched(now_s, self._without_names(routing), ticket.decision))

    def first_token(self, ticket: Ticket, is_first: bool, now_s: float) -> None:  # noqa: ARG002
        if ticket in self._tickets:
            self._write(FirstToken(self._tickets[ticket][0], now_s))

    def progress(self, ticket: Ticket, completion_tokens: int) -> None:
        if ticket in self._tickets:
            self._write(RecordedProgress(self._tickets[ticket][0], completion_tokens))

    def settled(
        self,
        ticket: Ticket,
        routing: RoutingRequest,
        turn: SettledTurn,
        streamed_tokens: int | None,
        expected: int,  # noqa: ARG002
        now_s: float,
    ) -> None:
        number, dispatched = self._tickets.pop(ticket)
        other = None if dispatched is routing else self._without_names(routing)
        counts = turn.prompt_tokens, turn.cached_tokens, turn.completion_tokens
        self._write(Ended(number, now_s, *counts, other, streamed_tokens))

    def failed(self, ticket: Ticket, at_fault: Collection[str], now_s: float) -> None:
        self._write(Failed(self._tickets.pop(ticket)[0], now_s, list(at_fault)))

    def updated(self, method: str, *arguments: Any) -> None:
        self._write(FleetUpdate(method, dict(zip(FLEET_UPDATES[method], arguments, strict=True))))

    def applied(self, peer: int, event: Event, now_s: float) -> None:
        if isinstance(event, (Sent, Waits)):  # a router's decisions do not depend on the tenant
            event = msgspec.structs.replace(event, tenant="")
        self._write(Applied(peer, event, now_s))

    def forgotten(self, peer: int, now_s: float) -> None:
        self._write(Forgotten(peer, now_s))

    def _without_names(self, routing: RoutingRequest) -> RoutingRequest:
        """`routing` without its tenant, which decisions do not use, and without the name of an unknown home region."""
        if routing.tenant:
            routing = msgspec.structs.replace(routing, tenant="")
        if routing.home_hint is None or routing.home_hint in self._regions:
            return routing
        return msgspec.structs.replace(routing, home_hint=UNKNOWN_REGION)


class Playback:
    """Makes the calls of a record again, on a new router."""

    def __init__(self, opened: Opened) -> None:
        self._replica = Replica(
            opened.region, opened.workers, opened.peers, opened.policy, send=lambda _event, _now_s: None
        )
        self._router = self._replica.router
        self._last_placed: Placed | None = None
        self._tickets: dict[int, tuple[Ticket, RoutingRequest]] = {}
        self._dispatches = 0

    def place(self, call: Placed) -> Placed:
        if call.decision is not None:  # as in the recorder: a dispatch is that of the last request that had a worker
            self._last_placed = call
        try:
            decision = self._router.place(call.routing, call.now_s, call.exclude)
            recorded = call.decision
            if recorded is not None and recorded.known is None:  # a record of an earlier version, or of round robin
                decision = msgspec.structs.replace(decision, known=None)
                if not recorded.restarted_tokens:
                    decision = msgspec.structs.replace(decision, restarted_tokens=0)
            if recorded is not None and not recorded.head_bytes:  # from an earlier version
                decision = msgspec.structs.replace(decision, head_bytes=0)
            return msgspec.structs.replace(call, decision=decision)
        except NoWorker as error:
            return msgspec.structs.replace(call, decision=None, served=error.served)

    def apply(self, call: RecordedCall) -> None:
        """Make any call but `place`. A request is dispatched as the record says, even if the playback decided
        otherwise. So one different decision does not change later decisions.
        """
        match call:
            case Dispatched():
                self._dispatch(call)
            case FirstToken():
                self._router.first_token(self._tickets[call.ticket][0], call.now_s)
            case RecordedProgress():
                self._router.progress(self._tickets[call.ticket][0], call.completion_tokens)
            case Ended():
                ticket, routing = self._tickets.pop(call.ticket)
                counts = call.prompt_tokens, call.cached_tokens, call.completion_tokens
                self._router.settled(ticket, call.routing or routing, call.now_s, *counts, call.streamed_tokens)
            case Failed():
                self._router.failed(self._tickets.pop(call.ticket)[0], call.now_s, call.at_fault)
            case Applied():
                self._replica.apply(call.peer, call.event, call.now_s)
            case Forgotten():
                self._replica.forget(call.peer, call.now_s)
            case FleetUpdate():
                self._update_fleet(call)

    def _dispatch(self, call: Dispatched) -> None:
        routing, decision = call.routing, call.decision
        if self._last_placed is not None:
            routing, decision = routing or self._last_placed.routing, decision or self._last_placed.decision
        if routing is None or decision is None:
            raise RecordError("a dispatch without a decision")
        self._tickets[self._dispatches] = self._router.dispatched(routing, decision, call.now_s), routing
        self._dispatches += 1

    def _update_fleet(self, call: FleetUpdate) -> None:
        if call.name not in FLEET_UPDATES:
            raise RecordError(f"{call.name!r} is not a fleet update that this version of warmroute knows")
        method, types = getattr(self._router, call.name), FLEET_UPDATES[call.name]
        method(**{name: msgspec.convert(value, types.get(name, Any)) for name, value in call.arguments.items()})
