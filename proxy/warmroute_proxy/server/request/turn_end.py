"""The end of a turn: settle what was reported, tell the router, answer the client once the row is durable.

    settle ──▶ losses, router, receipt, row ──(durable)──▶ the end of the answer, or the error instead of it

What is charged, and to whom a failure is put down, is known before: `relay` has the states that lead here.
"""

import logging
from collections.abc import Collection
from typing import Final

import msgspec

from warmroute.contract import headers as names
from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import Entry, Outcome
from warmroute_proxy.core.accounting.entry_steps import Ending, settle
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.placement.router import Settled, Ticket
from warmroute_proxy.server.base.errors import Refusal, error_event
from warmroute_proxy.server.http.exchange import Exchange
from warmroute_proxy.server.intake.body import NO_BODY
from warmroute_proxy.server.intake.parsed_request import Intake
from warmroute_proxy.server.ledger.journal import JournalError
from warmroute_proxy.server.request.admission import Hold
from warmroute_proxy.server.request.attempt import Attempt
from warmroute_proxy.server.request.continuation import Continuation
from warmroute_proxy.server.request.services import Services
from warmroute_proxy.server.request.settlement import losses_of, usage_event

log = logging.getLogger(__name__)

UNCHARGED: Final = Rates(0, 0, 0)
EVENTS: Final = "text/event-stream; charset=utf-8"
_TIERS_GUESSED: Final = ("cached_tiers",)


class TurnEnd:
    """What a turn has come to, and how it ends."""

    # What a turn begins with: read from the class, not set in each.
    _entry: Entry | None = None
    _attempt: Attempt | None = None
    _ticket: Ticket | None = None
    hold: Hold | None = None
    _continuation: Continuation | None = None
    _refusal: Refusal | None = None
    _gone = False
    _ended = False
    _read_slowly = False
    _ttft_ms: float | None = None
    _proxy_s = 0.0
    _since_s = 0.0  # from when on the time until a dispatch is the proxy's own, if not since the request came

    def __init__(self, services: Services, exchange: Exchange, intake: Intake, receipt_id: str) -> None:
        self.id = receipt_id
        self.intake = intake
        self._services = services
        self._exchange = exchange

    def refused(self, refusal: Refusal) -> None:
        """Turned away before a dispatch."""
        self._refuse(refusal)

    def _settle_left(self, now_s: float, *, charged: bool) -> None:
        """A client that left pays for what was computed; not where the proxy is gone that asked for it."""
        if self._lost_between:
            self._settle("cut_off", 0, now_s, charged=False)
        else:
            self._settle("client_left", 0, now_s, charged=charged)

    @property
    def _lost_between(self) -> bool:
        """Of one that is gone: whether a proxy or its network is, and nobody said that the client left."""
        return self.intake.forwarded_from is not None and not self._exchange.client_left

    def _settle(self, outcome: Outcome, status: int, now_s: float, *, charged: bool) -> None:
        """Turn what was reported into a row and a receipt; `_durable` is told once the row is safe."""
        services, entry, attempt, facts = self._services, self._entry, self._attempt, self.intake.facts
        assert entry is not None
        assert attempt is not None
        self._ended = True
        services.live.discard(self)
        self._drop_body()
        usage, reported = attempt.account()
        if self._continuation is not None:
            usage = self._continuation.settled(usage, attempt.scanner)
        loss = losses_of(services.router.last_settled(facts), facts, usage, attempt)
        settled = self._tell_router(attempt, usage, now_s)
        if not charged:
            entry.rates = UNCHARGED
        if self.hold is not None:
            services.admission.ended(self, usage.prompt_tokens + usage.completion_tokens if charged else 0)
        ending = Ending(outcome, status, services.unix_clock(), self._proxy_s * 1000, self._ttft_ms)
        settle(entry, usage, loss, reported, ending)
        services.ledger.settle(entry, self._durable)
        services.request_metrics.settled(entry, usage, loss, attempt.decision.predicted, settled)

    def _durable(self, failure: JournalError | None) -> None:
        """The row is safe, or cannot be written: end the answer."""
        entry, attempt = self._entry, self._attempt
        assert entry is not None
        assert attempt is not None
        try:
            if failure is not None:
                self._services.request_metrics.withdrawn(entry)
                self._refuse(Refusal(503, "the ledger cannot be written", code="ledger_unavailable"))
            elif self._refusal is not None:
                self._refuse(self._refusal)
            elif self._gone:
                pass
            elif (answer := attempt.answer) is None:
                self._end_stream(attempt, entry.usage)
            else:
                body = answer.settled(entry.usage, keep_sglext=self.intake.keep_sglext)
                self._exchange.answer(self._answer_lines(), body)
        except Exception as error:
            log.error("the end of an answer failed: %s", type(error).__name__)
            self._exchange.fail()
        self._attempt = None  # it knows its turn: both would wait for the garbage collector

    def _freed(self) -> None:
        """An engine has more room than before: for those who wait for it."""
        admission = self._services.admission
        if admission.queue.requests:
            admission.freed()

    def _drop_body(self) -> None:
        """Nothing is sent again from here on. A body of megabytes must not wait for the garbage collector."""
        request, re_prefills = self._exchange.request, self._services.re_prefills
        body = request.body
        if len(body) >= re_prefills.kept.min_bytes and self._ttft_ms is not None and self._attempt is not None:
            re_prefills.keep(self.intake, body, request.path, self._attempt.decision.cache_worker)
        if self._continuation is None:
            self.intake.body = NO_BODY
        request.body = b""

    def _tell_router(self, attempt: Attempt, usage: Usage, now_s: float) -> Settled | None:
        """What came of the decision; None where the router was told already."""
        ticket, services, intake = self._ticket, self._services, self.intake
        if ticket is None:
            return None
        guessed, reasoning = usage.estimated, usage.reasoning_tokens
        prompt: int | None = usage.prompt_tokens
        cached: int | None = usage.cached_tokens
        completion: int | None = usage.completion_tokens  # what is sent back
        if reasoning:
            completion = usage.completion_tokens - reasoning
        if guessed and guessed != _TIERS_GUESSED:
            prompt = None if "prompt_tokens" in guessed else prompt
            cached = None if "cached_tokens" in guessed else cached
            completion = None if "completion_tokens" in guessed else completion
        if intake.choices > 1 or intake.prompts > 1:
            # What one of several computes is cached for the next: that says nothing of what was cached before.
            cached = completion = None
        streamed = usage.completion_tokens if attempt.answer is None and self._shows_pace(guessed) else None
        settled = services.router.settled(ticket, intake.facts, now_s, prompt, cached, completion, streamed)
        self._ticket = None
        self._freed()
        services.engines.settled(ticket.decision, attempt.rid, usage.prompt_tokens)
        return settled

    def _shows_pace(self, guessed: Collection[str]) -> bool:
        """Whether one engine has streamed the whole answer, and nobody else held it up."""
        return (
            not (self._gone or self._read_slowly or self.intake.several or "completion_tokens" in guessed)
            and self._entry is not None
            and len(self._entry.rids) == 1
        )

    def _tell_router_failed(self, at_fault: Collection[str], now_s: float) -> None:
        ticket = self._ticket
        if ticket is None:
            return
        self._services.router.failed(ticket, now_s, at_fault)
        self._ticket = None
        self._freed()
        # What it has stored of the prompt will be evicted, and that is to be known.
        self._services.engines.settled(ticket.decision, self._attempt.rid if self._attempt else "", 0)

    def _end_stream(self, attempt: Attempt, usage: msgspec.Raw) -> None:
        """The last chunk and `[DONE]`, now that the row is durable."""
        tail = b"data: [DONE]\n\n"
        if self.intake.include_usage:
            tail = usage_event(attempt.scanner, usage, self.intake.keep_sglext) + tail
        self._exchange.end(tail)

    def _refuse(self, refusal: Refusal) -> None:
        """An error, in the form that the state of the answer allows."""
        if self.hold is not None:
            self._services.admission.cancel(self)
        if self._exchange.started:
            self._exchange.abort(error_event(refusal.status, refusal.message, refusal.code))
            return
        headers = self._response_headers("application/json") if self._entry is not None else []
        self._exchange.refuse(refusal, headers)

    def _answer_lines(self) -> bytes:
        """The headers of a whole answer."""
        lines = self._services.answer_lines % self.id.encode()
        if self.intake.tenant.limits is None:
            return lines
        limits = self._services.admission.headers(self.intake.tenant.name)
        return lines + "".join([f"{name}: {value}\r\n" for name, value in limits]).encode()

    def _response_headers(self, content_type: str) -> list[tuple[str, str]]:
        headers = [
            ("content-type", content_type),
            (names.RECEIPT, self.id),
            (names.HOME, self._services.config.proxy.region),
        ]
        if content_type == EVENTS:
            headers.append(("cache-control", "no-cache"))
        if self.intake.tenant.limits is not None:
            headers += self._services.admission.headers(self.intake.tenant.name)
        return headers
