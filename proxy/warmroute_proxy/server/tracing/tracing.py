"""The tracing of a proxy process: a sampler, a bounded queue of finished requests, and a thread that exports them.

The event loop appends to the queue and never waits. The thread exports a batch when `MAX_BATCH` requests wait, or after
`EVERY_S`. Limit: at most `queue_requests` finished requests wait. Further requests are dropped and counted, as are
requests that the collector does not accept within the timeout.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import TracingConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.repeated_line import RepeatedLine
from warmroute_proxy.server.base.secrets import SecretError, load_headers
from warmroute_proxy.server.tracing.context import Sampler
from warmroute_proxy.server.tracing.finished import Finished

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

MAX_BATCH: Final = 64
EVERY_S: Final = 1.0
CLOSE_S: Final = 2.0
_LOG: Final = logging.getLogger(__name__)


class Exporter(Protocol):
    """Sends spans to a collector. A call may block for the timeout of the config."""

    def export(self, spans: "list[ReadableSpan]") -> str:
        """Send spans. Returns why the collector has not accepted them; empty if it has."""

    def close(self) -> None:
        """Give up the export that is running."""


class Tracing:
    def __init__(
        self,
        config: TracingConfig,
        region: str,
        key: bytes,
        metrics: Metrics,
        clock: Callable[[], float],
        make_exporter: Callable[[dict[str, str]], Exporter] | None = None,
    ) -> None:
        """`key`: the key of the sampler's hash. `make_exporter`: makes an exporter from the headers for the collector,
        in the thread; None means OTLP over HTTP. Raises: SecretError.
        """
        follow = config.follow_clients
        bits = random.Random().getrandbits  # noqa: S311 - span ids are not secrets, and a system call is slow
        self.sampler = Sampler(config.ratio, follow_clients=follow, random_bits=bits, key=key)
        self.clock = clock
        self._metrics = metrics
        self._config = config
        self._region = region
        self._headers = load_headers(config.headers_file)
        self._make_exporter = make_exporter or partial(_Otlp, config)
        self._queue: deque[Finished] = deque()
        self._more = threading.Event()
        self._closed = False
        self._exported, self._failed, self._dropped = (
            metrics.counter(declared.TRACES_TOTAL, (("outcome", outcome),))
            for outcome in ("exported", "failed", "dropped")
        )
        self._exporter: Exporter | None = None
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def unix_offset_s(self) -> float:
        """What to add to a time of `clock` to get unix seconds."""
        return time.time() - self.clock()

    def note(self, trace_id: int, unix_s: float, ttft_s: float | None, waited_s: float | None) -> None:
        """Add the trace id as an exemplar to the histograms of the given times, unless these are None."""
        for histogram, value in ((self._metrics.ttft, ttft_s), (self._metrics.queue_wait, waited_s)):
            if value is not None:
                histogram.exemplify(value, f"{trace_id:032x}", unix_s)

    def ended(self, finished: Finished) -> None:
        """Queue a finished request for export, or drop it if too many wait."""
        if self._closed or len(self._queue) >= self._config.queue_requests:
            self._dropped[0] += 1
            return
        self._queue.append(finished)
        if len(self._queue) >= MAX_BATCH:
            self._more.set()

    @property
    def headers_file(self) -> Path | None:
        return self._config.headers_file

    def read_headers(self) -> None:
        """Read the headers for the collector again, for the next batch. An unreadable file leaves them unchanged."""
        try:
            headers = load_headers(self.headers_file)
        except SecretError as error:
            _LOG.error("the headers of the collector stay as they were: %s", error)
            return
        if headers != self._headers:
            _LOG.info("the collector gets other headers")
            self._headers = headers

    def close(self) -> None:
        """Export the requests that wait, for at most `CLOSE_S`, and end the thread."""
        self._closed = True
        self._more.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive() and self._exporter is not None:
            self._exporter.close()

    # -- the thread

    def _run(self) -> None:
        try:
            self._export_all()
        except Exception as error:  # no exporter can be made: requests go on without traces
            _LOG.error("traces are not exported any more: %s", type(error).__name__)
            self._closed = True

    def _export_all(self) -> None:
        from warmroute_proxy.server.tracing.spans import Spans

        headers = self._headers
        exporter = self._exporter = self._make_exporter(headers)
        spans = Spans(self._config.service_name, self._region, self.sampler.span_id)
        failures = RepeatedLine(_LOG, logging.WARNING, self.clock)
        was_away = False
        while not (self._closed and not self._queue):
            self._more.wait(EVERY_S)
            if len(self._queue) < MAX_BATCH:
                self._more.clear()
            batch = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
            if not batch:
                continue
            if self._headers is not headers:
                exporter.close()
                headers = self._headers
                exporter = self._exporter = self._make_exporter(headers)
            made: list[list[ReadableSpan]] = []
            for each in batch:
                try:
                    made.append(spans.of(each))
                except Exception as error:  # a bug here must not end the tracing
                    failures.write("the spans of a request cannot be made: %s", type(error).__name__)
            try:
                reason = exporter.export([span for each in made for span in each])
            except Exception as error:  # also OpenTelemetry's exporter raises, in some versions
                reason = type(error).__name__
            exported = 0 if reason else len(made)
            self._exported[0] += exported
            self._failed[0] += len(batch) - exported
            if reason:
                failures.write("the collector does not take traces: %s", reason)
            elif was_away:
                _LOG.warning("the collector takes traces again")
            was_away = bool(reason)
        exporter.close()


class _Reasons(logging.Handler):
    """Keeps the last lines that OpenTelemetry logs: the last error and, if that was the end of retries, its cause."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=2)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split())[:300])


class _Otlp:
    """OTLP over HTTP, by OpenTelemetry's exporter."""

    def __init__(self, config: TracingConfig, headers: dict[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        # The proxy itself logs failures, and counts them in the metric `warmroute_traces_total`.
        self._reasons = _Reasons()
        log = logging.getLogger("opentelemetry")
        log.propagate = False
        log.handlers = [self._reasons]
        self._exporter = OTLPSpanExporter(
            f"{config.endpoint}/v1/traces", headers=headers, timeout=config.timeout_s, compression=Compression.Gzip
        )

    def export(self, spans: "list[ReadableSpan]") -> str:
        self._reasons.lines.clear()
        if self._exporter.export(spans).name == "SUCCESS":
            return ""
        return "; ".join(self._reasons.lines) or "the reason is unknown"

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
