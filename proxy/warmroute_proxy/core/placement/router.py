"""The router: the one object that decides, and learns from what came of it.

The server calls, for each attempt of a request, `place`, `dispatched`, then as the stream shows it `first_token` and
`progress`, and at the end exactly one of `settled` and `failed`. All state is in here: no clock, no I/O, no other
inputs, so recorded traffic replayed through a router gives the same decisions.

Prefixes of requests that are routed but not computed yet count as cached: without that, overload scatters sessions.
An engine computes in order of arrival, so they are cached by the time that a later request is at work; until then that
one waits, which its queue term says already. Histories that a worker's reports say it has evicted by now (`retention`)
count no more.

A router is for one region, and for one thread.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable
from typing import Any

from warmroute_proxy.core.base.frozen import Frozen
from warmroute_proxy.core.base.mypyc import mypyc_attr
from warmroute_proxy.core.cache.affinity import Affinity
from warmroute_proxy.core.cache.index import PrefixIndex
from warmroute_proxy.core.cache.retention import MIN_TOKENS
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.load.capacity import has_idle_prefill, has_slots, is_full
from warmroute_proxy.core.load.load import WorkerLoad
from warmroute_proxy.core.placement.choices import Choices, NoWorker, WorkerState
from warmroute_proxy.core.placement.decision import Decision, Policy
from warmroute_proxy.core.placement.fleet import Peer, Worker, peer_id
from warmroute_proxy.core.placement.fleet_state import Fleet
from warmroute_proxy.core.placement.histories import Histories
from warmroute_proxy.core.placement.placement import Prompt, place_by_cost, place_in_turn
from warmroute_proxy.core.placement.ticket import Ticket
from warmroute_proxy.core.prompt.bytes_per_token import BytesPerToken, bounded_bytes_per_token
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.facts import Facts

__all__ = ["Decision", "NoWorker", "Router", "Settled", "SettledTurn", "Ticket"]


class Settled(Frozen, frozen=True):
    """What a finished attempt taught. `error_tokens` is predicted minus reported cached tokens, None if unreported."""

    error_tokens: int | None
    predicted_cached_tokens: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Router(Fleet):
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
        super().__init__(region, index, affinity)
        self._policy: Policy = policy
        self._bytes_per_token = BytesPerToken()
        self._histories = Histories()
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
        if self._rates_differ:
            self._level_rates()
        if now_s >= self._forget_at_s:
            self._forget_paces(now_s)
        choices = self._choices_by_model.get(facts.model)
        if choices is None:
            choices = self._choices(facts.model)
        if self._policy == "round_robin":
            usable = choices.alone().usable(facts, now_s, exclude)
            self._turns += 1
            return place_in_turn(usable, self._prompt(facts, choices.mask), self._turns - 1)
        usable = choices.usable(facts, now_s, exclude)
        home = self._home(facts, usable) if usable.peers else None
        return place_by_cost(facts, usable, self._prompt(facts, choices.mask), home, self._traffic, now_s)

    def has_capacity(self, model: str, decision: Decision, now_s: float) -> bool:
        """Whether what was decided would run now, rather than wait in an engine's own queue (`capacity`)."""
        load = self._places[decision.cache_worker].load
        capacity = load.capacity
        if load.running >= capacity.running or load.resident_tokens >= capacity.tokens:
            return False
        if decision.decode is not None and not has_slots(self._places[decision.decode.id].load):
            return False
        return load.prefill_tokens < capacity.prefill or has_idle_prefill(self._choices(model), now_s)

    def has_capacity_at(self, model: str, place_id: str, now_s: float) -> bool:
        """Whether a place would run another request for a model now. One that cannot be used is in nobody's way."""
        place = self._places.get(place_id)
        if place is None or not place.load.usable(now_s):
            return True
        load = place.load
        return has_slots(load) and (
            load.prefill_tokens < load.capacity.prefill or has_idle_prefill(self._choices(model), now_s)
        )

    def next_end_s(self, place_id: str, now_s: float) -> float:
        """Seconds between two ends of requests at a place (`WorkerLoad.next_end_s`), 0 at one that is no more."""
        place = self._places.get(place_id)
        return 0.0 if place is None else place.load.next_end_s(now_s)

    def is_full(self, model: str, now_s: float) -> bool:
        """Whether nothing that serves a model has room; of a peer region nobody knows."""
        return is_full(self._choices(model), now_s)

    def full(self, model: str) -> frozenset[str]:
        """The ids of what serves a model and would let another request wait."""
        choices = self._choices(model)
        return frozenset(place.id for place in (*choices.cache_workers, *choices.decodes) if not has_slots(place.load))

    def dispatched(self, facts: Facts, decision: Decision, now_s: float) -> Ticket:
        """The request was sent as decided: raise load, and count its prefix as cached where it will be."""
        cache_worker = self._places[decision.cache_worker]
        decode_worker = self._places[decision.decode.id] if decision.decode is not None else cache_worker
        ticket = Ticket(decision, facts.chain, cache_worker, decode_worker if decision.kind == "local" else None)
        self._begin(ticket, self._begins(facts), decision.predicted_cached_tokens / decision.prompt_tokens_est, now_s)
        if self._histories.active:
            self._histories.begin(facts.lineage, ticket)
        return ticket

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        """The prompt has been computed. Harmless when called again, or after the end."""
        if ticket.computed or not ticket.open:
            return
        if self._rates_differ:
            self._level_rates()
        ticket.computed = True
        cache_worker, decode_worker = ticket.cache_worker, ticket.decode_worker
        load = cache_worker.load
        load.prefill_ended(ticket, now_s)
        if load.shown_tokens is not None:
            load.computed(ticket.uncached)
        if self._histories.active:
            load.retention.used_tokens += ticket.uncached
        if decode_worker is not None:
            if decode_worker is not cache_worker:
                load.runs(-1, 0)
                load.left(now_s - ticket.sent_s, now_s)
                load = decode_worker.load
            ticket.first_s = now_s
            ticket.prefilling_s = load.prefilling_s(now_s)
            ticket.slowdown_s = load.slowdown_s() - load.slower_s
        # Also what was indexed at dispatch, if it may have been evicted before it was computed.
        if (ticket.losses != self._index.losses or cache_worker.tiered) and self._has_kept(ticket):
            self._index.insert(ticket.chain.hashes, cache_worker.slots)

    def progress(self, ticket: Ticket, completion_tokens: int) -> None:
        """The stream has shown this many tokens so far (not since the last call)."""
        if ticket.decode_worker is not None and ticket.open:
            resident = ticket.decision.prompt_tokens_est + completion_tokens
            ticket.decode_worker.load.runs(0, resident - ticket.resident)
            ticket.resident = resident

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
        """The attempt ended well: lower load, learn, remember. Counts that the engine did not report are None.

        `completion_tokens` come back with the next prompt; `streamed_tokens` are all that have come one by one.
        """
        self._end(ticket, now_s, streamed_tokens)
        predicted = ticket.decision.predicted_cached_tokens
        error, missed = None, 0
        self._settled_turns += 1
        if cached_tokens is not None:
            error = missed = predicted - cached_tokens
            self._predicted_tokens += predicted
            if missed > 0:
                self._overpredicted_tokens += missed
            elif missed:
                self._underpredicted_tokens -= missed
        if self._histories.active or missed >= MIN_TOKENS:
            self._history_ends(ticket, facts, prompt_tokens, cached_tokens, completion_tokens)
        last = self._last_of(ticket, facts, prompt_tokens, cached_tokens, completion_tokens)
        if prompt_tokens is not None:
            self._bytes_per_token.observe(facts.model, last.prompt_bytes, prompt_tokens)
        # Equal prompts share a derived key, so a home of such a session would herd.
        session = None if facts.derived else facts.session
        self._affinity.remember(facts.lineage, facts.chain, last, session, facts.thread)
        return Settled(error, predicted)

    def failed(self, ticket: Ticket, now_s: float, at_fault: Collection[str]) -> None:
        """The attempt ended badly. `at_fault`: worker ids (or `region:<name>`); empty when the client left."""
        ticket.close(now_s)
        if not ticket.computed and self._has_kept(ticket):
            self._index.forget(ticket.chain.hashes[ticket.from_cut :], 1 << ticket.cache_worker.slot)
        for id_ in at_fault:
            place = self._places.get(id_)
            if place is not None:
                place.load.failed(ticket, now_s)
        for party in ticket.parties():
            party.load.breaker.ended(ticket)

    def last(self, facts: Facts) -> SettledTurn | None:
        """The last settled turn of the request's lineage, or of the lineage that a new system prompt cut off.

        Only a conversation under way (turn 2 or later) can have been cut off: titles and compactions begin at turn 1.
        """
        last = self._affinity.last(facts.lineage, facts.chain, facts.turn)
        if last is None and facts.thread is not None and facts.turn > 1:
            return self._affinity.last_of_thread(facts.thread)
        return last

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Everything that pages and metrics show, as plain values."""
        self._level_rates()
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

    def _prompt(self, facts: Facts, mask: int) -> Prompt:
        """The prompt in tokens: by the ratio of its own lineage's last turn, else by what the model has shown."""
        if self._histories.active:
            gone_from = self._histories.gone_from(facts.lineage)
            if gone_from is not None:
                self._forget_history(facts.chain, gone_from)
        chain = facts.chain
        last = self._affinity.last(facts.lineage, chain, facts.turn)
        if last is not None and last.prompt_tokens:
            ratio = bounded_bytes_per_token(last.prompt_bytes / last.prompt_tokens)
        else:
            ratio = self._bytes_per_token.of(facts.model)
        tokens = math.ceil(chain.total_bytes / ratio) or 1
        return Prompt(tokens, ratio, self._index.walk(chain, mask))

    def _forget_history(self, chain: Chain, place: WorkerState) -> None:
        """A cache has evicted what only this conversation uses: it is predicted there no more."""
        if self._places.get(place.id) is place:
            self._index.remove(chain.hashes[bisect_right(chain.ends, self._shared_bytes(chain)) :], 1 << place.slot)

    def _shared_bytes(self, chain: Chain) -> int:
        """The prefix that other conversations have begun with too."""
        shared = self._index.walk(chain, 0).shared
        return shared[-1][0] if shared else 0

    def _history_ends(
        self,
        ticket: Ticket,
        facts: Facts,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        completion_tokens: int | None,
    ) -> None:
        """A turn has ended: what its report says of how long the cache keeps histories, and what it leaves there."""
        if cached_tokens is not None and self._histories.tells(ticket, cached_tokens):
            tokens = ticket.decision.prompt_tokens_est if prompt_tokens is None else prompt_tokens
            shared_tokens = self._shared_bytes(facts.chain) * tokens // (facts.chain.total_bytes or 1)
            expected = max(ticket.decision.predicted_cached_tokens, cached_tokens)
            retention = ticket.cache_worker.load.retention
            retention.found(ticket.distance, tokens, expected - shared_tokens, cached_tokens - shared_tokens)
        if self._histories.active:
            self._histories.end(facts.lineage, ticket, completion_tokens)

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

    def _begin(self, ticket: Ticket, begins: bool, cached_share: float, now_s: float) -> None:
        """A request was sent: its prefix counts as cached, and it is load until it ends."""
        if self._rates_differ:
            self._level_rates()
        cache_worker, decode_worker = ticket.cache_worker, ticket.decode_worker
        load = cache_worker.load
        ticket.sent_s = now_s
        ticket.losses = self._index.losses
        cached = 0 if cache_worker.tiered else ticket.from_cut
        self._index.insert(ticket.chain.hashes, 1 << cache_worker.slot, begins=begins, cached=cached)
        traffic = self._traffic
        if now_s >= traffic.renew_at_s:
            self._renew_weights(now_s)
        uncached = ticket.uncached
        load.inserted += uncached * traffic.sent(cached_share, uncached * load.prefill_s_per_token, now_s)
        if not load.ready:
            load.breaker.sent(ticket, now_s)
        if decode_worker is cache_worker:
            load.prefill_begins(ticket, uncached, now_s, ticket.resident)
            return
        load.prefill_begins(ticket, uncached, now_s)
        if decode_worker is not None:
            decode_worker.load.runs(1, ticket.resident)
            decode_worker.load.breaker.sent(ticket, now_s)

    def _end(self, ticket: Ticket, now_s: float, streamed_tokens: int | None) -> None:
        """A request was served."""
        if not ticket.computed:
            self.first_token(ticket, now_s)
        cache_worker, decode_worker = ticket.cache_worker, ticket.decode_worker
        if streamed_tokens is not None and decode_worker is not None:
            self._streamed(ticket, decode_worker.load, streamed_tokens, now_s)
        ticket.close(now_s)
        if cache_worker.load.breaker.failures:
            cache_worker.load.succeeded()
        if decode_worker is not cache_worker and decode_worker is not None and decode_worker.load.breaker.failures:
            decode_worker.load.succeeded()

    def _streamed(self, ticket: Ticket, load: WorkerLoad, tokens: int, now_s: float) -> None:
        prefilling_s = load.prefilling_s(now_s) - ticket.prefilling_s
        slowdown_s = load.slowdown_s() - load.slower_s
        if slowdown_s < ticket.slowdown_s:  # noqa: PLR1730 - max() takes three times as long
            slowdown_s = ticket.slowdown_s
        stream_s = now_s - ticket.first_s
        if load.pace.observe(tokens - 1, stream_s, prefilling_s, slowdown_s, now_s) and now_s >= self._compare_at_s:
            self._compare_paces(now_s)

    def _begins(self, facts: Facts) -> bool:
        """Whether a conversation begins with this request."""
        return facts.turn == 1 and self._affinity.last(facts.lineage, facts.chain, 1) is None

    def _last_of(
        self,
        ticket: Ticket,
        facts: Facts,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        completion_tokens: int | None,
    ) -> SettledTurn:
        decision, chain = ticket.decision, facts.chain
        worker, partner = decision.cache_worker, decision.decode
        return SettledTurn(
            (worker,) if partner is None else (worker, partner.id),
            decision.region,
            chain.total_bytes,
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            facts.turn,
            facts.salt_epoch,
            chain.hashes[-1],
        )

    def _has_kept(self, ticket: Ticket) -> bool:
        """Whether the ticket's holder is still there, with the cache that it had at dispatch."""
        place = self._places.get(ticket.cache_worker.id)
        return place is ticket.cache_worker or (place is not None and place.slot == ticket.cache_worker.slot)
