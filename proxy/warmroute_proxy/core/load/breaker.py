"""The circuit breaker of one worker.

Three failures in a row close a worker to traffic for 2 s. Then exactly one request is sent as a trial, and no other
while it is under way. Each failed trial doubles the wait up to 30 s; a success resets it.
"""

from typing import Final

BREAKER_FAILURES: Final = 3
BREAKER_FIRST_WAIT_S: Final = 2.0
BREAKER_MAX_WAIT_S: Final = 30.0


class Breaker:
    """Closes a worker to traffic after failures in a row."""

    __slots__ = ("failures", "retry_at_s", "trial", "wait_s")

    def __init__(self) -> None:
        self.failures = 0
        self.wait_s = BREAKER_FIRST_WAIT_S
        self.retry_at_s = 0.0
        self.trial: object = None  # the request under way that is the trial

    def allows(self, now_s: float) -> bool:
        """Whether a request may be sent: always while the breaker is closed, one trial at a time while it is open."""
        return self.failures < BREAKER_FAILURES or (self.trial is None and now_s >= self.retry_at_s)

    def sent(self, request: object, now_s: float) -> None:
        """A request was sent. While the breaker is open, that request is the trial."""
        if self.failures >= BREAKER_FAILURES and self.trial is None:
            self.trial = request
            self.retry_at_s = now_s + self.wait_s

    def failed(self, request: object, now_s: float) -> None:
        """A request failed by this worker's fault. While the breaker is open only the trial counts: all other requests
        were sent before it opened.
        """
        self.failures += 1
        if self.failures > BREAKER_FAILURES:
            if self.trial is not request:
                return
            self.wait_s = min(2 * self.wait_s, BREAKER_MAX_WAIT_S)
        if self.failures >= BREAKER_FAILURES:
            self.retry_at_s = now_s + self.wait_s

    def ended(self, request: object) -> None:
        """A request has ended. After a trial without a result (its client left) the next one is due at its time."""
        if self.trial is request:
            self.trial = None

    def reset(self) -> None:
        """A request was served, or the engine restarted."""
        self.failures = 0
        self.wait_s = BREAKER_FIRST_WAIT_S
        self.trial = None
