"""Distinguishes failures of engines from failures of requests, and decides which requests may be tried again."""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from warmroute_proxy.core.load.blame import Blame, Cause, Judgement, Request
from warmroute_proxy.core.load.hand_overs import HandOvers
from warmroute_proxy.core.load.suspects import REFUSED_S, Suspects
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.placement.ticket import Ticket
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.intake.parsed_request import ParsedRequest
from warmroute_proxy.server.request.failure import Failure
from warmroute_proxy.server.request.open_requests import OpenRequests
from warmroute_proxy.server.request.request_metrics import RequestMetrics

log = logging.getLogger(__name__)


class FailureVerdict(NamedTuple):
    """What a failure means: the workers whose breaker counts it, whether the request may be tried again, and the
    workers that the next attempt avoids.
    """

    at_fault: tuple[str, ...]
    may_retry: bool
    avoid: tuple[str, ...]


class Faults:
    """Judges the failures in one process by the rules of `core.load.blame` and `core.load.suspects`.

    A suspect is a prompt that may have crashed its engine: the engine went away before the prompt's first token. The
    two modules bound the memory for evidence and suspects; `_retried` is bounded by the requests under way.
    """

    def __init__(self, router: Router, engines: Engines, open_requests: OpenRequests, metrics: RequestMetrics) -> None:
        self._router = router
        self._engines = engines
        self._open_requests = open_requests
        self._metrics = metrics
        self._blame = Blame(router.engine_of)
        self._suspects = Suspects()
        self.suspects = self._suspects.by_request
        """Empty almost always. A method in its place costs 0.7 % of a request (w1), which looks here several times."""

        self._hand_overs = HandOvers()
        self._retried: list[tuple[Request, Ticket]] = []  # suspects that run again, and their loads

    def refusal(self, parsed: ParsedRequest, now_s: float) -> Refusal | None:
        """A refusal if the processes of two engines ended while they ran this request; None for almost all requests."""
        after_s = self._suspects.refused_for_s(_request(parsed), now_s)
        if after_s <= 0:
            return None
        self._metrics.suspect("refused")
        problem = "two engines went away before this request had a token; it is refused for a while"
        return Refusal(400, problem, code="request_ends_engines", headers=(("retry-after", str(int(after_s) + 1)),))

    def closed_to(self, parsed: ParsedRequest, now_s: float) -> frozenset[str]:
        """The workers that a request may not use if it is a suspect: those that run a suspect of another tenant. While
        a copy of the request runs again, these are all workers but the copy's.
        """
        request = _request(parsed)
        if not self._suspects.is_suspect(request, now_s):
            return frozenset()
        own, others = set[str](), set[str]()
        for suspect, ticket in self._retried:
            if _is_unproven(ticket) and (suspect == request or suspect[0] != request[0]):
                found = own if suspect == request else others
                found.update(rank for worker in ticket.decision.workers for rank in self._ranks(worker))
        if own:
            others.update(id_ for id_ in self._router.fleet.workers if id_ not in own)  # other regions, too
        return frozenset(others)

    def dispatched(self, parsed: ParsedRequest, ticket: Ticket | None, now_s: float) -> None:
        if self.suspects and ticket is not None and self._suspects.is_suspect(_request(parsed), now_s):
            self._retried = [each for each in self._retried if _is_unproven(each[1])]
            self._retried.append((_request(parsed), ticket))

    def judge(
        self,
        parsed: ParsedRequest,
        failure: Failure,
        decision: Decision,
        sent_s: float,
        now_s: float,
        *,
        had_token: bool,
    ) -> FailureVerdict:
        """Decide what the failure of an attempt means, and remember it as evidence. `decision`, `sent_s`: where and
        when the attempt was sent.
        """
        request, may_retry = _request(parsed), failure.retryable and not had_token
        if failure.cause is Cause.BROKEN and not had_token:
            engine = next((worker.engine for worker in decision.workers if worker.id in failure.at_fault), "")
            may_retry = self._process_ended(request, engine, sent_s, now_s, bounded=parsed.bounded) and may_retry
        if failure.pair is not None:
            at_fault, avoid = self._not_handed_over(parsed, *failure.pair, now_s)
            return FailureVerdict(at_fault, may_retry, avoid)
        at_fault = tuple(self._at_fault(parsed, failure, request, now_s))
        return FailureVerdict(at_fault, may_retry, failure.avoid)

    def _not_handed_over(
        self, parsed: ParsedRequest, prefill: Worker, decode: Worker, now_s: float
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Judge a failed hand-over of KV. Returns the workers whose breaker counts it, and the workers to avoid."""
        found = self._hand_overs.failed(prefill.engine, decode.engine, now_s)
        words = f"KV of prefill {prefill.engine} did not reach decode {decode.engine}"
        if found is None:
            self._engines.watching.not_handed_over(prefill.id, f"{words}, and which is at fault is not known yet")
            ranks = self._ranks(prefill)
            are_only = self._router.are_only_usable(parsed.routing.model, ranks, now_s)
            return (), self._ranks(decode) if are_only else ranks
        faulty = prefill if found == prefill.engine else decode
        other = "which gets that of others" if faulty is prefill else "others get it"
        self._engines.watching.not_handed_over(faulty.id, f"{words}, {other}")
        self._metrics.failed(faulty.id, Judgement.ENGINE)
        ranks = self._ranks(faulty)
        return ranks, ranks

    def _ranks(self, worker: Worker) -> tuple[str, ...]:
        return tuple(other.id for other in self._engines.of(worker).workers())

    def _at_fault(self, parsed: ParsedRequest, failure: Failure, request: Request, now_s: float) -> Iterator[str]:
        alone = not self._open_requests.has_other_tenants(parsed.tenant.name)
        for worker in failure.at_fault:
            ranks = {worker, *self._router.ranks_beside((worker,))}
            only = self._router.are_only_usable(parsed.routing.model, ranks, now_s)
            judged = self._blame.failed(worker, failure.cause, request, alone=alone, only=only)
            self._metrics.failed(worker, judged)
            if judged is Judgement.REQUEST:
                return  # so it does not count against the other ranks either
            if judged is Judgement.ENGINE:
                yield worker

    def served(self, parsed: ParsedRequest, decision: Decision, sent_s: float, *, empty: bool) -> None:
        """Record that a request was served. `sent_s`: when it was sent to its engines; `empty`: its answer has neither
        text nor tool calls.
        """
        answering = decision.decode if decision.worker is None else decision.worker
        if answering is not None:  # None if another region has served the request
            watching = self._engines.watching
            watching.answers[answering.id] += 1
            if empty:
                watching.answered_nothing(answering.id, parsed.model.name)
        if decision.prefill is not None and decision.decode is not None:
            self._hand_overs.served(decision.prefill.engine, decision.decode.engine, sent_s)
            self._engines.watching.handed_over(decision.prefill.id, decision.decode.id)
        if self.suspects:
            self._suspects.cleared(_request(parsed))
        if not self._blame.empty:
            for worker in decision.workers:
                self._blame.served(worker.id)

    def _process_ended(self, request: Request, engine: str, sent_s: float, now_s: float, *, bounded: bool) -> bool:
        """Record that an engine went away before a request had a token. Returns whether the request may be retried."""
        again = self._suspects.process_ended(request, engine, sent_s, now_s, bounded=bounded)
        if again:
            self._metrics.suspect("retried")
        elif self._suspects.refused_for_s(request, now_s) > 0:
            self._metrics.suspect("barred")
            log.warning(
                "two engines went away under a request of tenant %s (prompt %016x); it is refused for %d s",
                *request,
                REFUSED_S,
            )
        else:
            self._metrics.suspect("not_retried")
        return again


def _request(parsed: ParsedRequest) -> Request:
    return parsed.tenant.name, parsed.routing.chain.hashes[-1]


def _is_unproven(ticket: Ticket) -> bool:
    """Whether an attempt is under way and has no token yet."""
    return ticket.open and not ticket.computed
