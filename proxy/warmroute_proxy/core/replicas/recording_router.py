"""A router that records its calls and decisions, and a playback that makes the decisions of a record again.

A router has no inputs but its calls: no clock, no randomness, no other state. So the record of its calls, in order, is
the input of every decision, and together with the decisions it is a proof: made again, on a new router, each decision
must be the same, with every term of its cost.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import msgspec

from warmroute_proxy.core.cache.regional_turn import RegionalTurn
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
    FleetUpdate,
    Opened,
    Placed,
    Progress,
    RecordError,
)

FLEET_UPDATES: Final[dict[str, dict[str, Any]]] = {
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
    "observe_turn": {"turn": RegionalTurn, "now_s": float},
    "observe_session": {"session": int, "returns": int, "now_s": float},
    "observe_moves": {"worker_id": str, "tier": Tier, "tokens": int, "seconds": float},
}
"""The methods that change a router's fleet, by their names in records, with the types of their arguments in order. They
are written out because compiled methods have no annotations.
"""


class RecordedRouter(Router):
    """A router that records each call that changes it, and each decision.

    Methods that change nothing are inherited. A router makes no calls to itself by these methods, so that each call is
    recorded once.
    """

    def __init__(
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
        super().__init__(region, workers, peers, policy)
        self._write = write
        self._regions = frozenset({region, *(peer.region for peer in peers)})
        self._last_placed: tuple[Facts, Decision] | None = None
        self._tickets: dict[Ticket, tuple[int, Facts]] = {}
        self._dispatches = 0
        write(Opened(software, region, policy, workers, peers))

    # Attempts

    def place(self, facts: Facts, now_s: float, exclude: frozenset[str] = frozenset()) -> Decision:
        try:
            decision = super().place(facts, now_s, exclude)
        except NoWorker as error:
            self._write(Placed(now_s, self._without_unknown_home(facts), exclude, None, error.served))
            raise
        self._last_placed = facts, decision
        self._write(Placed(now_s, self._without_unknown_home(facts), exclude, decision))
        return decision

    def dispatched(self, facts: Facts, decision: Decision, now_s: float) -> Ticket:
        ticket = super().dispatched(facts, decision, now_s)
        self._tickets[ticket] = self._dispatches, facts
        self._dispatches += 1
        placed = self._last_placed
        if placed is not None and placed[0] is facts and placed[1] is decision:
            self._write(Dispatched(now_s))
        else:
            self._write(Dispatched(now_s, self._without_unknown_home(facts), decision))
        return ticket

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        super().first_token(ticket, now_s)
        if ticket in self._tickets:
            self._write(FirstToken(self._tickets[ticket][0], now_s))

    def progress(self, ticket: Ticket, completion_tokens: int) -> None:
        super().progress(ticket, completion_tokens)
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
        settled = super().settled(ticket, facts, now_s, *counts, streamed_tokens)
        number, dispatched = self._tickets.pop(ticket)
        other = None if dispatched is facts else self._without_unknown_home(facts)
        self._write(Ended(number, now_s, *counts, other, streamed_tokens))
        return settled

    def failed(self, ticket: Ticket, now_s: float, at_fault: Collection[str]) -> None:
        super().failed(ticket, now_s, at_fault)
        self._write(Failed(self._tickets.pop(ticket)[0], now_s, list(at_fault)))

    # The fleet

    def add_worker(self, worker: Worker) -> None:
        super().add_worker(worker)
        self._write_update("add_worker", worker=worker)

    def remove_worker(self, worker_id: str) -> None:
        super().remove_worker(worker_id)
        self._write_update("remove_worker", worker_id=worker_id)

    def worker_restarted(self, worker_id: str) -> None:
        super().worker_restarted(worker_id)
        self._write_update("worker_restarted", worker_id=worker_id)

    def set_draining(self, worker_id: str, draining: bool) -> None:
        super().set_draining(worker_id, draining)
        self._write_update("set_draining", worker_id=worker_id, draining=draining)

    def set_up(self, worker_id: str, up: bool) -> None:
        super().set_up(worker_id, up)
        self._write_update("set_up", worker_id=worker_id, up=up)

    def set_peer_up(self, region: str, up: bool) -> None:
        super().set_peer_up(region, up)
        self._write_update("set_peer_up", region=region, up=up)

    def observe_loads(self, worker_id: str, loads: EngineLoads, now_s: float) -> None:
        super().observe_loads(worker_id, loads, now_s)
        self._write_update("observe_loads", worker_id=worker_id, loads=loads, now_s=now_s)

    def cache_stored(self, worker_id: str, keys: list[int], tier: Tier) -> None:
        super().cache_stored(worker_id, keys, tier)
        self._write_update("cache_stored", worker_id=worker_id, keys=keys, tier=tier)

    def cache_removed(self, worker_id: str, keys: list[int], tier: Tier) -> None:
        super().cache_removed(worker_id, keys, tier)
        self._write_update("cache_removed", worker_id=worker_id, keys=keys, tier=tier)

    def cache_cleared(self, worker_id: str) -> None:
        super().cache_cleared(worker_id)
        self._write_update("cache_cleared", worker_id=worker_id)

    def observe_moves(self, worker_id: str, tier: Tier, tokens: int, seconds: float) -> None:
        super().observe_moves(worker_id, tier, tokens, seconds)
        self._write_update("observe_moves", worker_id=worker_id, tier=tier, tokens=tokens, seconds=seconds)

    def observe_session(self, session: int, returns: int, now_s: float) -> None:
        super().observe_session(session, returns, now_s)
        self._write_update("observe_session", session=session, returns=returns, now_s=now_s)

    def observe_turn(self, turn: RegionalTurn, now_s: float) -> None:
        super().observe_turn(turn, now_s)
        self._write_update("observe_turn", turn=turn, now_s=now_s)

    def _write_update(self, name: str, **arguments: Any) -> None:
        self._write(FleetUpdate(name, arguments))

    def _without_unknown_home(self, facts: Facts) -> Facts:
        if facts.home_hint is None or facts.home_hint in self._regions:
            return facts
        return msgspec.structs.replace(facts, home_hint=UNKNOWN_REGION)


class Playback:
    """Makes the calls of a record again, on a new router."""

    def __init__(self, opened: Opened) -> None:
        self._router = Router(opened.region, opened.workers, opened.peers, opened.policy)
        self._last_placed: Placed | None = None
        self._tickets: dict[int, tuple[Ticket, Facts]] = {}
        self._dispatches = 0

    def place(self, call: Placed) -> Placed:
        """The call with the decision that is made now."""
        self._last_placed = call
        try:
            decision = self._router.place(call.facts, call.now_s, call.exclude)
            recorded = call.decision
            if recorded is not None and recorded.known is None:  # of an earlier version, or by round robin
                decision = msgspec.structs.replace(decision, known=None)
                if not recorded.restarted_tokens:
                    decision = msgspec.structs.replace(decision, restarted_tokens=0)
            return msgspec.structs.replace(call, decision=decision)
        except NoWorker as error:
            return msgspec.structs.replace(call, decision=None, served=error.served)

    def apply(self, call: Call) -> None:
        """Make any other call. Requests are dispatched as decided in the record, so that each decision is compared by
        itself.
        """
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
            case FleetUpdate():
                self._update_fleet(call)

    def _dispatch(self, call: Dispatched) -> None:
        facts, decision = call.facts, call.decision
        if self._last_placed is not None:
            facts, decision = facts or self._last_placed.facts, decision or self._last_placed.decision
        if facts is None or decision is None:
            raise RecordError("a dispatch without a decision")
        self._tickets[self._dispatches] = self._router.dispatched(facts, decision, call.now_s), facts
        self._dispatches += 1

    def _update_fleet(self, call: FleetUpdate) -> None:
        if call.name not in FLEET_UPDATES:
            raise RecordError(f"{call.name!r} is no fleet update that this version of warmroute knows")
        method, types = getattr(self._router, call.name), FLEET_UPDATES[call.name]
        method(**{name: msgspec.convert(value, types.get(name, Any)) for name, value in call.arguments.items()})
