"""The page `/metrics`: the counters of all processes of this proxy, and gauges of what the processes hold now."""

import os
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from warmroute.contract.version import VERSION
from warmroute_proxy import BUILD
from warmroute_proxy.core.base.trouble import Trouble
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.declared_metrics import OF_PROCESSES, OF_WORKERS
from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.metrics import GaugeRow, HeldBy, Labels, Metrics
from warmroute_proxy.server.base.minutes import Minute, merged
from warmroute_proxy.server.control.exposition import page_of
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.http.tls import Tls
from warmroute_proxy.server.processes.peer_processes import Gauges, PeerProcesses, ProcessReport, summed_metrics

_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

LOOK_EVERY_S: Final = 1.0
"""Interval at which a process looks for the problems that it publishes to the other processes."""


class MetricsPage:
    """Renders the page, and publishes the metrics of this process to the other processes."""

    def __init__(
        self,
        metrics: Metrics,
        held: Callable[[], Gauges],
        router: Router,
        engines: Engines,
        peer_processes: PeerProcesses | None,
        loop_lag: LoopLag,
        gauges: Sequence[Callable[[], list[GaugeRow]]],
        troubles: Callable[[], tuple[str, ...]],
    ) -> None:
        """`held`: what this process has in memory now. `peer_processes`: the other processes of this proxy; None if
        this process is the only one. `gauges`: functions that return the gauges of other parts. `troubles`: returns
        the names of the problems that this process reports at `/ready`.
        """
        self._metrics = metrics
        self._held = held
        self._router = router
        self._engines = engines
        self._peer_processes = peer_processes
        self._clock = engines.clock
        self._loop_lag = loop_lag
        self._gauges_of_parts = gauges
        self._troubles = troubles
        self._own_troubles: tuple[str, ...] = ()
        self._look_s = 0.0  # when to call `troubles` again

    def publish(self) -> None:
        if self._peer_processes is not None:
            now_s = self._clock()
            if now_s >= self._look_s:
                self._own_troubles, self._look_s = self._troubles(), now_s + LOOK_EVERY_S
            self._peer_processes.publish(self._metrics, self._held(), self._own_troubles)

    def render(self, *, open_metrics: bool = False) -> str:
        """The page, in Prometheus' text format or in OpenMetrics.

        The page has this process's current metrics, and those that the other processes published at their last sweep
        or page.
        """
        began_s = self._clock()
        page = self._render(open_metrics)
        self._loop_lag.ran(HeldBy.METRICS, self._clock() - began_s)
        return page

    def minutes(self) -> list[Minute]:
        others = [] if self._peer_processes is None else self._peer_processes.reports()
        return merged([self._metrics.state().minutes, *(report.metrics.minutes for report in others)], time.time())

    def _render(self, open_metrics: bool) -> str:
        peer_processes = self._peer_processes
        if peer_processes is None:
            return page_of(self._metrics, self._gauges([]), open_metrics=open_metrics)
        # Otherwise the next page, rendered by another process, may show older counts of this process than this page
        # does, and will do so for ever if this process dies.
        self.publish()
        rows = peer_processes.reports()
        total = summed_metrics(self._metrics, rows)
        alive = [row for row in rows if peer_processes.alive(row)]
        # Otherwise the sums of a worker fall when the first process drops it, which looks like a restart of counters.
        present = [each for each in self._engines.workers() if all(each.engine in row.connections for row in alive)]
        total.keep_workers([each.id for each in present])
        return page_of(total, self._gauges(alive), open_metrics=open_metrics)

    def _gauges(self, others: list[ProcessReport]) -> list[GaugeRow]:
        held = zip(self._held(), *(other.gauges for other in others), strict=True)
        rows: list[GaugeRow] = [
            (OF_PROCESSES[name], (), float(sum(values))) for name, values in zip(Gauges._fields, held, strict=True)
        ]
        rows.append((declared.BUILD_INFO, (("version", VERSION), ("build", BUILD)), 1.0))
        there = {*self._troubles(), *(name for other in others for name in other.troubles)}
        rows += [(declared.TROUBLE, (("trouble", each.value),), float(each.value in there)) for each in Trouble]
        if self._peer_processes is not None:
            rows.append((declared.PROCESSES, (), float(1 + len(others))))
        for gauges in self._gauges_of_parts:
            rows += gauges()
        drains = self._engines.drains
        for engine in self._engines.by_id.values():
            engine_id = engine.config.id
            label: Labels = (("engine", engine_id),)
            rows.append((declared.ENGINE_UP, label, float(engine.up)))
            rows.append((declared.ENGINE_DRAINING, label, float(drains.draining(engine_id))))
            connections = engine.upstream.open + sum(other.connections.get(engine_id, 0) for other in others)
            rows.append((declared.ENGINE_CONNECTIONS, label, float(connections)))
        for worker_id, worker in self._router.snapshot(self._clock()).get("workers", {}).items():
            for name in OF_WORKERS.keys() & worker.keys():
                rows.append((OF_WORKERS[name], (("worker", worker_id),), float(worker[name])))
        for worker_id, feed in self._engines.kv_events.feeds().items():
            rows.append((declared.KV_EVENT_LAG_SECONDS, (("worker", worker_id),), feed.lag_s))
            rows.append((declared.KV_BLOCKS_HELD, (("worker", worker_id),), float(feed.blocks.blocks)))
        rows.extend(self._engines.watching.gauges())
        return rows


class OwnGauges:
    """Gauges of the whole proxy, which have the same value in each of its processes."""

    def __init__(self, state_dir: Path, tls: Tls | None) -> None:
        self._lock = state_dir / "lock"  # its time of change is the start of the proxy
        self._tls = tls

    def gauges(self) -> list[GaugeRow]:
        """When the proxy started and, with TLS, when its certificate expires."""
        rows: list[GaugeRow] = [(declared.START_TIME_SECONDS, (), self._lock.stat().st_mtime)]
        if self._tls is not None and self._tls.valid_until:
            expiry_s = float(ssl.cert_time_to_seconds(self._tls.valid_until))
            rows.append((declared.CERTIFICATE_EXPIRY_SECONDS, (), expiry_s))
        return rows


def resident_bytes() -> int:
    """The resident memory of this process; 0 if the system does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
