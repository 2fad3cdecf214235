"""Judges by an engine's reports whether it is alive, and when to probe it: a probe makes the engine generate a token.

An engine's `/ready` reports a flag, which is set by start, shutdown and the outcome of the last `/health`. The flag
does not change when the scheduler hangs. Finished work proves that an engine is alive: its reports at `/v1/loads`
change with each chunk of a prompt and every few decode steps. The proxy requests `/health` if no report has changed for
`SILENT_S` while requests run there, or for `IDLE_S` while no request runs. SGLang then generates one token and waits up
to 20 s for any message from its scheduler. So an engine that works is never probed, and an idle one is probed once a
minute. An engine that does not report is not probed either: a long prompt could not be distinguished from a hang.

    alive    its reports change, or `/health` answered 200
    unwell   `/health` gave no 200 in time: no new work; probed every `SILENT_S`, since only a 200 clears the flag
"""

from typing import Final

SILENT_S: Final = 30.0
IDLE_S: Final = 60.0
HEALTH_TIMEOUT_S: Final = 25.0
"""Longer than SGLang's own 20 s, so that the engine itself reports the failure."""


class HealthMonitor:
    """The health of one engine. `now_s` never goes back."""

    __slots__ = ("_changed_s", "_probed_s", "_report", "unwell")

    def __init__(self, now_s: float) -> None:
        self.unwell = False
        self._report: object = None
        self._changed_s = now_s
        self._probed_s = now_s

    def observe_report(self, report: object, now_s: float) -> None:
        """Compare a report of the engine with the previous one: a change shows that the engine is alive. An unwell
        engine stays unwell all the same, because only `/health` clears SGLang's flag.
        """
        if report != self._report:
            self._report = report
            self._changed_s = now_s

    def restart(self, now_s: float) -> None:
        self.unwell = False
        self._changed_s = self._probed_s = now_s

    def is_probe_due(self, *, works: bool, now_s: float) -> bool:
        """Whether `/health` is due. `works`: whether requests that this proxy sent run there."""
        if self._report is None:
            return False
        if self.unwell:
            return now_s - self._probed_s >= SILENT_S
        return now_s - max(self._probed_s, self._changed_s) >= (SILENT_S if works else IDLE_S)

    def probe_sent(self, now_s: float) -> None:
        """`/health` was requested."""
        self._probed_s = now_s

    def observe_probe(self, status: int, now_s: float, *, drains: bool) -> None:
        """Apply the HTTP status of `/health`; 0 stands for no answer. A draining engine always answers 503, so this is
        not a failure. A server without this route (404, 405) counts as alive, because it has answered.
        """
        self.unwell = not (status in {200, 404, 405} or (status == 503 and drains))
        if not self.unwell:
            self._changed_s = now_s
