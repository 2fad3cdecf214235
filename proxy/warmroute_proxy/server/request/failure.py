"""Describes how an attempt failed: the error for the client, the workers at fault, and whether a retry may help."""

import logging
from collections.abc import Collection
from typing import Final, NamedTuple

from warmroute_proxy.core.accounting.entry import Outcome
from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.server.base.engine_refusals import EngineRefusal, Meaning
from warmroute_proxy.server.base.errors import UNREADABLE, Refusal
from warmroute_proxy.server.http.exchange import Problem

log = logging.getLogger(__name__)

CUT_OFF: Final = frozenset(
    {"draining", "deadline_exceeded", "overloaded"}
)  # codes of errors by which the proxy itself ends a request, whatever its engine does


class Failure(NamedTuple):
    """How an attempt failed. `at_fault`: the workers that failed, if any; `cause`: how they failed.

    `shed`: workers that were too full, which is not a fault; another worker may have capacity. `pair`: the prefill and
    the decode worker, if KV was not handed over between them; `at_fault` is then only the worker that reported this.
    """

    refusal: Refusal
    at_fault: tuple[str, ...]
    retryable: bool
    shed: tuple[str, ...] = ()
    cause: Cause = Cause.ERROR
    pair: tuple[Worker, Worker] | None = None

    @property
    def avoid(self) -> tuple[str, ...]:
        """The workers that the next attempt avoids, unless a pair failed."""
        return self.at_fault + self.shed


def refused_by(worker: Worker, found: EngineRefusal, kind: str) -> Failure:
    """An engine's own error as a failure.

    A broken engine is at fault. So is an engine that refuses the proxy's credentials, since the proxy may have valid
    ones for another engine. An engine without capacity is not at fault. SGLang answers 503 on these routes only for
    lack of capacity: a full queue, a wait that was too long, a retraction. A 503 of another server may mean that it is
    down.
    """
    refusal, meaning = found
    shed = meaning is Meaning.BUSY or (refusal.status == 503 and kind == "sglang")
    ours = meaning is Meaning.BROKEN and not shed
    return Failure(refusal, (worker.id,) if ours else (), ours or shed, (worker.id,) if shed else ())


def not_connected(reason: str) -> Failure:
    """The failure if the proxy itself could not connect: no engine is at fault, and another engine would not help."""
    return Failure(Refusal(503, reason, code="overloaded", retry_after_s=1), (), False, cause=Cause.OURS)


def timed_out(worker: Worker, message: str) -> Failure:
    """The failure if an engine has sent nothing for too long."""
    return Failure(Refusal(504, message, code="engine_timeout"), (worker.id,), False, cause=Cause.SILENT)


def unreadable(server: str, request_id: str, problem: Problem) -> Failure:
    """The failure if an engine's answer cannot be translated to the client's API, or memory for that is lacking.
    Nothing is charged. No worker is at fault, since clients of other APIs may be unaffected.
    """
    if isinstance(problem, Refusal):
        return Failure(problem, (), False)
    log.error("the answer of %s to request %s cannot be translated: %s", server, request_id, problem)
    return Failure(Refusal(502, UNREADABLE, code="engine_error"), (), False)


def no_worker(error: NoWorker, causes: str, *, split: bool) -> Refusal:
    """The refusal if no worker can take a request. `causes`: why no engine is available; `split`: the model is served
    only by pairs of prefill and decode engines.
    """
    if split:
        message = "n > 1 is not possible here: prefill and decode engines give one answer; send n requests"
        return Refusal(400, message, code="unsupported_value", param="n")
    if error.served:
        return Refusal(503, f"no engine is available for {error.model}{causes}", code="no_worker", retry_after_s=1)
    return Refusal(503, f"no engine here serves {error.model}", code="no_worker")


def outcome_of(refusal: Refusal, at_fault: Collection[str]) -> Outcome:
    """The outcome of a request that ends with an error."""
    if refusal.code in CUT_OFF and not at_fault:
        return "cut_off"
    return "engine_error" if refusal.status >= 500 else "refused"
