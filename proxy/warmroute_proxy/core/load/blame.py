"""Who is to blame for a failure: the engine, the request, or neither.

A breaker closes an engine to everybody, so one tenant's requests must not open it alone. What a failure proves depends
on its cause:

    cause         what happened                                           counts against the engine
    UNREACHABLE   no connection could be opened                           at once
    BROKEN        the connection broke, or the process went away          at once
    SILENT        no byte came in time                                    as an ERROR
    ERROR         it answered 5xx, or not as HTTP, JSON or events         by different requests of different tenants
    TOO_LARGE     its answer exceeds `response_bytes`                     never: the client asked for it
    SHED          it takes no more work (429, 503)                        never
    OURS          an errno of the proxy itself, such as EMFILE            never

`ERROR` failures count once for each request, and only while no request was served in between. They amount to a failure
of the engine when `REQUESTS` different requests of at least two tenants have failed, or `REQUESTS_OF_ONE` where one
tenant alone sends requests. A request that failed as an `ERROR` on two engines is at fault itself: it takes back what
it had counted on both.
"""

from collections import OrderedDict
from enum import Enum
from typing import Final

REQUESTS: Final = 3
REQUESTS_OF_ONE: Final = 10
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
    TOO_LARGE = "too_large"
    SHED = "shed"
    OURS = "ours"


PROOF: Final = frozenset({Cause.UNREACHABLE, Cause.BROKEN})
"""Causes that a client cannot bring about through a healthy engine. (Which requests end a process: `suspects`.)"""

EVIDENCE: Final = frozenset({Cause.SILENT, Cause.ERROR})


class Blame:
    """What the failures of a fleet say of its workers."""

    def __init__(self) -> None:
        self._failed: dict[str, OrderedDict[Request, None]] = {}  # by worker, since a request was served there

    def failed(self, worker: str, cause: Cause, request: Request, *, alone: bool, last: bool) -> bool:
        """Note a failure; return whether it is one of the engine's, which its breaker counts.

        `alone`: no other tenant has requests under way or had some lately. `last`: the worker is the last usable one of
        the request's model, which one tenant's errors never close.
        """
        if cause in PROOF:
            return True
        if cause not in EVIDENCE:
            return False
        if self._failed_elsewhere(worker, request):
            return False
        failed = self._failed.setdefault(worker, OrderedDict())
        failed[request] = None
        failed.move_to_end(request)
        if len(failed) > MAX_EVIDENCE:
            failed.popitem(last=False)
        if len({tenant for tenant, _ in failed}) > 1:
            return len(failed) >= REQUESTS
        return alone and not last and len(failed) >= REQUESTS_OF_ONE

    def served(self, worker: str) -> None:
        """A request was served: what failed before says no more of the engine."""
        self._failed.pop(worker, None)

    def removed(self, worker: str) -> None:
        """The worker is gone, or another took its place."""
        self._failed.pop(worker, None)

    def _failed_elsewhere(self, worker: str, request: Request) -> bool:
        """Take back what a request has counted that fails on a second engine; return whether it does."""
        elsewhere = [other for other, failed in self._failed.items() if other != worker and request in failed]
        for other in elsewhere:
            self._failed[other].pop(request)
        if elsewhere:
            self._failed.get(worker, OrderedDict()).pop(request, None)
        return bool(elsewhere)
