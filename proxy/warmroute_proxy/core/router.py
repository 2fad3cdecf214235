"""The router: the one object that decides, and learns from what came of it.

The server calls, for each attempt of a request, `place`, `dispatched`, then as the stream shows it `first_token` and
`progress`, and at the end exactly one of `settled` and `failed`. All state is in here: no clock, no I/O, no other
inputs, so recorded traffic replayed through a router gives the same decisions.

Prefixes of requests that are routed but not computed yet count as cached: without that, overload scatters sessions.
But only while the worker has at most `PENDING_LIMIT_S` of prefill ahead: without that limit everybody who shares a
long system prompt would join the one worker that is about to compute it.

A router is for one region, and for one thread.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from warmroute_proxy.core.affinity import Affinity, Last
from warmroute_proxy.core.facts import Facts
from warmroute_proxy.core.fingerprint import Chain
from warmroute_proxy.core.fleet import Peer, Worker, peer_id
from warmroute_proxy.core.index import PrefixIndex
from warmroute_proxy.core.load import BytesPerToken, EngineLoads, WorkerLoad, bounded_bytes_per_token, level_rates
from warmroute_proxy.core.placement import (
    Choices,
    Decision,
    NoWorker,
    Place,
    Policy,
    Prompt,
    estimate_tokens,
    place_by_cost,
    place_in_turn,
)

__all__ = ["Decision", "EngineLoads", "Last", "NoWorker", "Router", "Settled", "Ticket"]

PENDING_LIMIT_S: Final = 5.0
MAX_MODELS: Final = 1024


class Ticket:
    """One dispatched attempt, and what it has raised. Opaque to its holder; ends by one `settled` or `failed`."""

    __slots__ = (
        "chain",
        "computed",
        "decision",
        "from_cut",
        "generator",
        "holder",
        "indexed",
        "open",
        "resident",
        "slot",
        "uncached",
    )

    def __init__(self, decision: Decision, chain: Chain, holder: Place, generator: Place | None) -> None:
        self.decision = decision
        self.chain = chain
        self.holder = holder
        self.generator = generator
        self.slot = holder.slot
        self.from_cut = bisect_right(chain.ends, decision.matched_bytes)
        self.uncached = decision.prompt_tokens_est - decision.predicted_cached_tokens
        self.resident = decision.prompt_tokens_est
        self.indexed = False
        self.computed = False
        self.open = True


@dataclass(frozen=True, slots=True)
class Settled:
    """What a finished attempt taught. `error_tokens` is predicted minus reported cached tokens, None if unreported."""

    error_tokens: int | None
    predicted_cached_tokens: int


class Router:
    """Places requests and keeps what it needs for that: index, load, affinity. Time is an argument."""

    def __init__(
        self,
        region: str,
        workers: Iterable[Worker],
        peers: Iterable[Peer] = (),
        policy: Policy = "cost",
        *,
        index: PrefixIndex | None = None,
        affinity: Affinity | None = None,
    ) -> None:
        self._region = region
        self._policy: Policy = policy
        self._index = PrefixIndex() if index is None else index
        self._affinity = Affinity() if affinity is None else affinity
        self._bytes_per_token = BytesPerToken()
        self._places: dict[str, Place] = {}
        self._choices_by_model: dict[str, Choices] = {}
        self._turns = 0
        self._settled_turns = 0
        self._predicted_tokens = 0
        self._overpredicted_tokens = 0
        self._underpredicted_tokens = 0
        for worker in workers:
            self.add_worker(worker)
        for peer in peers:
            if peer.region != region:
                self._add(peer_id(peer.region), peer)

    # Decisions

    def place(self, facts: Facts, now_s: float, exclude: frozenset[str] = frozenset()) -> Decision:
        """Where the request goes; `NoWorker` if nowhere. `exclude`: worker ids (or `region:<name>`) that failed."""
        choices = self._choices(facts.model)
        if self._policy == "round_robin":
            choices = choices._replace(peers=())
        usable = choices.usable(facts, now_s, exclude)
        prompt = self._prompt(facts, choices.mask)
        if self._policy == "round_robin":
            self._turns += 1
            return place_in_turn(usable, prompt, self._turns - 1)
        return place_by_cost(facts, usable, prompt, self._home(facts, usable), now_s)

    def dispatched(self, facts: Facts, decision: Decision, now_s: float) -> Ticket:
        """The request was sent as decided: raise load, and count its prefix as cached where it will be."""
        holder = self._places[decision.holder]
        generator = self._places[decision.decode.id] if decision.decode is not None else holder
        ticket = Ticket(decision, facts.chain, holder, generator if decision.kind == "local" else None)
        if holder.load.queue_s(now_s) <= PENDING_LIMIT_S:
            self._index.insert(ticket.chain, ticket.slot)
            ticket.indexed = True
        for place in _parties(ticket):
            place.load.running += 1
            place.load.breaker.sent(now_s)
        holder.load.prefill_tokens += ticket.uncached
        if ticket.generator is not None:
            ticket.generator.load.resident_tokens += ticket.resident
        return ticket

    def first_token(self, ticket: Ticket, now_s: float) -> None:  # noqa: ARG002 - time is part of every event
        """The prompt has been computed. Harmless when called again, or after the end."""
        if not ticket.open or ticket.computed:
            return
        ticket.computed = True
        ticket.holder.load.prefill_tokens -= ticket.uncached
        if ticket.generator is not None and ticket.generator is not ticket.holder:
            ticket.holder.load.running -= 1
        if not ticket.indexed and self._has_kept(ticket):
            self._index.insert(ticket.chain, ticket.slot)
            ticket.indexed = True

    def progress(self, ticket: Ticket, completion_tokens: int) -> None:
        """The stream has shown this many tokens so far (not since the last call)."""
        if ticket.generator is not None and ticket.open:
            resident = ticket.decision.prompt_tokens_est + completion_tokens
            ticket.generator.load.resident_tokens += resident - ticket.resident
            ticket.resident = resident

    def settled(
        self,
        ticket: Ticket,
        facts: Facts,
        now_s: float,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        completion_tokens: int | None,
    ) -> Settled:
        """The attempt ended well: lower load, learn, remember. Counts that the engine did not report are None."""
        self.first_token(ticket, now_s)
        _close(ticket)
        decision = ticket.decision
        for place in _parties(ticket):
            place.load.succeeded()
        if prompt_tokens is not None:
            self._bytes_per_token.observe(facts.model, facts.chain.total_bytes, prompt_tokens)
        last = Last(
            workers=tuple(worker.id for worker in decision.workers) or (decision.holder,),
            region=decision.region,
            prompt_bytes=facts.chain.total_bytes,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=cached_tokens,
            turn=facts.turn,
            salt_epoch=facts.salt_epoch,
            tip=facts.chain.hashes[-1],
        )
        # Equal prompts share a derived key, so a home of such a session would herd.
        self._affinity.remember(
            facts.lineage, facts.chain, last, None if facts.derived else facts.session, facts.thread
        )
        return self._score(decision.predicted_cached_tokens, cached_tokens)

    def failed(self, ticket: Ticket, now_s: float, at_fault: Collection[str]) -> None:
        """The attempt ended badly. `at_fault`: worker ids (or `region:<name>`); empty when the client left."""
        _close(ticket)
        if ticket.indexed and not ticket.computed and self._has_kept(ticket):
            self._index.forget(ticket.chain, ticket.slot, ticket.from_cut)
        for id_ in at_fault:
            place = self._places.get(id_)
            if place is not None:
                place.load.failed(now_s)

    def last(self, facts: Facts) -> Last | None:
        """The last settled turn of the request's lineage, or of the lineage that a new system prompt cut off.

        Only a conversation under way (turn 2 or later) can have been cut off: titles and compactions begin at turn 1.
        """
        last = self._affinity.last(facts.lineage, facts.chain, facts.turn)
        if last is None and facts.thread is not None and facts.turn > 1:
            return self._affinity.last_of_thread(facts.thread)
        return last

    # The fleet

    def add_worker(self, worker: Worker) -> None:
        """A rank found at run time, or a changed worker of the same id (its load and cache stay)."""
        self._add(worker.id, worker)

    def remove_worker(self, worker_id: str) -> None:
        """A worker that is no more. Unknown ids are ignored, here and below: probes race with removals."""
        if self._places.pop(worker_id, None) is not None:
            self._index.retire(worker_id)
            self._choices_by_model.clear()

    def worker_restarted(self, worker_id: str) -> None:
        """The engine lost its cache: nothing is predicted there any more."""
        place = self._places.get(worker_id)
        if place is not None:
            self._index.retire(worker_id)
            place.slot = self._index.slot_for(worker_id)
            place.load.restarted()
            self._choices_by_model.clear()

    def set_draining(self, worker_id: str, draining: bool) -> None:
        """A draining worker finishes what it has and gets nothing new."""
        if worker_id in self._places:
            self._places[worker_id].load.set_health(draining=draining)

    def set_up(self, worker_id: str, up: bool) -> None:
        """What the probe says."""
        if worker_id in self._places:
            self._places[worker_id].load.set_health(up=up)

    def set_peer_up(self, region: str, up: bool) -> None:
        """What the probe says of a peer region."""
        self.set_up(peer_id(region), up)

    def observe_loads(self, worker_id: str, loads: EngineLoads, now_s: float) -> None:
        """What the engine says of itself at `/v1/loads`."""
        place = self._places.get(worker_id)
        if place is not None:
            if place.load.has_begun_anew(loads):
                self.worker_restarted(worker_id)
            place.load.observe(loads, now_s)
            level_rates([other.load for other in self._places.values() if _holds(other)])

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Everything that pages and metrics show, as plain values."""
        places = self._places.values()
        return {
            "region": self._region,
            "policy": self._policy,
            "workers": {
                place.id: {"engine": place.on.engine, "dp_rank": place.on.dp_rank, "role": place.on.role}
                | place.load.as_dict(now_s)
                for place in places
                if isinstance(place.on, Worker)
            },
            "peers": {
                place.on.region: {"rtt_s": place.on.rtt_s} | place.load.as_dict(now_s)
                for place in places
                if isinstance(place.on, Peer)
            },
            "index": {"entries": self._index.entries, "rotations": self._index.rotations},
            "affinity": {"lineages": self._affinity.lineages, "sessions": self._affinity.sessions},
            "bytes_per_token": self._bytes_per_token.as_dict(),
            "prediction": {
                "turns": self._settled_turns,
                "predicted_tokens": self._predicted_tokens,
                "overpredicted_tokens": self._overpredicted_tokens,
                "underpredicted_tokens": self._underpredicted_tokens,
            },
        }

    # Inside

    def _add(self, id_: str, on: Worker | Peer) -> None:
        known = self._places.get(id_)
        load = WorkerLoad() if known is None else known.load
        self._places[id_] = Place(id_, on, load, self._index.slot_for(id_))
        self._choices_by_model.clear()

    def _choices(self, model: str) -> Choices:
        """All that serves a model. Kept until the fleet changes; at most `MAX_MODELS`, then all are made anew."""
        choices = self._choices_by_model.get(model)
        if choices is None:
            serving = [place for place in self._places.values() if place.on.serves(model)]
            holders = tuple(place for place in serving if _holds(place))
            decodes = tuple(place for place in serving if place.role == "decode")
            peers = tuple(place for place in serving if isinstance(place.on, Peer))
            mask = sum(1 << place.slot for place in (*holders, *peers))
            if len(self._choices_by_model) >= MAX_MODELS:
                self._choices_by_model.clear()
            choices = self._choices_by_model[model] = Choices(self._region, holders, decodes, peers, mask)
        return choices

    def _prompt(self, facts: Facts, mask: int) -> Prompt:
        """The prompt in tokens: by the ratio of its own lineage's last turn, else by what the model has shown."""
        ratio = self._bytes_per_token.of(facts.model)
        last = self._affinity.last(facts.lineage, facts.chain, facts.turn)
        if last is not None and last.prompt_tokens:
            ratio = bounded_bytes_per_token(last.prompt_bytes / last.prompt_tokens)
        return Prompt(estimate_tokens(facts.chain.total_bytes, ratio), ratio, self._index.walk(facts.chain, mask))

    def _home(self, facts: Facts, usable: Choices) -> str | None:
        """The session's home region if it can be used: the client's hint, else where the session was served."""
        regions = [place.region for place in usable.peers]
        if facts.home_hint is not None and (facts.home_hint in regions or facts.home_hint == self._region):
            return facts.home_hint
        for session in (facts.session, facts.parent):  # a sub-agent begins where its parent lives
            home = self._affinity.home(session) if session is not None else None
            if home is not None:
                return home if home in regions else None
        return None

    def _has_kept(self, ticket: Ticket) -> bool:
        """Whether the ticket's holder is still there, with the cache that it had at dispatch."""
        place = self._places.get(ticket.holder.id)
        return place is not None and place.slot == ticket.slot

    def _score(self, predicted: int, cached: int | None) -> Settled:
        self._settled_turns += 1
        if cached is None:
            return Settled(None, predicted)
        self._predicted_tokens += predicted
        self._overpredicted_tokens += max(0, predicted - cached)
        self._underpredicted_tokens += max(0, cached - predicted)
        return Settled(predicted - cached, predicted)


def _holds(place: Place) -> bool:
    """Whether prompts are kept in this worker's cache."""
    return place.role in {"prefill", "aggregated"}


def _parties(ticket: Ticket) -> tuple[Place, ...]:
    """The places that an attempt runs on."""
    if ticket.generator is None or ticket.generator is ticket.holder:
        return (ticket.holder,)
    return (ticket.holder, ticket.generator)


def _close(ticket: Ticket) -> None:
    """Lower what the ticket has raised, once."""
    assert ticket.open, "a ticket is settled or failed once"
    ticket.open = False
    if not ticket.computed:
        ticket.holder.load.prefill_tokens -= ticket.uncached
    if ticket.generator is not None:
        ticket.generator.load.resident_tokens -= ticket.resident
        ticket.generator.load.running -= 1
    if ticket.generator is None or (ticket.generator is not ticket.holder and not ticket.computed):
        ticket.holder.load.running -= 1
