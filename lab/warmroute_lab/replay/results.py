"""The figures of a run: hit ratio, latencies, imbalance, and each worker's load over time."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from warmroute_lab.replay.fleet import ReplayTurn

SAMPLES = 240
"""How many points the load series of a run has."""


@dataclass(slots=True)
class Result:
    """One policy at one load. Times are virtual seconds. Percentiles are over all counted requests, with linear
    interpolation.

    `hit`: cached input tokens / input tokens. `tpot`: the time for each token after the first, for answers of two or
    more tokens. `imbalance`: the largest number of outstanding tokens of a worker / the workers' mean number, averaged
    over arrivals.
    """

    trace: str
    speed_up: float
    requests: int
    hit: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    tpot_p90_s: float
    imbalance: float
    simulated_s: float
    cpu_s: float
    policy: str = ""
    workers: str = ""
    prediction_error_p95: float | None = None
    """The error of the predicted cached tokens, as a share of the prompt; None if the policy predicts nothing."""
    retries: int = 0
    """Turns that were sent again because their worker went away."""
    computed_tokens: int = 0
    """Input tokens that were not cached."""
    ttft_max_s: float = 0.0
    tpot_p50_s: float = 0.0
    tpot_p99_s: float = 0.0
    session_s: float = 0.0
    """How long a session waits for answers in all, as a mean over sessions."""
    new_p50_s: float = 0.0
    new_p90_s: float = 0.0
    new_max_s: float = 0.0
    """The longest TTFT of turns that begin a session; `new_p50_s` and `new_p90_s` are percentiles."""
    running_max_s: float = 0.0
    """The longest TTFT of all other turns."""
    by_tenant: list[dict[str, Any]] = field(default_factory=list)
    """The figures of each tenant, if there are several."""
    load_times_s: list[float] = field(default_factory=list)
    load_tokens: list[list[int]] = field(default_factory=list)
    """Outstanding tokens of each worker at `load_times_s`."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class LoadSamples:
    """Samples each worker's outstanding tokens at arrivals, for the mean imbalance and a series for plots."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.tokens: list[list[int]] = []
        """Outstanding tokens of each worker at `times_s`."""
        self.interval_s = 0.0
        """The time between two points of the series."""
        self._next_s = 0.0
        self._imbalance = 0.0
        self._arrivals = 0

    def add(self, tokens: list[int], now_s: float) -> None:
        """Add the outstanding tokens of all workers after an arrival."""
        total = sum(tokens)
        self._imbalance += max(tokens) * len(tokens) / total if total else 1.0
        self._arrivals += 1
        if now_s >= self._next_s:
            self.times_s.append(now_s)
            self.tokens.append(tokens)
            self._next_s = now_s + self.interval_s

    def imbalance(self) -> float:
        """See `Result.imbalance`."""
        return self._imbalance / self._arrivals if self._arrivals else 0.0


def percentiles(values: Sequence[float], *quantiles: float) -> list[float]:
    """Percentiles, bit-equal to `numpy.percentile`, which would import masked arrays; zeros without values."""
    if not values:
        return [0.0] * len(quantiles)
    ordered: list[float] = np.sort(np.array(values)).tolist()
    return [_percentile(ordered, quantile) for quantile in quantiles]


def _percentile(ordered: Sequence[float], quantile: float) -> float:
    at = quantile / 100 * (len(ordered) - 1)
    below = min(int(at), len(ordered) - 1)
    share = at - below
    lower, upper = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    if share < 0.5:  # from the nearer end, like numpy
        return lower + (upper - lower) * share
    return upper - (upper - lower) * (1 - share)


def summary(turns: Sequence[ReplayTurn]) -> dict[str, Any]:
    ttfts = [turn.first_token_s - turn.arrived_s for turn in turns]
    p50, p90, p99 = percentiles(ttfts, 50, 90, 99)
    new = [turn.first_token_s - turn.arrived_s for turn in turns if turn.request.turn == 1]
    running_max_s = max((turn.first_token_s - turn.arrived_s for turn in turns if turn.request.turn > 1), default=0.0)
    new_p50, new_p90 = percentiles(new, 50, 90)
    tpots = [
        (turn.ended_s - turn.first_token_s) / (turn.request.output_tokens - 1)
        for turn in turns
        if turn.request.output_tokens > 1
    ]
    tpot_p50, tpot_p90, tpot_p99 = percentiles(tpots, 50, 90, 99)
    errors = [
        abs(turn.predicted_tokens - turn.cached_tokens) / turn.request.input_tokens
        for turn in turns
        if turn.predicted_tokens is not None and turn.request.input_tokens
    ]
    tokens = sum(turn.request.input_tokens for turn in turns)
    cached = sum(turn.cached_tokens for turn in turns)
    sessions = {turn.request.session for turn in turns}
    return {
        "requests": len(turns),
        "hit": cached / tokens if tokens else 0.0,
        "ttft_p50_s": p50,
        "ttft_p90_s": p90,
        "ttft_p99_s": p99,
        "ttft_mean_s": sum(ttfts) / len(ttfts) if ttfts else 0.0,
        "tpot_p50_s": tpot_p50,
        "tpot_p90_s": tpot_p90,
        "tpot_p99_s": tpot_p99,
        "prediction_error_p95": percentiles(errors, 95)[0] if errors else None,
        "retries": sum(turn.retries for turn in turns),
        "computed_tokens": tokens - cached,
        "ttft_max_s": max(ttfts, default=0.0),
        "session_s": sum(turn.ended_s - turn.arrived_s for turn in turns) / (len(sessions) or 1),
        "new_p50_s": new_p50,
        "new_p90_s": new_p90,
        "new_max_s": max(new, default=0.0),
        "running_max_s": running_max_s,
    }
