"""One inference request, after its body was read and parsed: place, dispatch, relay, settle.

The request is a state machine (`states.REQUEST`) driven by callbacks from the event loop; nothing here waits. In every
state:
- a retry has a new rid (request id) and goes to other workers. After the first content there is no retry, only a
  `continuation` of the answer;
- the ledger row is settled (usage and price are final) and durable before the client gets the end of its answer;
- a stream that broke ends with an error event and without the terminating chunk;
- if the client leaves, the requests to its engines (legs) are aborted at once, and the final usage is awaited for
  `LEFT_WAIT_S`. Without it, the row has a lower bound of the tokens. If an abort is impossible, the connection is just
  closed: for several answers (n > 1), whose ids only the engine knows, and for servers other than SGLang;
- a request from another region ends as `cut_off` if that region's proxy, or the connection to it, goes away without a
  message that the client has left;
- a request that fails by a fault of the proxy or of an engine is not charged.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from warmroute_proxy.core.accounting.entry import Outcome
from warmroute_proxy.core.cache.prompt_memory import KnownPrompt
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.queue.admission import Waiter
from warmroute_proxy.core.queue.quota import NO_TOKENS, UsedTokens
from warmroute_proxy.core.queue.reservation import Reservation
from warmroute_proxy.dialects.unsupported import OF_SGLANG, unsupported_in
from warmroute_proxy.server.base.errors import Refusal, shutting_down
from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.engines.engine_headers import engine_headers
from warmroute_proxy.server.engines.passthrough import Write
from warmroute_proxy.server.http.exchange import Exchange, Problem
from warmroute_proxy.server.intake.body import NO_BODY, Body
from warmroute_proxy.server.intake.parsed_request import ReadRequest
from warmroute_proxy.server.ledger.journal import JournalError
from warmroute_proxy.server.request.accepted_effort import with_accepted_effort
from warmroute_proxy.server.request.admission import RequestToAdmit
from warmroute_proxy.server.request.attempt import Attempt
from warmroute_proxy.server.request.client_answer import ClientAnswer
from warmroute_proxy.server.request.continuation import Continuation, broken, unable
from warmroute_proxy.server.request.deadlines import RequestProgress
from warmroute_proxy.server.request.dispatch import applicable
from warmroute_proxy.server.request.failure import Failure, outcome_of, unreadable
from warmroute_proxy.server.request.request_path import RequestPath
from warmroute_proxy.server.request.settlement import End, RequestAccount
from warmroute_proxy.server.request.shorter_answer import with_shorter_answer
from warmroute_proxy.server.request.states import REQUEST, UNDER_WAY, RequestEvent, RequestState, next_state

log = logging.getLogger(__name__)

LEFT_WAIT_S: float = 2.0
MAX_ATTEMPTS: Final = 2
MAX_CHANGES: Final = 6
"""How often a request is changed and sent again. An engine names one problem at a time: it may refuse a tool, then a
role, then the length of the answer.
"""

# Looked up only once here: each access to a member of an enum costs 900 instructions in Python 3.11.
_PLACING, _DISPATCHED, _ANSWERING = RequestState.PLACING, RequestState.DISPATCHED, RequestState.ANSWERING
_LEFT, _SETTLING, _SETTLING_LEFT = RequestState.LEFT, RequestState.SETTLING, RequestState.SETTLING_LEFT
_DISPATCH, _SETTLE, _ROW_WRITTEN = RequestEvent.DISPATCH, RequestEvent.SETTLE, RequestEvent.ROW_WRITTEN
_CONTENT, _PREFILL = RequestEvent.CONTENT, RequestEvent.PREFILL


class InferenceRequest:
    asked_s: float | None = None
    _giving_up: asyncio.TimerHandle | None = None
    """The timer for the engine's final usage; set once the client has left."""

    def __init__(self, path: RequestPath, exchange: Exchange, read: ReadRequest, receipt_id: str) -> None:
        self.state = _PLACING
        self.id = receipt_id
        parsed, self.body = read  # the body is kept as long as it may be sent
        self.parsed = parsed
        self.routing = parsed.routing  # changes if it must stay in this region
        self._path, self._exchange = path, exchange
        self._answer = ClientAnswer(exchange, path.answer_headers, parsed, receipt_id)
        self._account = RequestAccount()
        self._progress = RequestProgress()
        self.waiter: Waiter[RequestToAdmit] | None = None  # while it is queued
        self.quota: Reservation | None = None
        self._excluded: frozenset[str] = frozenset()  # the workers and regions that it must not go to
        self._attempt: Attempt | None = None  # dropped once the row is written
        self._changed = 0  # how often it was changed and sent again
        self._lacks: frozenset[str] = frozenset()  # what it is sent without to `_lacks_of`, which has refused it
        self._lacks_of: Engine | None = None
        self._refusal: Refusal | None = None

    def _advance(self, event: RequestEvent) -> None:
        self.state = next_state(REQUEST, self.state, event)

    # -- place and dispatch

    @property
    def excluded(self) -> frozenset[str]:
        """The workers and regions that the request may not use now; for a suspect, this changes while it waits."""
        faults = self._path.faults
        if not faults.suspects:
            return self._excluded
        return self._excluded | faults.closed_to(self.parsed, self._path.engines.clock())

    def exclude(self, ids: Iterable[str]) -> None:
        """Exclude workers and regions for good."""
        self._excluded = self._excluded.union(ids)

    def begin(self) -> None:
        """Place the request here or in the region that holds its session's KV, or queue it until there is capacity."""
        exchange = self._exchange
        exchange.on_gone = self._client_left
        exchange.on_pause = self._pause
        if exchange.translates:
            exchange.on_unreadable = self._unreadable
        try:
            now_s = self._path.engines.clock()
            if self.parsed.choices > 1:
                # SGLang has one bootstrap room for all choices of a prompt, so all but one would wait forever.
                self.exclude(self._path.engines.split())
            decision = self._path.placing.place(self, now_s)
            if decision is not None:
                self._send(decision, now_s)
            elif self.waiter is not None:
                self._advance(RequestEvent.QUEUE)
        except Exception as error:
            self._crash("the dispatch", error)

    def admitted(self, decision: Decision) -> None:
        """Send the request after its wait in the queue. That wait does not count as the proxy's own latency."""
        now_s = self._account.since_s = self._path.engines.clock()
        self._progress.comment_at_s = now_s + self._path.deadlines.head_hold_s
        try:
            self._advance(RequestEvent.ADMIT)
            refusal = self._path.faults.refusal(self.parsed, now_s)  # an equal request may have ended engines meanwhile
            if refusal is None:
                self._send(decision, now_s)
            else:
                self.refused(refusal)
        except Exception as error:
            self._crash("the dispatch after a wait", error)

    def _send(self, decision: Decision, now_s: float) -> None:
        if decision.kind == "local":
            self._dispatch(decision, now_s)
            return
        path, on_begin, on_end = self._path, self._release_body, partial(self._forward_ended, decision)
        path.open_requests.record(self.id, decision, self.parsed.standing)
        self._advance(RequestEvent.FORWARD)
        path.forwarding.begin(self._exchange, self.parsed, self.id, decision, self._forward_failed, on_begin, on_end)

    def _forward_failed(self, peer: str) -> None:
        """Serve the request here, because its home region did not answer."""
        self._advance(RequestEvent.HOME_FAILED)
        self.exclude({peer})
        # The home region may have written a row under the old id, so a new id is needed.
        self.id = self._answer.receipt_id = self._path.engines.ids.receipt()
        self.routing = self.routing.stay()
        self.begin()

    def _forward_ended(self, decision: Decision, used: UsedTokens | None) -> None:
        self._advance(RequestEvent.FORWARD_ENDED)
        if self.quota is not None:
            expected = UsedTokens(self.quota.tokens, decision.predicted_cached_tokens)
            self._path.admission.ended(self, expected if used is None else used)

    def _dispatch(self, decision: Decision, now_s: float) -> None:
        path, parsed, account, request = self._path, self.parsed, self._account, self._exchange.request
        engines, routing, memory = path.engines, self.routing, request.body_reservation
        rid = engines.ids.rid()
        path.open_requests.record(self.id, decision, self.parsed.standing)
        if account.entry is None:
            looked = account.looked = parsed.look(self.body)
            if type(looked) is not KnownPrompt or looked.turns_before:
                self.routing = routing = path.settlement.numbered(parsed, routing, self.body, looked)
        try:
            path.settlement.open(account, self, decision, receipt_id=self.id, rid=rid)
        except JournalError:
            path.settlement.interrupt(account)  # ends the row if an earlier attempt has opened it
            self.refused(Refusal(503, "the ledger cannot be written", code="ledger_unavailable", retry_after_s=1))
            return
        path.settlement.reserve(account, routing, decision, now_s)
        path.faults.dispatched(parsed, account.ticket, now_s)
        attempt = self._attempt = Attempt(self, engines, decision, rid, parsed, path.max_answer_bytes, memory)
        tagged = parsed.prompts == 1 and engines.tag(decision, rid, routing.chain)
        path.open_requests.live.add(self)
        sent_s = engines.clock()
        self._progress.dispatched(sent_s)
        account.proxy_s += sent_s - (account.since_s or request.received_s)
        self._advance(_DISPATCH)
        headers = engine_headers(request.headers)
        lacks = self._lacks if attempt.engine is self._lacks_of else frozenset()
        attempt.start(parsed, self.body, headers, request.path, tagged=tagged, carrier=request.carrier, lacks=lacks)

    def moved(self, decision: Decision | None) -> None:
        """Handle that the gateway sent the request to another endpoint, since the picked engine did not answer.

        `decision` is None if the proxy does not know the endpoint; the row then has no worker. In this case no engine
        is at fault, since the endpoint may be the picked engine under another address.
        """
        path, account, attempt, now_s = self._path, self._account, self._attempt, self._path.engines.clock()
        if attempt is None or self.state is not _DISPATCHED:
            return
        at_fault: tuple[str, ...] = ()
        if decision is not None:
            workers = tuple([worker.id for worker in attempt.decision.workers])
            failure = Failure(Refusal(502, "the gateway has left it", code="engine_error"), workers, True)
            sent = attempt.decision, self._progress.dispatched_s
            at_fault, _, _ = path.faults.judge(self.parsed, failure, *sent, now_s, had_token=False)
        path.settlement.release(account, attempt.rid, at_fault, now_s)
        path.settlement.move(account, decision)
        if decision is not None:
            path.open_requests.record(self.id, decision, self.parsed.standing)
            path.settlement.reserve(account, self.routing, decision, now_s)
            path.faults.dispatched(self.parsed, account.ticket, now_s)
            attempt.moved(decision)

    def unread(self, prefill_s: float) -> None:
        """Settle now, because the gateway does not show the answer to the proxy. The row has no tokens, and nothing is
        charged. `prefill_s`: the time that a prefill engine still needs.
        """
        if self._attempt is None or self.state not in UNDER_WAY:
            return
        self._attempt.pass_by(prefill_s)
        self._settle("completed", 200, self._path.engines.clock(), charged=False)

    # -- relay: what the attempt reports

    def content(self, data: bytes) -> None:
        now_s = self._progress.last_data_s = self._path.engines.clock()
        state, account = self.state, self._account
        if state is _LEFT:
            return
        if state is not _ANSWERING:
            self._advance(_CONTENT)
            if account.ttft_ms is None:
                self._first_content(now_s)
            else:
                self.prefilled(now_s)  # the engine that continues the answer has computed the prompt
        if account.continuation is not None:
            passed = account.continuation.take(data)
            if passed is None:
                self.failed(Failure(broken(), (), False))
                return
            data = passed
        self._answer.write(data)

    def passthrough_target(self) -> Write | None:
        """The function that may write more of the stream unparsed. `sweep` then follows the stream's progress."""
        if self.state is _LEFT or self._account.continuation is not None:
            return None
        return self._answer.passthrough_target()

    def _first_content(self, now_s: float) -> None:
        path, account = self._path, self._account
        ttft_s = now_s - self._exchange.request.received_s
        account.ttft_ms = ttft_s * 1000
        path.metrics.first_token(self.parsed.tenant.name, ttft_s)
        self.prefilled(now_s)
        if self.parsed.model.continue_broken:
            account.continuation = Continuation.of(self.parsed, self.body, self._exchange.request.body_reservation)
        self._release_body()
        account.proxy_s += path.engines.clock() - now_s

    def prefilled(self, now_s: float) -> None:
        if self.state is _DISPATCHED:
            self._advance(_PREFILL)
        self._path.settlement.prefilled(self._account, now_s)

    def finished(self, now_s: float) -> None:
        attempt = self._attempt
        assert attempt is not None
        if self.state is not _LEFT and (problem := self._answer.unreadable(attempt.answer)) is not None:
            self._unreadable(problem)
            return
        if attempt.engine is self._lacks_of:  # the change has helped
            attempt.engine.remember_lacks(self.parsed.salt, self.parsed.model_name, self._lacks)
        self._path.admission.retries.succeeded(now_s)
        empty = not attempt.scanner.tokens_seen if attempt.answer is None else attempt.answer.empty
        self._path.faults.served(self.parsed, attempt.decision, self._progress.dispatched_s, empty=empty)
        if self.state is _LEFT:
            self._settle_left(now_s, charged=True)
            return
        if attempt.answer is not None:
            self._account.ttft_ms = (now_s - self._exchange.request.received_s) * 1000
        elif not self._exchange.started:
            self._first_content(now_s)
            self._answer.begin()
        self._settle("completed", 200, now_s, charged=True)

    def _unreadable(self, problem: Problem) -> None:
        if self._attempt is not None and self.state in UNDER_WAY:
            self.failed(unreadable(self._attempt.engine.config.id, self._attempt.rid, problem))

    def failed(self, failure: Failure) -> None:
        """Handle a failed attempt: abort its legs, then try once more, or settle and answer with an error."""
        path, account, attempt, state = self._path, self._account, self._attempt, self.state
        assert attempt is not None
        if state is not _LEFT:
            attempt.abort()
        attempt.close()
        path.open_requests.live.discard(self)
        account.since_s = now_s = path.engines.clock()
        if state is _LEFT:
            # The proxy has aborted the request already, and an engine is not at fault for what it does after that.
            path.settlement.release(account, attempt.rid, (), now_s)
            self._settle_left(now_s, charged=attempt.usage is not None)
            return
        sent = attempt.decision, self._progress.dispatched_s
        at_fault, may_retry, avoid = path.faults.judge(
            self.parsed, failure, *sent, now_s, had_token=state is _ANSWERING
        )
        path.settlement.release(account, attempt.rid, at_fault, now_s)
        self._advance(RequestEvent.FAIL)
        self.exclude(avoid)
        if may_retry and account.attempts - self._changed < MAX_ATTEMPTS and self._try_again(failure):
            return
        if state is not _ANSWERING and self._ask_otherwise(failure, attempt):
            return
        refusal = failure.refusal
        if account.continuation is not None:
            if self._continue(account.continuation, failure, attempt):
                return
            refusal = account.continuation.refusal(failure)
        status = refusal.status
        if self._exchange.started:
            status = 200
            path.metrics.answered(self.parsed.tenant.name, refusal.status)
        self._refusal = refusal
        self._settle(outcome_of(refusal, failure.at_fault), status, now_s, charged=False)

    def _ask_otherwise(self, failure: Failure, attempt: Attempt) -> bool:
        """Send the request again, if an engine refused only its length, its effort, or what it can lack."""
        request = self._exchange.request
        if self._changed >= MAX_CHANGES or self._account.continuation is not None or request.carrier is not None:
            return False
        asked, memory = (self.parsed, self.body, failure.refusal), request.body_reservation
        found = with_shorter_answer(*asked, attempt.decision.prompt_tokens_est) or with_accepted_effort(*asked)
        if found is None:
            if not self._refuses_members(failure.refusal, attempt):
                return False
        elif not (memory is None or memory.grow(len(found.body.raw))):
            return False
        now_s = self._path.engines.clock()
        admitted = frozenset(worker.id for worker in attempt.decision.workers)
        decision = self._path.placing.place_again(self, now_s, None, admitted)
        if decision is None:
            return False
        if found is not None:
            self.parsed, self.body = found
        self._changed += 1
        self._dispatch(decision, now_s)
        return True

    def _refuses_members(self, refusal: Refusal, attempt: Attempt) -> bool:
        """Whether an engine refused what the request can lack, and had in this attempt."""
        if refusal.status not in {400, 422}:
            return False
        found = applicable(unsupported_in(refusal.message), self.body)
        if attempt.engine.is_sglang:
            found &= OF_SGLANG
        if found <= attempt.unsupported:
            return False
        self._lacks = found | (self._lacks if attempt.engine is self._lacks_of else frozenset())
        self._lacks_of = attempt.engine
        return True

    def _continue(self, continuation: Continuation, failure: Failure, attempt: Attempt) -> bool:
        found, paused = continuation.rest(failure, attempt), attempt.leg.paused
        if found is None:
            return False
        rest, self.body = found
        self.exclude(unable(self._path.engines, self._exchange.request.path))
        if not self._try_again(failure):
            return False
        if self._attempt is not None:
            self._attempt.follows(len(self.body.raw))
        continuation.go_on(rest)
        self._progress.restart()
        self._pause(paused)
        self._path.metrics.continued()
        return True

    def _release_body(self) -> None:
        """Drop the body, which is not sent again: megabytes must not stay until the garbage collector runs."""
        account, attempt, request = self._account, self._attempt, self._exchange.request
        re_prefills = self._path.re_prefills
        sent, changed, self.body = request.body, self.body, NO_BODY
        if sent and self._changed and isinstance(changed, Body):
            sent = changed.raw
        if (
            isinstance(sent, bytes)
            and len(sent) >= re_prefills.min_bytes
            and account.ttft_ms is not None
            and attempt is not None
        ):
            re_prefills.keep(self.parsed, sent, request.path, attempt.decision.cache_worker)
        if account.continuation is None:
            request.drop_body()
        request.body = b""

    def _try_again(self, failure: Failure) -> bool:
        """Dispatch another attempt, if there is a worker for it and the budget of retries is not spent. A request that
        a gateway carries to its engine is carried only once, so it has no second attempt.
        """
        if self._exchange.request.carrier is not None:
            return False
        now_s = self._path.engines.clock()
        failed = failure.at_fault if failure.pair is None else ()
        if (decision := self._path.placing.place_again(self, now_s, failed)) is not None:
            self._dispatch(decision, now_s)
        return decision is not None

    def _pause(self, paused: bool) -> None:
        self._account.read_slowly = self._account.read_slowly or paused
        self._progress.last_data_s = self._path.engines.clock()
        if self._attempt is not None:
            self._attempt.leg.pause(paused)

    def _client_left(self) -> None:
        """Stop the engines now, and wait a little for their final usage."""
        try:
            self._advance(RequestEvent.CLIENT_LEFT)
            self.parsed.left_unanswered()  # first, since the client may be back before the engine has ended
            if (attempt := self._attempt) is not None:
                attempt.leg.parse_all()
            if self.waiter is not None:
                self._path.admission.leave(self)
                self._exchange.request.release()
            if self.state is not _LEFT or attempt is None:
                return
            if not self._lost_between:
                self._path.metrics.client_left()
            if self.parsed.several or not attempt.engine.is_sglang:  # only a close stops such a server
                self.give_up_usage()
            else:
                attempt.leg.pause(False)
                attempt.abort()
                self._giving_up = asyncio.get_running_loop().call_later(LEFT_WAIT_S, self.give_up_usage)
        except Exception as error:
            self._crash("leaving", error)

    def give_up_usage(self) -> None:
        """Settle without waiting longer for the engine's final usage."""
        attempt = self._attempt
        if self.state is not _LEFT or attempt is None:
            return
        try:
            now_s = self._path.engines.clock()
            attempt.close()
            self._path.settlement.release(self._account, attempt.rid, (), now_s)
            self._settle_left(now_s, charged=True)
        except Exception as error:
            self._crash("the end", error)

    @property
    def _lost_between(self) -> bool:
        """Whether the client is still there, and only the forwarding region's proxy, or the link to it, was lost."""
        return self.parsed.forwarded_from is not None and not self._exchange.client_left

    def _settle_left(self, now_s: float, *, charged: bool) -> None:
        """Settle for a client that left. Computed tokens are charged, unless only the forwarding proxy is gone."""
        lost = self._lost_between
        self._settle("cut_off" if lost else "client_left", 0, now_s, charged=charged and not lost)

    def _settle(self, outcome: Outcome, status: int, now_s: float, *, charged: bool) -> None:
        """Make the row and receipt from the reported usage; `_row_written` is called when the row is durable."""
        path, account, attempt = self._path, self._account, self._attempt
        assert attempt is not None
        self._advance(_SETTLE)
        path.open_requests.live.discard(self)
        self._release_body()
        if self._giving_up is not None:
            self._giving_up.cancel()  # the timer would keep the whole request in memory
        end = End(outcome, status, now_s, charged, self.state is _SETTLING_LEFT)
        path.settlement.settle(account, self, attempt, end, self._row_written)

    def _row_written(self, failure: JournalError | None) -> None:
        """End the answer, since the row is durable or cannot be written."""
        attempt, entry, state = self._attempt, self._account.entry, self.state
        try:
            self._advance(_ROW_WRITTEN)
            assert entry is not None
            if failure is not None:
                self._path.metrics.withdrawn(entry)
                self._refuse(Refusal(503, "the ledger cannot be written", code="ledger_unavailable"))
            elif self._refusal is not None:
                self._refuse(self._refusal)
            elif state is _SETTLING and attempt is not None:
                self._answer.end(attempt.answer, attempt.scanner, entry)
        except Exception as error:
            log.error("the end of an answer failed: %s", type(error).__name__)
            self._exchange.fail()
        if state is not _SETTLING:
            self._exchange.request.release()
        self._attempt = None  # the attempt refers back to this request: the cycle would need the garbage collector

    def refused(self, refusal: Refusal) -> None:
        """End without a settled row, because no worker can take the request, or admission refuses it."""
        self._advance(RequestEvent.REFUSE)
        self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer with an error, which names the receipt if there is one."""
        if self.quota is not None:
            self._path.admission.cancel(self)
        self._answer.refuse(refusal, has_receipt=self._account.entry is not None)

    def tokens(self) -> int:
        return self._account.tokens()

    def sweep(self, now_s: float) -> None:
        """Check deadlines, and send comments before the first token. Called every quarter of a second."""
        attempt, progress, deadlines = self._attempt, self._progress, self._path.deadlines
        carried = self._exchange.request.carrier is not None
        answering, received_s = self.state is _ANSWERING, self._exchange.request.received_s
        if attempt is not None and self.state in UNDER_WAY:
            if progress.observe(attempt.scanner.tokens_seen, now_s):
                self._path.settlement.progress(self._account, attempt.scanner.tokens_seen)
            continued = self._account.continuation is not None
            missed = deadlines.missed(
                attempt, progress, received_s, now_s, answering=answering, continued=continued, carried=carried
            )
            if missed is not None:
                self.failed(missed)
                return
        elif self.waiter is None:
            return
        due = self.parsed.stream and not answering and not carried  # else the engine's bytes begin the answer
        if due and deadlines.comment_is_due(progress, received_s, now_s):
            self._answer.comment()
            if self.waiter is not None:
                self.routing = self.routing.stay()  # the answer has begun here, so it cannot be forwarded any more

    def shut_down(self) -> None:
        """End with an error that says that the proxy stops, instead of breaking off."""
        if self.state in UNDER_WAY or self.state is _LEFT:
            self.failed(Failure(shutting_down(), (), False))

    def crashed(self) -> None:
        """End in any state, because the proxy itself failed: the client gets an error, and nothing is charged."""
        path, account = self._path, self._account
        path.open_requests.live.discard(self)
        self._advance(RequestEvent.CRASH)
        path.settlement.interrupt(account)
        if self.waiter is not None:
            path.admission.leave(self)
        path.admission.ended(self, NO_TOKENS)
        self._exchange.fail()
        path.settlement.abandon(account, path.engines.clock())
        if self._attempt is not None:
            self._attempt.abort()
            self._attempt.close()

    def _crash(self, step: str, error: Exception) -> None:
        """Log the type of an error of the proxy itself, never its text, and end the request."""
        log.error("%s of a request failed: %s", step, type(error).__name__)
        self.crashed()


NewRequest = Callable[[RequestPath, Exchange, ReadRequest, str], InferenceRequest]
"""Makes a request. Traced requests are of a subclass."""
