"""A request that is sampled for a trace. It notes its steps with their times, and hands them over when it ends.

Only a sampled request is a `TracedRequest`; every other request is an `InferenceRequest`, which knows nothing of
traces. The steps are the events of the state machine `states.REQUEST`. Engines and other regions get a `traceparent`
that names the span of the attempt or forward, in place of the client's.
"""

from collections.abc import Iterable
from typing import Final

from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.exchange import Exchange
from warmroute_proxy.server.intake.parsed_request import ParsedRequest, ReadRequest
from warmroute_proxy.server.ledger.journal import JournalError
from warmroute_proxy.server.request.inference_request import InferenceRequest, NewRequest
from warmroute_proxy.server.request.request_path import RequestPath
from warmroute_proxy.server.request.states import RequestEvent, RequestState
from warmroute_proxy.server.tracing import names
from warmroute_proxy.server.tracing.context import TRACEPARENT, TRACESTATE, Context, read_context, written
from warmroute_proxy.server.tracing.finished import Child, Finished
from warmroute_proxy.server.tracing.timeline import Timeline
from warmroute_proxy.server.tracing.tracing import Tracing

_ENDS: Final = frozenset({RequestState.ENDED, RequestState.CRASHED})
_NO_ERRORS: Final = frozenset({"completed", "forwarded"})


class TracedRequest(InferenceRequest):
    def __init__(
        self,
        path: RequestPath,
        exchange: Exchange,
        read: ReadRequest,
        receipt_id: str,
        tracing: Tracing,
        trace: Context,
    ) -> None:
        """`trace`: the parent of the request's span; its `span_id` is 0 if the request's span has no parent."""
        super().__init__(path, exchange, read, receipt_id)
        self._tracing = tracing
        self._trace = trace
        self._span_id = tracing.sampler.span_id()
        self._timeline = Timeline(tracing.sampler.span_id)
        self._decision: Decision | None = None
        self._refused_with: tuple[int, str] = (0, "")
        self._handed_over = False

    def _advance(self, event: RequestEvent) -> None:
        super()._advance(event)
        now_s, timeline = self._tracing.clock(), self._timeline
        timeline.step(event, now_s, self._decision)
        if self._attempt is not None:
            self._decision = self._attempt.decision
        if event is RequestEvent.DISPATCH or event is RequestEvent.FORWARD:
            headers = self._exchange.request.headers
            headers[TRACEPARENT] = written(self._trace.trace_id, timeline.sent_id)
            if not self._trace.span_id:
                headers.pop(TRACESTATE, None)
        if self.state in _ENDS and not self._handed_over:
            self._handed_over = True
            self._hand_over(now_s)

    def _send(self, decision: Decision, now_s: float) -> None:
        self._decision = decision
        super()._send(decision, now_s)

    def refused(self, refusal: Refusal) -> None:
        self._refused_with = refusal.status, refusal.code or str(refusal.status)
        super().refused(refusal)

    def _row_written(self, failure: JournalError | None) -> None:
        if failure is not None:
            self._refused_with = 503, "ledger_unavailable"
        super()._row_written(failure)

    def _hand_over(self, now_s: float) -> None:
        entry, parsed, tracing = self._account.entry, self.parsed, self._tracing
        status, error = self._refused_with
        offset_s, ttft_s = tracing.unix_offset_s(), None
        outcome = _outcome(self.state, error, self._timeline.children)
        if entry is not None and entry.outcome is not None:
            outcome, status = entry.outcome, status or entry.status
            ttft_s = entry.ttft_ms / 1000 if parsed.stream and entry.ttft_ms is not None else None
        tracing.note(self._trace.trace_id, now_s + offset_s, ttft_s, self._timeline.waited_s)
        tracing.ended(
            Finished(
                trace_id=self._trace.trace_id,
                span_id=self._span_id,
                parent_id=self._trace.span_id,
                began_s=self._exchange.request.received_s,
                ended_s=now_s,
                offset_s=offset_s,
                receipt_id=self.id,
                session=parsed.session,
                model=parsed.model.name,
                route=parsed.route,
                stream=parsed.stream,
                turn=self.routing.turn + self.routing.turns_before,
                outcome=outcome,
                status=status,
                error_code=error or ("" if outcome in _NO_ERRORS else outcome),
                entry=entry,
                children=self._timeline.children,
            )
        )


def request_maker(tracing: Tracing | None) -> NewRequest:
    """Return a function that makes a request, which is a `TracedRequest` if it is sampled."""
    if tracing is None:
        return InferenceRequest
    traced: Tracing = tracing

    def make(path: RequestPath, exchange: Exchange, read: ReadRequest, receipt_id: str) -> InferenceRequest:
        trace = _trace_of(traced, exchange.request.headers, read.parsed)
        if trace is None:
            return InferenceRequest(path, exchange, read, receipt_id)
        return TracedRequest(path, exchange, read, receipt_id, traced, trace)

    return make


def _trace_of(tracing: Tracing, headers: dict[str, str], parsed: ParsedRequest) -> Context | None:
    """The parent of a request's span; None if the request is not sampled."""
    sampler, parent = tracing.sampler, headers.get(TRACEPARENT)
    if parent is not None and (context := read_context(parent)) is not None:
        return context if sampler.takes(context) else None
    if parsed.forwarded_from is not None:
        return None  # without a parent, the forwarding proxy has decided against a trace
    trace_id = sampler.new_trace()
    return None if trace_id is None else Context(trace_id, 0, True)


def _outcome(state: RequestState, error: str, children: Iterable[Child]) -> str:
    """The outcome of a request that has no ledger entry."""
    if state is RequestState.CRASHED:
        return "interrupted"
    if error:
        return "refused"
    forwarded = any(child.name == names.FORWARD and not child.failed_by for child in children)
    return "forwarded" if forwarded else "client_left"
