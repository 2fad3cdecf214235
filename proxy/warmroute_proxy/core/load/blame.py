"""Judges whether the engine or the request is to blame for a failure.

An open breaker takes an engine away from every tenant, so one tenant's requests must not open it alone. What a failure
proves depends on its cause:

    cause         what happened                                           counts against the engine
    UNREACHABLE   no connection could be opened                           at once
    BROKEN        the connection broke, or the process ended or hangs     at once
    SILENT        no byte came in time                                    as evidence
    ERROR         it answered 5xx, or not as HTTP, JSON or events         as evidence
    OURS          the proxy had no descriptor or memory to connect with   never

Each failed request is one piece of evidence, however often it fails there. As soon as the engine serves a request, all
evidence against it is cleared. Evidence counts against the engine from `REQUESTS` different requests on, if these come
from at least two tenants. If only one tenant sends requests, and the model has another usable engine, evidence counts
from `REQUESTS_OF_ONE` requests on. The third failure that counts opens the breaker (`load.availability`). If one
request gives evidence against two engines, the request is at fault, and its evidence against both is removed.
"""

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Final

REQUESTS: Final = 2
REQUESTS_OF_ONE: Final = 8
MAX_EVIDENCE: Final = 64
"""How many failed requests are remembered for each worker; the oldest are forgotten first."""

Request = tuple[str, int]
"""A request is identified by its tenant and the fingerprint of its whole prompt."""


class Cause(Enum):
    """The causes in the table above."""

    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    SILENT = "silent"
    ERROR = "error"
    OURS = "ours"


class Judgement(Enum):
    """Who is to blame for a failure."""

    ENGINE = "engine"
    """A failure of the engine: its breaker counts it."""
    EVIDENCE = "evidence"
    """Not known yet: the failure is evidence against the engine."""
    REQUEST = "request"
    """The request: it has given evidence against two engines."""


PROOF: Final = frozenset({Cause.UNREACHABLE, Cause.BROKEN})
"""Causes that a client cannot bring about at a healthy engine. For requests that end a process, see `suspects`."""


class Blame:
    """The evidence against the workers of a fleet. `engine_of`: returns the engine of a worker, which may have more of
    them, its data-parallel ranks. Without it, each worker is an engine.
    """

    def __init__(self, engine_of: Callable[[str], str] = str) -> None:
        self._engine_of = engine_of
        self._failed: dict[str, OrderedDict[Request, None]] = {}  # by worker, since it last served a request

    @property
    def empty(self) -> bool:
        return not self._failed

    def failed(self, worker: str, cause: Cause, request: Request, *, alone: bool, only: bool) -> Judgement:
        """Record a failure, and judge it.

        `alone`: no other tenant has requests under way. `only`: the model of the request has no other usable worker;
        then evidence from one tenant alone never opens this worker's breaker.
        """
        if cause in PROOF:
            return Judgement.ENGINE
        if self._failed_elsewhere(worker, request):
            return Judgement.REQUEST
        failed = self._failed.setdefault(worker, OrderedDict())
        failed[request] = None
        failed.move_to_end(request)
        if len(failed) > MAX_EVIDENCE:
            failed.popitem(last=False)
        if len({tenant for tenant, _ in failed}) > 1:
            enough = len(failed) >= REQUESTS
        else:
            enough = alone and not only and len(failed) >= REQUESTS_OF_ONE
        return Judgement.ENGINE if enough else Judgement.EVIDENCE

    def served(self, worker: str) -> None:
        """The worker served a request, so earlier failures no longer count as evidence."""
        self._failed.pop(worker, None)

    def _failed_elsewhere(self, worker: str, request: Request) -> bool:
        """Whether the request has also failed on another engine. If so, remove its evidence against all engines."""
        failed_at = [other for other, failed in self._failed.items() if request in failed]
        engine = self._engine_of(worker)
        if all(self._engine_of(other) == engine for other in failed_at):
            return False
        for other in failed_at:
            failed = self._failed[other]
            del failed[request]
            if not failed:
                del self._failed[other]
        return True
