"""Counts the connections that a full listener has closed or refused, and logs them at most once a minute."""

import logging
from typing import Final

from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.metrics import Counter, Metrics

LOG_AGAIN_S: Final = 60.0
NO_KEY: Final = "no_key"
IDLE: Final = "idle"
REFUSED: Final = "refused"

log = logging.getLogger(__name__)


class Crowding:
    def __init__(self, port: str, metrics: Metrics) -> None:
        """`port`: the listener's name in metrics and log."""
        self._port = port
        self._counters: dict[str, Counter] = {
            reason: metrics.counter(declared.CONNECTIONS_CLOSED_TOTAL, (("port", port), ("reason", reason)))
            for reason in (NO_KEY, IDLE, REFUSED)
        }
        self._logged = dict.fromkeys(self._counters, 0)
        self._logged_s = -LOG_AGAIN_S

    def count(self, reason: str) -> None:
        """Count a connection that was closed or refused because the listener is full."""
        self._counters[reason][0] += 1

    def sweep(self, now_s: float, connections: int) -> None:
        """Log what was counted since the last log line. `connections`: the listener's limit."""
        if now_s < self._logged_s + LOG_AGAIN_S:
            return
        found = {reason: counter[0] for reason, counter in self._counters.items()}
        if found == self._logged:
            return
        before, self._logged, self._logged_s = self._logged, found, now_s
        log.warning(
            "the %s port is full (%d connections): closed %d that had sent no valid key and %d idle ones for newer "
            "connections, and refused %d",
            self._port,
            connections,
            found[NO_KEY] - before[NO_KEY],
            found[IDLE] - before[IDLE],
            found[REFUSED] - before[REFUSED],
        )
