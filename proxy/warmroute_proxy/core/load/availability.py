"""Whether new requests may be sent to a worker: probes, drains and the breaker together."""

from typing import Literal

from warmroute_proxy.core.load.breaker import BREAKER_FAILURES, Breaker

Health = Literal["up", "draining", "down", "open"]


class Changes:
    """Counts the changes of health and of rate of all workers of a fleet. What is derived from them is cached until
    the count differs.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Availability:
    """The state of one worker. `ready`: up, not draining, breaker closed; true of almost all workers at almost all
    times. `suspect`: of a peer region that is down, only its last probe got no answer.
    """

    __slots__ = ("_changes", "breaker", "draining", "ready", "suspect", "up")

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.breaker = Breaker()
        self.up = True
        self.draining = False
        self.ready = True
        self.suspect = False

    def is_last_resort(self, now_s: float) -> bool:
        """Whether a request that no other can serve may be sent here."""
        return self.suspect and not self.draining and self.breaker.allows(now_s)

    def is_usable(self, now_s: float) -> bool:
        """Whether new requests may be sent here."""
        return self.ready or (self.up and not self.draining and self.breaker.allows(now_s))

    def health(self, now_s: float) -> Health:
        """One word for pages and metrics."""
        if not self.up:
            return "down"
        if self.draining:
            return "draining"
        return "up" if self.breaker.allows(now_s) else "open"

    def set_health(self, *, up: bool | None = None, draining: bool | None = None) -> None:
        """Apply the result of a probe or the order of an operator; None leaves a value as it is."""
        if up is not None:
            self.up, self.suspect = up, False
        self.draining = self.draining if draining is None else draining
        self._refresh()

    def succeeded(self) -> None:
        """A request was served."""
        if self.breaker.failures:
            self.reset_breaker()

    def failed(self, request: object, now_s: float) -> None:
        """A request failed by this worker's fault."""
        self.breaker.failed(request, now_s)
        self._refresh()

    def reset_breaker(self) -> None:
        """Forget failures: a request was served, or the engine restarted."""
        self.breaker.reset()
        self._refresh()

    def _refresh(self) -> None:
        ready = self.up and not self.draining and self.breaker.failures < BREAKER_FAILURES
        if ready != self.ready:
            self.ready = ready
            self._changes.count += 1
