"""What requests add to the counters. A settled one adds a dozen numbers: they are summed here until they are read."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from operator import add
from typing import Final

from warmroute.contract.receipt import TIERS
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.cache.tiers import NOTHING_HELD, Held
from warmroute_proxy.core.load.blame import Judgement
from warmroute_proxy.core.placement.router import Settled
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.metrics import ERROR_BOUNDS, SIZE_BOUNDS, SIZES, Counter, Labels, Metrics

_BY_TIER: Final[tuple[Labels, ...]] = tuple((("tier", tier),) for tier in TIERS)


class _Errors:
    """Predictions of prompts of one size, by how much of the prompt they were too high, and too low or right."""

    __slots__ = ("over", "over_sum", "under", "under_sum")

    def __init__(self) -> None:
        self.over = [0] * (len(ERROR_BOUNDS) + 1)
        self.under = [0] * (len(ERROR_BOUNDS) + 1)
        self.over_sum = 0.0
        self.under_sum = 0.0


class RequestMetrics:
    """Counts the steps of requests, and sums what they come to."""

    def __init__(self, metrics: Metrics) -> None:
        counter = metrics.counter
        self._metrics = metrics
        self._counters: list[Counter] = [
            counter(declared.PROMPT_TOKENS_TOTAL),
            counter(declared.COMPLETION_TOKENS_TOTAL),
            counter(declared.LIST_NANOUSD_TOTAL),
            counter(declared.PRICE_NANOUSD_TOTAL),
            *[counter(declared.CACHED_TOKENS_TOTAL, tier) for tier in _BY_TIER],
            *[counter(declared.PREDICTED_TOKENS_TOTAL, tier) for tier in _BY_TIER],
        ]
        self._sums = [0] * len(self._counters)
        self._ended: defaultdict[str, int] = defaultdict(int)  # by outcome
        self._lost: defaultdict[str, int] = defaultdict(int)  # tokens by class
        self._errors = [_Errors() for _ in SIZES]
        metrics.before_read.append(self.count)

    def answers(self, route: str, status: int) -> Counter:
        """The count of answers to requests on a route, by status."""
        return self._metrics.counter(declared.REQUESTS_TOTAL, (("route", route), ("status", str(status))))

    def first_token(self, ttft_s: float) -> None:
        self._metrics.ttft.observe(ttft_s)

    def client_left(self) -> None:
        """A client has left before its answer ended."""
        self._metrics.add(declared.CLIENT_LEFT_TOTAL)

    def retried(self) -> None:
        self._metrics.add(declared.RETRIES_TOTAL)

    def retry_refused(self) -> None:
        """A request gets no other attempt: the budget of retries is spent."""
        self._metrics.add(declared.RETRIES_REFUSED_TOTAL)

    def failed(self, worker_id: str, judged: Judgement) -> None:
        labels = (("worker", worker_id), ("judged", judged.value))
        self._metrics.add(declared.ENGINE_FAILURES_TOTAL, labels=labels)

    def suspect(self, outcome: str) -> None:
        """A request had no token when its engine went away, or is refused for that."""
        self._metrics.add(declared.SUSPECTS_TOTAL, labels=(("outcome", outcome),))

    def continued(self) -> None:
        self._metrics.add(declared.CONTINUED_TOTAL)

    def settled(
        self, entry: Entry, usage: Usage, loss: Mapping[str, int], predicted: Held, settled: Settled | None
    ) -> None:
        """Add a request, its tokens and its price; what was predicted to be cached, and by how much that was wrong."""
        prompt, lost = usage.prompt_tokens, self._lost
        self._ended[entry.outcome or ""] += 1
        for name in loss:
            lost[name] += loss[name]
        if settled is None or settled.error_tokens is None or prompt <= 0:
            predicted = NOTHING_HELD
        else:
            errors = self._errors[bisect_right(SIZE_BOUNDS, prompt)]
            error = settled.error_tokens / prompt
            if error > 0.0:
                errors.over_sum += error
                errors.over[bisect_left(ERROR_BOUNDS, error)] += 1
            else:
                errors.under_sum -= error
                errors.under[bisect_left(ERROR_BOUNDS, -error)] += 1
        more = (
            prompt, usage.completion_tokens, entry.list_nanousd, entry.price_nanousd,
            usage.device, usage.host, usage.storage, *predicted,
        )  # fmt: skip
        self._sums = list(map(add, self._sums, more))

    def normalised(self, rules: tuple[str, ...]) -> None:
        """Rules took something out of the prompt of a settled turn."""
        for rule in rules:
            self._metrics.add(declared.NORMALISED_TOTAL, labels=(("rule", rule),))

    def withdrawn(self, entry: Entry) -> None:
        """Take back that a request was settled, and its price: its row was not written. Its tokens were computed."""
        self._ended[entry.outcome or ""] -= 1
        self._ended["interrupted"] += 1
        prompt, completion, list_nanousd, price_nanousd, *cached = self._sums
        list_nanousd -= entry.list_nanousd
        price_nanousd -= entry.price_nanousd
        self._sums = [prompt, completion, list_nanousd, price_nanousd, *cached]

    def interrupted(self, requests: int = 1) -> None:
        """Add requests that an error of the proxy's own, or the death of a process, has ended."""
        if requests:
            self._ended["interrupted"] += requests

    def count(self) -> None:
        """Put the sums into the counters. Called before they are read."""
        metrics = self._metrics
        for counter, more in zip(self._counters, self._sums, strict=True):
            counter[0] += more
        self._sums = [0] * len(self._sums)
        for name, label, numbers in (
            (declared.TURNS_TOTAL, "outcome", self._ended),
            (declared.LOSS_TOKENS_TOTAL, "class", self._lost),
        ):
            for value, more in numbers.items():
                metrics.counter(name, ((label, value),))[0] += more
            numbers.clear()
        for size, errors in enumerate(self._errors):
            over, under = errors.over, errors.under
            metrics.prediction_error[size].add(list(map(add, over, under)), errors.over_sum + errors.under_sum)
            metrics.overprediction[size].add([over[0] + sum(under), *over[1:]], errors.over_sum)
            metrics.underprediction[size].add([under[0] + sum(over), *under[1:]], errors.under_sum)
        self._errors = [_Errors() for _ in SIZES]
