"""Learns a worker's prefill rate (seconds per token) from counters that its engine publishes.

The rate comes from the engine's busy time, never from latencies, which contain queueing. The rate is an exponential
average, weighted by tokens and bounded by what hardware can do.
"""

from typing import Final

from warmroute_proxy.core.load.engine_loads import EngineLoads

PREFILL_S_PER_TOKEN_PRIOR: Final = 1 / 20_000
PREFILL_S_PER_TOKEN_MIN: Final = 1e-6
PREFILL_S_PER_TOKEN_MAX: Final = 0.1
RATE_MIN_TOKENS: Final = 256
RATE_WEIGHT_TOKENS: Final = 50_000
"""This number of newly computed tokens weighs as much as everything that was learned before."""


class PrefillRate:
    __slots__ = ("_busy_us_total", "s_per_token", "uncached_total")

    def __init__(self) -> None:
        self.s_per_token = PREFILL_S_PER_TOKEN_PRIOR
        self.uncached_total: int | None = None  # tokens that the engine has computed since it started, as last reported
        self._busy_us_total: int | None = None

    def has_restarted(self, loads: EngineLoads) -> bool:
        """Whether the engine restarted since its last report, because its total of computed tokens has fallen."""
        tokens = loads.prefill_uncached_tokens_total
        return tokens is not None and self.uncached_total is not None and tokens < self.uncached_total

    def observe(self, loads: EngineLoads) -> bool:
        """Learn from a report. Returns whether the rate has changed."""
        tokens, busy_us = loads.prefill_uncached_tokens_total, loads.prefill_busy_us_total
        if tokens is None or busy_us is None:
            return False
        if self.uncached_total is None or self._busy_us_total is None or tokens < self.uncached_total:
            self.uncached_total, self._busy_us_total = tokens, busy_us  # the first report, or the engine restarted
            return False
        if tokens - self.uncached_total < RATE_MIN_TOKENS:
            return False
        learned = self.learn(tokens - self.uncached_total, (busy_us - self._busy_us_total) / 1e6)
        self.uncached_total, self._busy_us_total = tokens, busy_us
        return learned

    def learn(self, uncached_tokens: int, busy_s: float) -> bool:
        """Learn from computed tokens and the busy time that they took. Returns False if one of these is not above 0."""
        if uncached_tokens <= 0 or busy_s <= 0:
            return False
        observed = busy_s / uncached_tokens
        if not PREFILL_S_PER_TOKEN_MIN <= observed <= PREFILL_S_PER_TOKEN_MAX:
            observed = min(max(observed, PREFILL_S_PER_TOKEN_MIN), PREFILL_S_PER_TOKEN_MAX)
        weight = uncached_tokens / (uncached_tokens + RATE_WEIGHT_TOKENS)
        self.s_per_token += weight * (observed - self.s_per_token)
        return True

    def restart(self, s_per_token: float) -> None:
        """Forget the counters, which begin at 0 in a restarted engine, and set the rate to `s_per_token`."""
        self.s_per_token = s_per_token
        self.uncached_total = self._busy_us_total = None
