"""What one worker can hold, and whether it has room for another request.

An engine says at `/v1/loads` how many requests it runs at once and how many tokens its KV pool holds. What is sent
beyond that waits inside the engine, first come first served whoever it is from, placed by what was known when it was
sent; prefill and decode engines of SGLang refuse nothing however long that queue grows. So the proxy sends no more
than runs. A worker has room while

    requests under way      < what it runs at once
    tokens resident         < what its pool holds
    prefill tokens queued   < PREFILL_AHEAD_S of work at its measured rate, and what its pool holds

Each bound is on what is there already, so that a worker is above it by at most one request, and a request that is as
large as the pool needs no special rule. Prefill is a softer bound: it is the fleet that is full when no worker is below
it, since waiting for a warm cache can be better than computing elsewhere, and placement knows when (`placement`).

Prompts that share a prefix share its place in the pool, so a sum over requests counts more than there is. Each report
of the pool's use teaches the share of our sum that is real. What a report has beyond our own count belongs to other
proxies, once two reports in a row have it: one alone may be older than what has ended since.

Nothing is known of a server that does not report: it always has room, unless `max_running` is set for it.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warmroute_proxy.core.load.engine_loads import EngineLoads
    from warmroute_proxy.core.load.load import WorkerLoad
    from warmroute_proxy.core.placement.choices import Choices

NO_LIMIT: Final = 1 << 62
PREFILL_AHEAD_S: Final = 2.0
"""Enough that an engine never waits for us (a few chunks of 8,192 tokens), short against any deadline."""

SHARE_MIN: Final = 1 / 16
SHARE_WEIGHT: Final = 0.5
"""Of a report of more sharing, so that what may be sent at most doubles with each; one of less counts at once."""

SHARE_FROM: Final = 1 / 8
"""Of the pool: below it, a report says too little about sharing."""


class Capacity:
    """The bounds of one worker: plain integers, to be compared with its load."""

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

    def observe(self, loads: "EngineLoads", load: "WorkerLoad") -> None:
        """Take over what the engine says of its size and of its use."""
        if loads.max_running:
            reported = (loads.running or 0) + (loads.waiting or 0)
            seen, self._others_running = self._others_running, max(0, reported - load.running)
            self.running = max(1, min(self._set_running, loads.max_running) - min(seen, self._others_running))
        pool = loads.max_tokens
        if not pool:
            return
        self.pool_tokens = pool
        total = loads.total_tokens
        if total is not None:
            if load.resident_tokens >= pool * SHARE_FROM:
                real = min(1.0, max(SHARE_MIN, total / load.resident_tokens))
                self.share = max(real, self.share + SHARE_WEIGHT * (real - self.share))
            seen, self._others_tokens = self._others_tokens, max(0, total - load.resident_tokens)
        self.tokens = max(1, int((pool - min(seen if total is not None else 0, self._others_tokens)) / self.share))

    def observe_rate(self, s_per_token: float) -> None:
        """Take over the measured prefill rate."""
        self.prefill = max(1, min(int(PREFILL_AHEAD_S / s_per_token), self.pool_tokens or NO_LIMIT))

    def as_dict(self) -> dict[str, int | float]:
        """The bounds that are known, for pages and metrics."""
        bounds = {"running_limit": self.running, "token_limit": self.tokens, "prefill_limit": self.prefill}
        return {name: value for name, value in bounds.items() if value < NO_LIMIT}


def has_slots(load: "WorkerLoad") -> bool:
    """Whether the engine would run another request now, rather than let it wait."""
    capacity = load.capacity
    return load.running < capacity.running and load.resident_tokens < capacity.tokens


def has_idle_prefill(choices: "Choices", now_s: float) -> bool:
    """Whether some worker has less prefill before it than keeps it busy."""
    return any(load.prefill_tokens < load.capacity.prefill and load.usable(now_s) for load in choices.loads)


def is_full(choices: "Choices", now_s: float) -> bool:
    """Whether no worker, and no pair of them, would run another request now, and no peer region may be asked."""
    if any(place.load.usable(now_s) for place in choices.peers):
        return False
    if not has_idle_prefill(choices, now_s):
        return True
    decodes = any(has_slots(place.load) and place.load.usable(now_s) for place in choices.decodes)
    return not any(
        has_slots(place.load) and (decodes or place.role == "aggregated") and place.load.usable(now_s)
        for place in choices.cache_workers
    )
