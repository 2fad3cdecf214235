"""Decides whether a worker may get new requests: from probes, an operator's drain order and a circuit breaker."""

from typing import Final, Literal

Health = Literal["up", "draining", "down", "open"]


BREAKER_FAILURES: Final = 3
BREAKER_FIRST_WAIT_S: Final = 2.0
BREAKER_MAX_WAIT_S: Final = 30.0


class Breaker:
    """The circuit breaker of one worker.

    Three failures in a row open the breaker: the worker gets no requests for 2 s. Then exactly one request is sent as a
    trial, and no other while the trial is under way. Each failed trial doubles the wait, up to 30 s. A success closes
    the breaker and resets the wait.
    """

    __slots__ = ("failures", "retry_at_s", "trial", "wait_s")

    def __init__(self) -> None:
        self.failures = 0
        self.wait_s = BREAKER_FIRST_WAIT_S
        self.retry_at_s = 0.0
        self.trial: object = None  # the request sent as a trial, while it is under way

    def allows(self, now_s: float) -> bool:
        """Whether a request may be sent: always while the breaker is closed, one trial at a time while it is open."""
        return self.failures < BREAKER_FAILURES or (self.trial is None and now_s >= self.retry_at_s)

    def sent(self, request: object, now_s: float) -> None:
        """A request was sent. If the breaker is open and no trial is under way, this request is the trial."""
        if self.failures >= BREAKER_FAILURES and self.trial is None:
            self.trial = request
            self.retry_at_s = now_s + self.wait_s

    def failed(self, request: object, now_s: float) -> None:
        """A request failed by this worker's fault. While the breaker is open, only a failed trial counts: all other
        requests were sent before the breaker opened.
        """
        self.failures += 1
        if self.failures > BREAKER_FAILURES:
            if self.trial is not request:
                return
            self.wait_s = min(2 * self.wait_s, BREAKER_MAX_WAIT_S)
        if self.failures >= BREAKER_FAILURES:
            self.retry_at_s = now_s + self.wait_s

    def ended(self, request: object) -> None:
        """A request has ended. If it was the trial and has no result (its client left), the next trial may start at
        `retry_at_s`.
        """
        if self.trial is request:
            self.trial = None

    def reset(self) -> None:
        self.failures = 0
        self.wait_s = BREAKER_FIRST_WAIT_S
        self.trial = None


class Changes:
    """Counts the changes of health and of prefill rates in a fleet. Values that depend on these are cached until the
    count changes.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Availability:
    """The availability of one worker or peer region. `ready`: whether it is up, does not drain, and its breaker is
    closed (the usual case). `suspect`: a peer region that counts as down only because its last probe got no answer.
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
        """Whether a request that cannot be served elsewhere may be sent here."""
        return self.suspect and not self.draining and self.breaker.allows(now_s)

    def is_usable(self, now_s: float) -> bool:
        return self.ready or (self.up and not self.draining and self.breaker.allows(now_s))

    def health(self, now_s: float) -> Health:
        if not self.up:
            return "down"
        if self.draining:
            return "draining"
        return "up" if self.breaker.allows(now_s) else "open"

    def set_health(self, *, up: bool | None = None, draining: bool | None = None) -> None:
        """Apply the result of a probe or an operator's order; None leaves a value unchanged."""
        if up is not None:
            self.up, self.suspect = up, False
        self.draining = self.draining if draining is None else draining
        self._refresh()

    def succeeded(self) -> None:
        if self.breaker.failures:
            self.reset_breaker()

    def failed(self, request: object, now_s: float) -> None:
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
