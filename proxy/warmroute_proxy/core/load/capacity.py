"""What one worker can hold: the bounds of its load.

An engine reports at `/v1/loads` how many requests it runs at once and how many tokens its KV pool holds. What is sent
beyond that waits inside the engine, in order of arrival whatever tenant it is from, placed by what was known when it
was sent; prefill and decode engines of SGLang refuse nothing however long that queue grows. So the proxy sends no more
than runs. A worker has capacity while

    requests running        < what it runs at once
    tokens resident         < what its pool holds
    prefill tokens queued   < PREFILL_AHEAD_S of work at its measured rate, and what its pool holds

Each bound is on the load that is there already, so that a worker exceeds it by at most one request, and a request that
is as large as the pool needs no special rule. Prefill is a softer bound: the fleet is full when no worker is below it
(`placement.choices`), since waiting for a warm cache can be better than computing elsewhere, and placement knows when.

Prompts that share a prefix share its blocks in the pool, so a sum over requests counts more than there is. Each report
of the pool's use teaches the share of our sum that is real. What a report has beyond our own count belongs to other
proxies, once two reports in a row have it: a single one may be older than what has ended since.

Nothing is known of a server that does not report: it always has capacity, unless `max_running` is set for it.
"""

from typing import Final

from warmroute_proxy.core.load.engine_loads import EngineLoads

NO_LIMIT: Final = 1 << 62
PREFILL_AHEAD_S: Final = 2.0
"""Enough that an engine never idles (a few chunks of 8,192 tokens), short against any deadline."""

SHARE_MIN: Final = 1 / 16
SHARE_WEIGHT: Final = 0.5
"""The weight of a report of more sharing, so that the bound at most doubles with each; less sharing counts at once."""

SHARE_FROM: Final = 1 / 8
"""The share of the pool below which a report says too little about sharing."""


class Capacity:
    """The bounds of one worker: plain integers, compared with its load."""

    __slots__ = (
        "_others_running",
        "_others_tokens",
        "_set_running",
        "pool_tokens",
        "prefill",
        "running",
        "share",
        "tokens",
    )

    def __init__(self, max_running: int | None = None) -> None:
        self._set_running = NO_LIMIT if max_running is None else max_running
        self.running = self._set_running
        self.tokens = NO_LIMIT
        self.prefill = NO_LIMIT
        self.pool_tokens: int | None = None
        self.share = 1.0
        self._others_running = 0
        self._others_tokens = 0

    def observe(self, loads: EngineLoads, running: int, resident_tokens: int) -> None:
        """Apply what the engine reports of its size and use; `running` and `resident_tokens` are our own counts."""
        if loads.max_running:
            reported = (loads.running or 0) + (loads.waiting or 0)
            previous, self._others_running = self._others_running, max(0, reported - running)
            self.running = max(1, min(self._set_running, loads.max_running) - min(previous, self._others_running))
        pool = loads.max_tokens
        if not pool:
            return
        self.pool_tokens = pool
        total = loads.total_tokens
        if total is not None:
            if resident_tokens >= pool * SHARE_FROM:
                real = min(1.0, max(SHARE_MIN, total / resident_tokens))
                self.share = max(real, self.share + SHARE_WEIGHT * (real - self.share))
            previous, self._others_tokens = self._others_tokens, max(0, total - resident_tokens)
        self.tokens = max(1, int((pool - min(previous if total is not None else 0, self._others_tokens)) / self.share))

    def observe_rate(self, s_per_token: float) -> None:
        """Set the prefill bound by the measured rate."""
        self.prefill = max(1, min(int(PREFILL_AHEAD_S / s_per_token), self.pool_tokens or NO_LIMIT))

    def as_dict(self) -> dict[str, int | float]:
        bounds = {"running_limit": self.running, "token_limit": self.tokens, "prefill_limit": self.prefill}
        return {name: value for name, value in bounds.items() if value < NO_LIMIT}
