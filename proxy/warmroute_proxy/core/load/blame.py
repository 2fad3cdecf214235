"""Who is to blame for a failure: the engine, or the request.

A breaker closes an engine to everybody, so one tenant's requests must not open it alone. What a failure proves depends
on its cause:

    cause         what happened                                           counts against the engine
    UNREACHABLE   no connection could be opened                           at once
    BROKEN        the connection broke, or the process went away or hangs at once
    SILENT        no byte came in time                                    as evidence
    ERROR         it answered 5xx, or not as HTTP, JSON or events         as evidence
    OURS          the proxy had no descriptor or memory to connect with   for no worker

A failure that is evidence counts once for each request, and only while no request was served in between. With
`REQUESTS` different requests of at least two tenants it begins to count, and with `REQUESTS_OF_ONE` where one tenant
alone sends requests and another engine is left. The breaker opens by the third that counts (`load.breaker`). A request
that fails so on two engines is at fault itself: what it has counted on both is taken back.
"""

from collections import OrderedDict
from enum import Enum
from typing import Final

REQUESTS: Final = 2
REQUESTS_OF_ONE: Final = 8
MAX_EVIDENCE: Final = 64
"""Failed requests that are remembered for each worker; the oldest go first."""

Request = tuple[str, int]
"""Tenant, and fingerprint of the whole prompt."""


class Cause(Enum):
    """What happened, as the table above has it."""

    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    SILENT = "silent"
    ERROR = "error"
    OURS = "ours"


class Judgement(Enum):
    """What a failure is taken for."""

    ENGINE = "engine"
    """A failure of the engine: its breaker counts it."""
    EVIDENCE = "evidence"
    """Nobody's yet."""
    REQUEST = "request"
    """The request's own: it has failed so on two engines."""


PROOF: Final = frozenset({Cause.UNREACHABLE, Cause.BROKEN})
"""Causes that a client cannot bring about through a healthy engine. (Which requests end a process: `suspects`.)"""


class Blame:
    """What the failures of a fleet say of its workers."""

    def __init__(self) -> None:
        self._failed: dict[str, OrderedDict[Request, None]] = {}  # by worker, since a request was served there

    @property
    def empty(self) -> bool:
        """Whether there is no evidence against any worker."""
        return not self._failed

    def failed(self, worker: str, cause: Cause, request: Request, *, alone: bool, only: bool) -> Judgement:
        """Note a failure, and judge it.

        `alone`: no other tenant has requests under way. `only`: the worker is the only usable one of the request's
        model, which one tenant's errors never close.
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
        """A request was served: what failed before says no more of the engine."""
        self._failed.pop(worker, None)

    def _failed_elsewhere(self, worker: str, request: Request) -> bool:
        """Take back what a request has counted that fails on a second engine; return whether it does."""
        elsewhere = [other for other, failed in self._failed.items() if other != worker and request in failed]
        for other in (*elsewhere, worker) if elsewhere else ():
            failed = self._failed.get(other)
            if failed is not None:
                failed.pop(request, None)
                if not failed:
                    del self._failed[other]
        return bool(elsewhere)
