"""Counts what happens to requests, and sums what settled requests add to counters and to the minutes of the last hour.

A settled request adds a dozen numbers. To save time, they are summed here until they are read or the minute is over.
"""

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
from warmroute_proxy.server.base.minutes import FINE_BOUNDS_S, STEPS, Row

_BY_TIER: Final[tuple[Labels, ...]] = tuple((("tier", tier),) for tier in TIERS)


class _Errors:
    """Counts of predictions for prompts of one size class, by error as a share of the prompt: `over` for predictions of
    too many cached tokens, `under` for too few or the exact number.
    """

    __slots__ = ("over", "over_sum", "under", "under_sum")

    def __init__(self) -> None:
        self.over = [0] * (len(ERROR_BOUNDS) + 1)
        self.under = [0] * (len(ERROR_BOUNDS) + 1)
        self.over_sum = 0.0
        self.under_sum = 0.0


class _Sums:
    """The sums of one tenant's turns at one worker: their number, and the numbers for the counters."""

    __slots__ = ("lost", "numbers")

    def __init__(self, numbers: int) -> None:
        self.numbers = [0] * numbers
        self.lost: defaultdict[str, int] = defaultdict(int)  # uncached tokens by loss class, such as `evicted`


class RequestMetrics:
    """Counts the steps of requests, and sums the numbers of settled ones."""

    def __init__(self, metrics: Metrics) -> None:
        counter = metrics.counter
        self._metrics = metrics
        self._counters: list[Counter] = [
            counter(declared.PROMPT_TOKENS_TOTAL),
            [0],  # the sum of all cached tokens: not shown, since cached tokens are counted by tier below
            counter(declared.LIST_NANOUSD_TOTAL),
            counter(declared.PRICE_NANOUSD_TOTAL),
            counter(declared.COMPLETION_TOKENS_TOTAL),
            *[counter(declared.CACHED_TOKENS_TOTAL, tier) for tier in _BY_TIER],
            *[counter(declared.PREDICTED_TOKENS_TOTAL, tier) for tier in _BY_TIER],
        ]
        self._minutes = metrics.minutes
        self._minute_ends_s = 0.0
        """The end of the minute to which the sums belong, in unix seconds; 0 until there is a sum."""

        self._sums: dict[tuple[str, str], _Sums] = {}  # by tenant and worker
        self._first_tokens: dict[str, list[int]] = {}  # tenant -> numbers of streams, by range of TTFT
        self._ttft_s = 0.0
        self._ended: defaultdict[str, int] = defaultdict(int)  # by outcome
        self._errors = [_Errors() for _ in SIZES]
        metrics.before_read.append(self.count)

    def answers(self, route: str, status: int) -> Counter:
        return self._metrics.counter(declared.REQUESTS_TOTAL, (("route", route), ("status", str(status))))

    def answered(self, tenant: str, status: int) -> None:
        """Count an error answer to a tenant, whose status is 429 or at least 500, or a stream that broke off."""
        self._minutes.add(tenant, Row(rate_limited=1) if status == 429 else Row(errors=1))

    def first_token(self, tenant: str, ttft_s: float) -> None:
        counts = self._first_tokens.get(tenant)
        if counts is None:
            counts = self._first_tokens[tenant] = [0] * (len(FINE_BOUNDS_S) + 1)
        counts[bisect_left(FINE_BOUNDS_S, ttft_s)] += 1
        self._ttft_s += ttft_s

    def client_left(self) -> None:
        self._metrics.add(declared.CLIENT_LEFT_TOTAL)

    def retried(self) -> None:
        self._metrics.add(declared.RETRIES_TOTAL)

    def retry_refused(self) -> None:
        """Count a request that is not tried again, because the budget of retries is spent."""
        self._metrics.add(declared.RETRIES_REFUSED_TOTAL)

    def failed(self, worker_id: str, judged: Judgement) -> None:
        labels = (("worker", worker_id), ("judged", judged.value))
        self._metrics.add(declared.ENGINE_FAILURES_TOTAL, labels=labels)

    def suspect(self, outcome: str) -> None:
        """Count a request whose engine went away before its first token, or that is refused because of this."""
        self._metrics.add(declared.SUSPECTS_TOTAL, labels=(("outcome", outcome),))

    def continued(self) -> None:
        self._metrics.add(declared.CONTINUED_TOTAL)

    def settled(
        self, entry: Entry, usage: Usage, loss: Mapping[str, int], predicted: Held, settled: Settled | None, worker: str
    ) -> None:
        """Add a request, its tokens, its price, the predicted cached tokens and the error of that prediction.
        `worker`: the worker whose cache holds the prompt.
        """
        if entry.settled_at >= self._minute_ends_s:
            if self._sums:
                self.count()
            self._minute_ends_s = (entry.settled_at // 60.0 + 1.0) * 60.0
        sums = self._sums.get((entry.tenant, worker))
        if sums is None:
            sums = self._sums[entry.tenant, worker] = _Sums(1 + len(self._counters))
        prompt, lost = usage.prompt_tokens, sums.lost
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
            1, prompt, entry.cached_tokens, entry.list_nanousd, entry.price_nanousd,
            usage.completion_tokens, usage.device, usage.host, usage.storage, *predicted,
        )  # fmt: skip
        sums.numbers = list(map(add, sums.numbers, more))

    def kept_warm(self, tenant: str, usage: Usage) -> None:
        """Count a turn whose only purpose is to keep a prompt in the cache. Called before the turn is settled."""
        warm = Row(warm_prompt_tokens=usage.prompt_tokens, warm_cached_tokens=usage.cached_tokens)
        self._minutes.add(tenant, warm)

    def normalised(self, rules: tuple[str, ...]) -> None:
        """Count the normalising rules that took something volatile out of the prompt of a settled turn."""
        for rule in rules:
            self._metrics.add(declared.NORMALISED_TOTAL, labels=(("rule", rule),))

    def withdrawn(self, entry: Entry) -> None:
        """Take back the outcome and price of a request whose row was not written. Its tokens stay counted, since they
        were computed.
        """
        self._ended[entry.outcome or ""] -= 1
        self._ended["interrupted"] += 1
        for metric, nanousd in (
            (declared.LIST_NANOUSD_TOTAL, entry.list_nanousd),
            (declared.PRICE_NANOUSD_TOTAL, entry.price_nanousd),
        ):
            self._metrics.add(metric, -nanousd)
        self._minutes.add(entry.tenant, Row(-1, 0, 0, -entry.list_nanousd, -entry.price_nanousd))

    def interrupted(self, requests: int = 1) -> None:
        """Add requests that ended by an error of the proxy itself, or by the death of a process."""
        if requests:
            self._ended["interrupted"] += requests

    def count(self) -> None:
        """Add the sums to the counters and to their minute. Called before counters are read."""
        metrics, minute = self._metrics, int(self._minute_ends_s) // 60 - 1 if self._minute_ends_s else None
        for (tenant, worker), sums in self._sums.items():
            for counter, more in zip(self._counters, sums.numbers[1:], strict=True):
                counter[0] += more
            for name, more in sums.lost.items():
                metrics.add(declared.LOSS_TOKENS_TOTAL, more, (("class", name),))
            turns, prompt, cached, list_nanousd, price_nanousd, *_ = sums.numbers
            row = Row(turns, prompt, cached, list_nanousd, price_nanousd, loss=dict(sums.lost))
            self._minutes.add(tenant, row, minute, worker)
        self._sums.clear()
        for tenant, counts in self._first_tokens.items():
            steps = [sum(counts[at : at + STEPS]) for at in range(0, len(counts), STEPS)]
            metrics.ttft.add(steps, 0.0)
            ttft = {step: streams for step, streams in enumerate(counts) if streams}
            self._minutes.add(tenant, Row(ttft=ttft), minute)
        self._first_tokens.clear()
        metrics.ttft.total += self._ttft_s
        self._ttft_s = self._minute_ends_s = 0.0
        for outcome, more in self._ended.items():
            metrics.add(declared.TURNS_TOTAL, more, (("outcome", outcome),))
        self._ended.clear()
        for size, errors in enumerate(self._errors):
            over, under = errors.over, errors.under
            metrics.prediction_error[size].add(list(map(add, over, under)), errors.over_sum + errors.under_sum)
            metrics.overprediction[size].add([over[0] + sum(under), *over[1:]], errors.over_sum)
            metrics.underprediction[size].add([under[0] + sum(over), *under[1:]], errors.under_sum)
        self._errors = [_Errors() for _ in SIZES]
