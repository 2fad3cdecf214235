"""Whether an engine lives, from what it shows anyway; and when it has to be asked, which costs it a generation.

`/ready` says what an engine thinks of itself: a flag, set by start, shutdown and the outcome of the last `/health`. A
scheduler that hangs leaves it as it is. What proves life is work that gets done: reports at `/v1/loads` that change
(they do with each chunk of a prompt and each few decode steps). Where there has been nothing of the kind for `SILENT_S`
while requests are there, or for `IDLE_S` where none is, `/health` is asked: SGLang then makes one token and waits up to
20 s for any sign of its scheduler. So an engine that works is never asked, and an idle one once a minute. One that does
not report is not asked either: nobody could tell a long prompt from a hang.

    alive    it has shown life, or said 200
    unwell   `/health` gave no 200 in time: no new work; asked again each `SILENT_S`, which also clears SGLang's flag
"""

from typing import Final

SILENT_S: Final = 30.0
IDLE_S: Final = 60.0
HEALTH_TIMEOUT_S: Final = 25.0
"""Longer than SGLang's own 20 s, so that it is the engine that says no."""


class HealthMonitor:
    """What is known of one engine's life. `now_s` never goes back."""

    __slots__ = ("_asked_s", "_shown", "_shown_s", "unwell")

    def __init__(self, now_s: float) -> None:
        self.unwell = False
        self._shown: object = None
        self._shown_s = now_s
        self._asked_s = now_s

    def shows(self, report: object, now_s: float) -> None:
        """What it reports of its work: a change is life. It heals nothing: only `/health` clears the engine's flag."""
        if report != self._shown:
            self._shown = report
            self._shown_s = now_s

    def begins(self, now_s: float) -> None:
        """It has just become ready, or is another one."""
        self.unwell = False
        self._shown_s = self._asked_s = now_s

    def to_be_asked(self, *, works: bool, now_s: float) -> bool:
        """Whether `/health` is due. `works`: requests that we sent run there."""
        if self._shown is None:
            return False
        if self.unwell:
            return now_s - self._asked_s >= SILENT_S
        return now_s - max(self._asked_s, self._shown_s) >= (SILENT_S if works else IDLE_S)

    def asked(self, now_s: float) -> None:
        """`/health` is being asked."""
        self._asked_s = now_s

    def says(self, status: int, now_s: float, *, drains: bool) -> None:
        """What it answered, 0 for nothing. While it drains, 503 is all that it says. A server without that route has at
        least answered.
        """
        self.unwell = not (status in {200, 404, 405} or (status == 503 and drains))
        if not self.unwell:
            self._shown_s = now_s
