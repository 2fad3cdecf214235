"""Counters and histograms as plain numbers, rendered in Prometheus' text format on request.

No Prometheus client library is used on the request path: the ten updates of a request cost 60 us with such a library,
and 2 us with plain dicts. The number of label sets is bounded: labels are routes, statuses, cache tiers, reasons for
uncached tokens, and present workers, but never tenants.
"""

import operator
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple

from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.declared_metrics import Metric
from warmroute_proxy.server.base.minutes import TTFT_BOUNDS_S, Minutes

_WAIT_BOUNDS_S: Final[tuple[float, ...]] = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LAG_BOUNDS_S: Final[tuple[float, ...]] = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
ERROR_BOUNDS: Final[tuple[float, ...]] = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SIZE_BOUNDS: Final = (1_024, 16_384)
"""The numbers of prompt tokens at which the second and the third size of `SIZES` begin."""

SIZES: Final = ("short", "medium", "long")

_FROM_THE_START: Final = (
    declared.RETRIES_TOTAL,
    declared.RETRIES_REFUSED_TOTAL,
    declared.CONTINUED_TOTAL,
    declared.JOINS_TOTAL,
    declared.MARKERS_MISSED_TOTAL,
    declared.NONCES_MISSED_TOTAL,
    declared.QUEUE_LEFT_TOTAL,
    declared.CLIENT_LEFT_TOTAL,
    declared.FORWARDS_TOTAL,
    declared.FORWARD_FAILURES_TOTAL,
    declared.VOIDS_ORDERED_TOTAL,
)
"""Counters without labels, exported as 0 from the start, so that the first event is an increase, not a new series."""

_SEEN_BY_ALL: Final = frozenset((declared.KV_EVENT_RESTARTS_TOTAL.name, declared.KV_BLOCKS_TOTAL.name))
"""Counters of what each process of a proxy sees, so that it counts once. Batches of events and their losses are added
up: each process receives them for itself."""

_ROWS_SEEN_BY_ALL: Final = frozenset(
    {
        (declared.SHARED_EVENTS_TOTAL.name, (("result", "received"),)),
        (declared.RELOADS_TOTAL.name, (("outcome", "applied"),)),
    }
)
"""The same, of single label sets: each process applies what one of them has received, and each config that is not
refused."""

_ERRORS: Final = (declared.PREDICTION_ERROR_RATIO, declared.OVERPREDICTION_RATIO, declared.UNDERPREDICTION_RATIO)

Labels = tuple[tuple[str, str], ...]
GaugeRow = tuple[Metric, Labels, float]
"""A gauge, its labels and its present value."""

Counter = list[int]
"""A list with one number. Code that often raises a counter keeps a reference to the list, which saves the lookup."""


class HeldBy(Enum):
    """What held the event loop."""

    REQUEST = "request"
    SWEEP = "sweep"
    METRICS = "metrics"
    COLLECTION = "garbage_collection"
    OTHER = "other"


_HISTOGRAMS: Final[tuple[tuple[Metric, Labels], ...]] = (
    (declared.TTFT_SECONDS, ()),
    (declared.QUEUE_WAIT_SECONDS, ()),
    (declared.QUEUE_MEMORY_WAIT_SECONDS, ()),
    *[(metric, (("size", size),)) for metric in _ERRORS for size in SIZES],
    *[(declared.LOOP_LAG_SECONDS, (("held_by", held_by.value),)) for held_by in HeldBy],
)


class State(NamedTuple):
    """All numbers of one process, for its reports to other processes. `counters`: name, labels, value; `histograms`:
    counts, sum; `minutes`: those of the last hour.
    """

    counters: list[tuple[str, Labels, int]]
    histograms: list[tuple[list[int], float]]
    minutes: list[bytes]


class Exemplar(NamedTuple):
    """A value in a histogram, and the trace of its request."""

    trace_id: str
    value: float
    unix_s: float


class Histogram:
    """Counts of values by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """Number of a bucket -> its newest exemplar."""

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def exemplify(self, value: float, trace_id: str, unix_s: float) -> None:
        self.exemplars[bisect_left(self.bounds, value)] = Exemplar(trace_id, value, unix_s)

    def buckets(self) -> Iterable[tuple[float, int, Exemplar | None]]:
        """Each upper bound, the number of values up to it, and its exemplar."""
        running = accumulate(self.counts)
        bounds = enumerate((*self.bounds, float("inf")))
        return [(bound, next(running), self.exemplars.get(at)) for at, bound in bounds]

    def add(self, counts: list[int], total: float) -> None:
        """Add the counts of another histogram with the same bounds."""
        self.counts = list(map(operator.add, self.counts, counts))
        self.total += total


class Metrics:
    """All counters of one proxy process."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, Labels], Counter] = {(metric.name, ()): [0] for metric in _FROM_THE_START}
        self.before_read: list[Callable[[], None]] = []
        """Functions to call before the counters are read, since they add counts that were batched."""

        self.ttft = Histogram(TTFT_BOUNDS_S)
        self.queue_wait = Histogram(_WAIT_BOUNDS_S)
        self.memory_wait = Histogram(_WAIT_BOUNDS_S)
        self.prediction_error, self.overprediction, self.underprediction = [
            tuple([Histogram(ERROR_BOUNDS) for _ in SIZES]) for _ in _ERRORS
        ]
        """Each of the three has one histogram for each size of a prompt, in the order of `SIZES`."""

        self.loop_lag = {held_by: Histogram(_LAG_BOUNDS_S) for held_by in HeldBy}
        self.minutes = Minutes()

    def add(self, metric: Metric, amount: int = 1, labels: Labels = ()) -> None:
        self.counter(metric, labels)[0] += amount

    def counter(self, metric: Metric, labels: Labels = ()) -> Counter:
        return self._counters.setdefault((metric.name, labels), [0])

    def value(self, metric: Metric, labels: Labels = ()) -> int:
        self._flush()
        counter = self._counters.get((metric.name, labels))
        return counter[0] if counter is not None else 0

    def total(self, metric: Metric, *only: tuple[str, str]) -> int:
        """The sum of a counter over all of its label sets, or over the label sets that contain the labels `only`."""
        self._flush()
        counters = self._counters.items()
        return sum(count for (found, labels), (count,) in counters if found == metric.name and set(only) <= set(labels))

    def keep_workers(self, ids: Collection[str]) -> None:
        """Drop the counters of all other workers."""
        present = {"", *ids}
        for key in [*self._counters]:
            if dict(key[1]).get("worker", "") not in present:
                del self._counters[key]

    def counters(self) -> list[tuple[str, Labels, int]]:
        self._flush()
        return [(name, labels, value) for (name, labels), (value,) in self._counters.items()]

    def histograms(self) -> list[tuple[Metric, Labels, Histogram]]:
        self._flush()
        return [(*named, histogram) for named, histogram in zip(_HISTOGRAMS, self._histograms(), strict=True)]

    def state(self) -> State:
        counters = self.counters()  # first, since it also adds batched values to the histograms
        histograms = [(list(histogram.counts), histogram.total) for histogram in self._histograms()]
        return State(counters, histograms, self.minutes.encoded())

    def take_over(self, state: State, *, beside: bool = False) -> None:
        """Add the numbers of a predecessor or, if `beside`, of a process that ran at the same time."""
        for name, labels, value in state.counters:
            counter = self._counters.setdefault((name, labels), [0])
            once = beside and (name in _SEEN_BY_ALL or (name, labels) in _ROWS_SEEN_BY_ALL)
            counter[0] = max(counter[0], value) if once else counter[0] + value
        for histogram, (counts, total) in zip(self._histograms(), state.histograms, strict=True):
            histogram.add(counts, total)
        self.minutes.take_over(state.minutes)

    def take_exemplars(self, own: "Metrics") -> None:
        for histogram, other in zip(self._histograms(), own._histograms(), strict=True):
            histogram.exemplars = other.exemplars

    def _flush(self) -> None:
        for flush in self.before_read:
            flush()

    def _histograms(self) -> tuple[Histogram, ...]:
        errors = *self.prediction_error, *self.overprediction, *self.underprediction
        return self.ttft, self.queue_wait, self.memory_wait, *errors, *self.loop_lag.values()
