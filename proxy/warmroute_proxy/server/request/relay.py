"""One turn: place, dispatch, relay, settle. The request path, without its parsing.

A turn is a small state machine driven by callbacks from the event loop; nothing here waits.

    begin ──▶ forward ──(peer unreachable before its first byte)──┐
      │                                                           ▼
      └──────────────────────────────────────────────────────▶ dispatch ──▶ content* ──▶ finished ──▶ settled
                                                                  ▲   │                      ▲
                                        one retry, nothing sent ──┘   └── failed ────────────┤
                                                                      client left ───────────┘

Rules that hold in every state:
- nothing is retried once content has reached the client, only continued where the model has that on (`continuation`);
- a retry has a new rid and goes to other workers;
- the settled entry is durable before the client sees the end of its answer;
- a stream that broke ends with an error event and without the terminating chunk;
- a client that leaves: both legs are aborted at once, the engine's final usage is awaited for `LEFT_WAIT_S`, and the
  row is settled by it, or by a lower bound that is named as one; several answers at once (n > 1, a list of prompts)
  have ids that only the engine knows, so they are ended by closing the connection, at once, since no usage will come;
- a forwarded turn whose proxy goes, or whose connection breaks, without word of its client is aborted likewise, and is
  `cut_off`;
- what failed by a fault of ours or an engine's is charged nothing: its receipt has rates of zero.
"""

import asyncio
import logging
from typing import Final

import msgspec

from warmroute_proxy.core.accounting.entry import Entry, Outcome
from warmroute_proxy.core.accounting.entry_steps import dispatch, interrupt
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.core.queue.admission import Waiter
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.engines.engine_headers import engine_headers
from warmroute_proxy.server.engines.passthrough import Write
from warmroute_proxy.server.ledger.journal import JournalError
from warmroute_proxy.server.request.admission import Asker
from warmroute_proxy.server.request.attempt import Attempt
from warmroute_proxy.server.request.continuation import Continuation, broken, unable
from warmroute_proxy.server.request.failure import Failure, no_worker, timed_out
from warmroute_proxy.server.request.forwarding import ForwardedRequest
from warmroute_proxy.server.request.turn_end import EVENTS, TurnEnd

log = logging.getLogger(__name__)

LEFT_WAIT_S: Final = 2.0
LOST_IDLE_S: Final = 2.0  # where another can go on with the answer of an engine that does not answer any more
MAX_ATTEMPTS: Final = 2
COMMENT_EVERY_S: Final = 15.0
PROGRESS_EVERY_EVENTS: Final = 32
CUT_OFF: Final = frozenset({"draining", "deadline_exceeded"})  # what we end, whatever the engine would have said

_NOBODY: Final[frozenset[str]] = frozenset()


class InferenceRequest(TurnEnd):
    """One request under way."""

    waiter: "Waiter[Asker] | None" = None
    excluded: frozenset[str] = _NOBODY  # the workers and peers that it is not to go to
    _paused = False
    _prefilled = False
    _dispatched_s = 0.0
    _heard_s = 0.0
    _comment_at_s = 0.0
    _reported_events = 0
    _swept_events = 0

    # -- place and dispatch

    def begin(self) -> None:
        """Place the turn: here, or in the region that holds its session; or let it wait until there is room."""
        exchange = self._exchange
        exchange.on_gone = self._client_left
        exchange.on_pause = self._pause
        try:
            now_s = self._services.clock()
            decision = self._place(now_s)
            if decision is not None:
                self._go(decision, now_s)
        except Exception as error:
            self._broke("the dispatch", error)

    def admitted(self, decision: Decision) -> None:
        """A turn that has waited goes where it was placed now. Its wait was nobody's work."""
        self._since_s = self._services.clock()
        self._comment_at_s = self._since_s + self._services.config.limits.head_hold_s
        try:
            self._go(decision, self._since_s)
        except Exception as error:
            self._broke("the dispatch after a wait", error)

    def _go(self, decision: Decision, now_s: float) -> None:
        self._services.decisions.append((self.id, decision))
        if decision.kind == "local":
            self._dispatch(decision, now_s)
            return
        on_failure, on_end = self._forward_failed, self._forward_ended
        ForwardedRequest(self._services, self._exchange, self.intake, self.id, decision, on_failure, on_end).begin()

    def _forward_failed(self, peer: str) -> None:
        """The home did not answer: the turn is served here."""
        self.excluded |= {peer}
        self.id = self._services.engines.ids.receipt()  # the home may have a row under the old one
        self.intake.facts = _stay(self.intake.facts)
        self.begin()

    def _forward_ended(self) -> None:
        if self.hold is not None:
            self._services.admission.ended(self, self.hold.tokens)

    def _place(self, now_s: float) -> Decision | None:
        services, intake = self._services, self.intake
        router, admission = services.router, services.admission
        if intake.choices > 1:
            # SGLang has one bootstrap room for all choices of a prompt, so that all but one would wait for ever.
            self.excluded |= services.engines.split()
        try:
            decision = router.place(intake.facts, now_s, self.excluded)
        except NoWorker as error:
            self._refuse(no_worker(error, split=intake.choices > 1 and services.engines.all_split()))
            return None
        if (
            admission.queue.requests
            or intake.tenant.limits is not None
            or not router.has_capacity(intake.facts.model, decision, now_s)
        ):
            return admission.enter(self, decision)
        return decision

    def _dispatch(self, decision: Decision, now_s: float) -> None:
        services, intake, request = self._services, self.intake, self._exchange.request
        engines, facts = services.engines, intake.facts
        rid = engines.ids.rid()
        try:
            self._journal(decision, rid)
        except JournalError:
            self._not_journalled()
            self._refuse(Refusal(503, "the ledger cannot be written", code="ledger_unavailable", retry_after_s=1))
            return
        self._ticket = services.router.dispatched(facts, decision, now_s)
        self._prefilled = False
        attempt = self._attempt = Attempt(self, engines, decision, rid, intake, services.answer_bytes)
        tagged = intake.prompts == 1 and engines.tag(decision, rid, facts.chain)
        services.live.add(self)
        self._dispatched_s = self._heard_s = sent_s = services.clock()
        self._proxy_s += sent_s - (self._since_s or request.received_s)
        attempt.start(intake, engine_headers(request.headers), request.path, tagged=tagged)

    def _not_journalled(self) -> None:
        """A second attempt that cannot be written is not made, and the turn is over."""
        if self._entry is not None:
            self._ended = True
            self._interrupt()

    def _interrupt(self) -> None:
        """By a fault of ours: the row says so, and nobody waits for it."""
        entry, services = self._entry, self._services
        if entry is not None and not entry.ended:
            interrupt(entry, services.unix_clock())
            services.ledger.settle(entry, _nobody)
            services.request_metrics.interrupted()

    def _journal(self, decision: Decision, rid: str) -> None:
        """Open the entry, or add an attempt to it. Neither is waited for."""
        services, intake, entry = self._services, self.intake, self._entry
        served_by = services.engines.served_by(decision)
        if entry is None:
            facts, model = intake.facts, intake.model
            entry = Entry(
                self.id, intake.tenant.name, intake.session, f"{facts.lineage:016x}", facts.turn,
                services.region, model.name, intake.route, intake.stream, model.rates,
                services.unix_clock(), intake.forwarded_from,
            )  # fmt: skip
        dispatch(entry, rid, served_by, decision.predicted_cached_tokens)
        services.ledger.open(entry)
        self._entry = entry

    # -- what the attempt tells

    def content(self, data: bytes) -> None:
        """Bytes for the client."""
        now = self._heard_s = self._services.clock()
        if self._gone:
            return
        if self._ttft_ms is None:
            self._first_content(now)
        if self._continuation is not None:
            self.prefilled(now)  # by the engine of the rest
            passed = self._continuation.take(data)
            if passed is None:
                self.failed(Failure(broken(), (), False))
                return
            data = passed
        if self._exchange.started:
            self._exchange.write(data)
        else:
            self._exchange.start(200, self._response_headers(EVENTS), data)

    def way(self) -> Write | None:
        """Where more of the stream may go unseen: the sweep sees how far it has come."""
        return None if self._gone or self._continuation is not None else self._exchange.direct_write()

    def _first_content(self, now: float) -> None:
        self._ttft_ms = (now - self._exchange.request.received_s) * 1000
        self._services.metrics.ttft.observe(now - self._exchange.request.received_s)
        self.prefilled(now)
        if self.intake.model.continue_broken:
            self._continuation = Continuation.of(self.intake)
        self._drop_body()
        self._proxy_s += self._services.clock() - now

    def prefilled(self, now_s: float) -> None:
        """The prompt is computed: its tokens no longer stand in anybody's way."""
        if not self._prefilled and self._ticket is not None:
            self._prefilled = True
            self._services.router.first_token(self._ticket, now_s)
            self._freed()

    def finished(self, now_s: float) -> None:
        """The answer is complete."""
        attempt = self._attempt
        assert attempt is not None
        self._services.admission.retries.succeeded(now_s)
        if self._gone:
            self._settle_left(now_s, charged=True)
            return
        if attempt.answer is not None:
            self._ttft_ms = (now_s - self._exchange.request.received_s) * 1000
        elif not self._exchange.started:
            self._first_content(now_s)
            self._exchange.start(200, self._response_headers(EVENTS))
        self._settle("completed", 200, now_s, charged=True)

    def failed(self, failure: Failure) -> None:
        """The attempt did not work out: abort both legs, then try once more or say so."""
        services, attempt = self._services, self._attempt
        assert attempt is not None
        if not self._gone:
            attempt.abort()
        attempt.close()
        services.live.discard(self)
        self._since_s = now_s = services.clock()
        # What an engine does after we told it to stop is no fault of its own.
        self._tell_router_failed(() if self._gone else failure.at_fault, now_s)
        if self._gone:
            self._settle_left(now_s, charged=attempt.usage is not None)
            return
        self.excluded |= set(failure.avoid)
        assert self._entry is not None
        if failure.retryable and not attempt.started and len(self._entry.rids) < MAX_ATTEMPTS and self._try_again():
            return
        refusal = failure.refusal
        if self._continuation is not None:
            if self._continue(self._continuation, failure, attempt):
                return
            refusal = self._continuation.refusal(failure)
        outcome: Outcome = "engine_error" if refusal.status >= 500 else "refused"
        if refusal.code in CUT_OFF and not failure.at_fault:
            outcome = "cut_off"
        status = 200 if self._exchange.started else refusal.status
        self._refusal = refusal
        self._settle(outcome, status, now_s, charged=False)

    def _continue(self, continuation: Continuation, failure: Failure, attempt: Attempt) -> bool:
        """Ask another engine for the rest of an answer."""
        rest = continuation.rest(failure, attempt)
        self.excluded |= unable(self._services.engines, self._exchange.request.path) if rest is not None else set()
        if rest is None or not self._try_again():
            return False
        continuation.goes_on(rest)
        self._reported_events = self._swept_events = 0
        self._pause(self._paused)
        self._services.metrics.add("warmroute_continued_total")
        return True

    def _try_again(self) -> bool:
        services, facts = self._services, _stay(self.intake.facts)
        now = services.clock()
        self.intake.facts = facts
        try:
            decision = services.router.place(facts, now, self.excluded | services.router.full(facts.model))
        except NoWorker:
            return False
        if not services.admission.retries.spend(now):
            services.metrics.add("warmroute_retries_refused_total")
            return False
        services.metrics.add("warmroute_retries_total")
        services.decisions.append((self.id, decision))
        self._dispatch(decision, now)
        return True

    # -- what the client does

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        self._read_slowly = self._read_slowly or paused
        self._heard_s = self._services.clock()
        if self._attempt is not None:
            self._attempt.pause(paused)

    def _client_left(self) -> None:
        """Nobody listens any more: stop the engines now, and wait a little for what they will say of it."""
        self._gone = True
        try:
            if self._attempt is not None:
                self._attempt.see()
            self._leave()
        except Exception as error:
            self._broke("leaving", error)

    def _leave(self) -> None:
        if self.waiter is not None:
            self._services.admission.leave(self)
        if self._ended or self._attempt is None:
            return
        if not self._lost_between:
            self._services.metrics.add("warmroute_client_left_total")
        if self.intake.several:
            self._left_for_good()
            return
        self._attempt.pause(False)
        self._attempt.abort()
        asyncio.get_running_loop().call_later(LEFT_WAIT_S, self._left_for_good)

    def _left_for_good(self) -> None:
        if self._ended or self._attempt is None:
            return
        try:
            now_s = self._services.clock()
            self._attempt.close()
            self._tell_router_failed((), now_s)
            self._settle_left(now_s, charged=True)
        except Exception as error:
            self._broke("the end", error)

    def sweep(self, now: float) -> None:
        """Deadlines, and signs of life while a long prompt is computed. Called every quarter of a second."""
        attempt, limits = self._attempt, self._services.config.limits
        if attempt is None or attempt.ended or self._gone:
            return
        if attempt.scanner.content_events != self._swept_events:
            self._moved_on(attempt.scanner.content_events, now)
        if now - self._exchange.request.received_s > limits.total_timeout_s:
            refusal = Refusal(504, f"no complete answer within {limits.total_timeout_s:g} s", code="deadline_exceeded")
            self.failed(Failure(refusal, (), False))
            return
        if attempt.started:
            idle_s = limits.idle_timeout_s
            if self._continuation is not None and attempt.waits_for.engine in self._services.engines.lost:
                idle_s = min(idle_s, LOST_IDLE_S)
            if not self._paused and now - self._heard_s > idle_s:
                self.failed(timed_out(attempt.waits_for, f"no token for {idle_s:g} s"))
        elif now - self._dispatched_s > limits.first_token_timeout_s:
            what = "first token" if self.intake.stream else "answer"
            self.failed(timed_out(attempt.waits_for, f"no {what} within {limits.first_token_timeout_s:g} s"))
        elif attempt.waits_for.engine in self._services.engines.lost:
            refusal = Refusal(504, "the engine does not answer any more", code="engine_timeout")
            self.failed(Failure(refusal, (attempt.waits_for.id,), True))
        elif self.intake.stream and now >= (
            self._comment_at_s or self._exchange.request.received_s + limits.head_hold_s
        ):
            self._comment_at_s = now + COMMENT_EVERY_S
            if not self._exchange.started:
                self._exchange.start(200, self._response_headers(EVENTS))
            self._exchange.write(b": the prompt is being computed\n\n")

    def _moved_on(self, events: int, now: float) -> None:
        """Content has come since the last sweep."""
        self._swept_events = events
        self._heard_s = now
        if events - self._reported_events >= PROGRESS_EVERY_EVENTS and self._ticket is not None:
            self._reported_events = events
            self._services.router.progress(self._ticket, events)

    def _broke(self, what: str, error: Exception) -> None:
        """An error of ours. Its type is logged, never its text."""
        log.error("%s of a turn failed: %s", what, type(error).__name__)
        self.crashed()

    def crashed(self) -> None:
        """An error of ours, at whatever point: the client is told, nothing is charged, and nothing is left behind."""
        services = self._services
        services.live.discard(self)
        self._ended = True
        self._interrupt()
        if self.waiter is not None:
            services.admission.leave(self)
        services.admission.ended(self, 0)
        self._exchange.fail()
        ticket, self._ticket = self._ticket, None
        if ticket is not None and ticket.open:
            services.router.failed(ticket, services.clock(), ())
        if self._attempt is not None:
            self._attempt.abort()
            self._attempt.close()

    def shut_down(self) -> None:
        """The proxy is going: say so rather than break off."""
        if not self._ended and self._attempt is not None and not self._attempt.ended:
            self.failed(
                Failure(Refusal(503, "the proxy is shutting down", code="draining", retry_after_s=1), (), False)
            )


def _nobody(_failure: JournalError | None) -> None:
    """Who waits for a row that nobody is told of."""


def _stay(facts: Facts) -> Facts:
    """The same facts, for a request that is served here whatever happens."""
    return msgspec.structs.replace(facts, may_forward=False)
