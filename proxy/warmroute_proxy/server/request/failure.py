"""How an attempt fails: what the client is told, whose fault it was, and whether another may help."""

from typing import NamedTuple

from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.server.base.errors import Refusal


class Failure(NamedTuple):
    """How an attempt failed. `at_fault` are worker ids, empty where no engine is to blame.

    `shed` are workers that took no more work, which is no fault; another may.
    """

    refusal: Refusal
    at_fault: tuple[str, ...]
    retryable: bool
    shed: tuple[str, ...] = ()

    @property
    def avoid(self) -> tuple[str, ...]:
        """The workers that another attempt is not to go to."""
        return self.at_fault + self.shed


def refused_by(worker: Worker, refusal: Refusal, kind: str) -> Failure:
    """An engine's own error as a failure. A 5xx is its fault, also a 401 that became one: our key is wrong there, and
    may be right elsewhere. With a 429 it sheds load, SGLang with a 503: it has no other use for that on these routes (a
    full queue, a wait that was too long, a retraction). Of other servers nothing but their errors tells who is down.
    """
    shed = refusal.status == 429 or (refusal.status == 503 and kind == "sglang")
    ours = refusal.status >= 500 and not shed
    return Failure(refusal, (worker.id,) if ours else (), ours or shed, (worker.id,) if shed else ())


def timed_out(worker: Worker, message: str) -> Failure:
    """An engine that has said nothing for too long."""
    return Failure(Refusal(504, message, code="engine_timeout"), (worker.id,), False)


def no_worker(error: NoWorker, *, split: bool) -> Refusal:
    """Nothing is there to take a request; `split`: prefill and decode engines would be."""
    if split:
        message = "n > 1 is not possible here: prefill and decode engines give one answer; send n requests"
        return Refusal(400, message, code="unsupported_value", param="n")
    if error.served:
        return Refusal(503, f"no engine is available for {error.model}", code="no_worker", retry_after_s=1)
    return Refusal(503, f"no engine here serves {error.model}", code="no_worker")
