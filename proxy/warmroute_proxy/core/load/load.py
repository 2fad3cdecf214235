"""Tracks the load of each worker: what it has to compute and to hold, and how much more it can take.

Load is counted in tokens, not in requests. Prefill tokens are still to be computed: dispatch adds a prompt's predicted
uncached tokens, and the arrival of the first output token removes them. Resident tokens are held for decoding: the
prompt and what was generated. Engines prefill in order of arrival, so the prompt at work (being computed) is the oldest
prompt without a first token. What the engine must have computed of that prompt since it became the oldest, at the
learned rate, is subtracted from the queue. These counts cover only requests of this proxy. If other proxies send
requests to the engine too, its `/v1/loads` reports more than this proxy's own count. The difference is added as load
until the report is too old (`OtherLoad`).

A worker that restarted, or was added to a fleet that serves traffic, is unproven. Its queue is empty, so it looks best
to every proxy at once. But its speed is not known yet, and it may be slow at first: kernels are compiled and graphs
captured. Therefore queued prefill tokens count twice, as far as they exceed the tokens that the worker has computed
since its start. So about as much work waits there as the worker has already computed, and this amount doubles with each
round. After `PROVEN_S` of work at its rate the worker is treated like the others. Its rate begins as the mean of the
other workers' rates (`comparison.restart_among`): the rate before the restart belongs to another process, and the prior
may be far from what this fleet does.
"""

import math
from collections import OrderedDict
from typing import Final

from warmroute_proxy.core.cache.occupancy import Occupancy
from warmroute_proxy.core.cache.residents import Residents
from warmroute_proxy.core.cache.tiers import MoveRates
from warmroute_proxy.core.load.ahead import Ahead, OthersAhead, waits_s
from warmroute_proxy.core.load.availability import Availability, Changes
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.load.pace import Pace
from warmroute_proxy.core.load.prefill_rate import PREFILL_S_PER_TOKEN_PRIOR, PrefillRate

# How much load one worker may have.
#
# An engine reports at `/v1/loads` how many requests it runs at once and how many tokens its KV pool holds. Requests
# beyond these limits wait inside the engine, in order of arrival whatever their tenant, and placement cannot move them
# any more. Prefill and decode engines of SGLang refuse nothing, however long their internal queue grows. So the proxy
# sends no more than the engine can run. A worker has capacity while
#
#     requests running        < what it runs at once
#     tokens resident         < what its pool holds
#     prefill tokens queued   < PREFILL_AHEAD_S of work at its measured rate, and what its pool holds
#
# Each bound is compared with the load before the new request. So a worker exceeds a bound by at most one request, and a
# request as large as the pool needs no special rule. The bound of queued prefill is softer: if every worker exceeds it,
# the fleet is full (`placement.choices`). But placement may choose a worker that exceeds it, since waiting for a warm
# cache can be better than computing elsewhere.
#
# Prompts that share a prefix share its blocks in the pool, so a sum over requests counts such blocks more than once.
# Each report of the pool's use teaches which share of our sum the pool really holds. If two reports in a row show more
# than our own count, the surplus counts as load of other proxies; a single report may include requests that have ended.
#
# A server that reports no sizes always has capacity, unless `max_running` is configured for it.

NO_LIMIT: Final = 1 << 62
PREFILL_AHEAD_S: Final = 2.0
"""Enough that an engine never idles (a few chunks of 8,192 tokens), and short compared with any deadline."""

SHARE_MIN: Final = 1 / 16
SHARE_WEIGHT: Final = 0.5
"""The weight of a report that shows more sharing than before. So one report at most doubles the bound; less sharing
counts at once."""

SHARE_FROM: Final = 1 / 8
"""A report teaches something about sharing only if our own tokens reach this share of the pool."""


class Capacity:
    """The bounds of one worker's load, as plain integers."""

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
        """Apply the sizes and the use that the engine reports. `running`, `resident_tokens`: this proxy's own
        counts.
        """
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
        self.prefill = max(1, min(int(PREFILL_AHEAD_S / s_per_token), self.pool_tokens or NO_LIMIT))

    def as_dict(self) -> dict[str, int | float]:
        bounds = {"running_limit": self.running, "token_limit": self.tokens, "prefill_limit": self.prefill}
        return {name: value for name, value in bounds.items() if value < NO_LIMIT}


class PrefillQueue:
    """The tokens to compute, by request. Engines prefill in order of arrival, so the oldest prompt is being
    computed.
    """

    __slots__ = (
        "_busy_s",
        "_moving_of",
        "_tokens_of",
        "at_work_tokens",
        "ended_tokens",
        "moving_tokens",
        "since_s",
        "tokens",
    )

    def __init__(self) -> None:
        self._tokens_of: OrderedDict[object, int] = OrderedDict()
        self._moving_of: dict[object, int] = {}
        self.tokens = 0
        self.moving_tokens = 0
        self.ended_tokens = 0  # the tokens of all prompts removed so far
        self.at_work_tokens = 0  # the tokens of the oldest prompt, including its `moving`
        self.since_s = 0.0  # when the oldest prompt became the oldest
        self._busy_s = 0.0  # seconds until `since_s` in which any prompt was queued

    def __len__(self) -> int:
        return len(self._tokens_of)

    @property
    def oldest(self) -> object:
        """The request whose prompt is being computed; None if the queue is empty."""
        for request in self._tokens_of:
            return request
        return None

    def newest(self, most: int) -> list[object]:
        """The requests that were sent last, at most `most` of them."""
        return list(self._tokens_of)[-most:]

    def add(self, request: object, tokens: int, now_s: float, moving: int = 0) -> None:
        """Append a prompt with `tokens` to compute. `moving`: as in `WorkerLoad.prefill_begins`."""
        if not self._tokens_of:
            self.since_s = now_s
            self.at_work_tokens = tokens + moving
        if moving:
            self._moving_of[request] = moving
            self.moving_tokens += moving
        self._tokens_of[request] = tokens
        self.tokens += tokens

    def remove(self, request: object, now_s: float) -> None:
        """Remove a prompt that has been computed, or never will be."""
        ended = self._tokens_of.pop(request)
        self.tokens -= ended
        self.ended_tokens += ended
        self.at_work_tokens = 0
        for tokens in self._tokens_of.values():  # the first of them: the prompt that is the oldest now
            self.at_work_tokens = tokens
            break
        if self._moving_of:
            self.moving_tokens -= self._moving_of.pop(request, 0)
            self.at_work_tokens += self._moving_of.get(self.oldest, 0)
        self._busy_s += now_s - self.since_s
        self.since_s = now_s

    def busy_s(self, now_s: float) -> float:
        """Seconds so far in which any prompt was queued."""
        return self._busy_s + now_s - self.since_s if self._tokens_of else self._busy_s


DECODE_S_PER_RUNNING: Final = 1e-4
"""Seconds that each running request adds to a decode step."""
DECODE_S_PER_RESIDENT_TOKEN: Final = 2e-9
"""Seconds that each resident token adds to a decode step: 70 KB read at about 35 TB/s (eight GPUs)."""

PROVEN_S: Final = 10.0
"""Seconds of prefill after which a restarted worker is treated like the others."""

FULL: Final = 0.9
"""From this share of its pool on, a cache counts as full: answers are cached too, and estimates are not exact."""

LOADS_FRESH_S: Final = 5.0


STAY_WEIGHT: Final = 1 / 16
"""The weight of the last request in the mean stay."""


class Departures:
    """Predicts by Little's law when the next request at a worker will end, from how long requests stay there and when
    the last one ended.
    """

    __slots__ = ("_busy_since_s", "_ended_s", "_stay_s")

    def __init__(self) -> None:
        self._stay_s = 0.0  # mean stay of recent requests
        self._ended_s = -math.inf  # when the last request ended
        self._busy_since_s = 0.0  # when a request was last sent while none ran

    def busy_from(self, now_s: float) -> None:
        """A request was sent while none ran."""
        self._busy_since_s = now_s

    def observe(self, stay_s: float, now_s: float) -> None:
        """Learn from a request that ended `stay_s` seconds after it was sent."""
        weight = STAY_WEIGHT if self._ended_s > -math.inf else 1.0
        self._stay_s += weight * (stay_s - self._stay_s)
        self._ended_s = now_s

    def forget(self) -> None:
        self._ended_s = -math.inf

    def next_s(self, running: int, now_s: float) -> float:
        """Return the expected seconds between two ends while `running` requests run; infinite if no end was observed.

        The result is at least the time since the last end, or since the worker became busy if that is later.
        """
        if self._ended_s == -math.inf:
            return math.inf
        return max(self._stay_s / max(1, running), now_s - max(self._ended_s, self._busy_since_s))


class OtherLoad:
    """The load of other proxies on a worker: what its engine reported beyond our own count. Valid until `until_s`."""

    __slots__ = ("prefill_tokens", "resident_tokens", "until_s")

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.resident_tokens = 0
        self.until_s = -math.inf

    def observe(self, prefill_tokens: int, resident_tokens: int, now_s: float) -> bool:
        """Store how many tokens were reported beyond our count (negative: fewer). Returns whether anything changed."""
        if prefill_tokens > 0 or resident_tokens > 0:
            self.prefill_tokens = max(prefill_tokens, 0)
            self.resident_tokens = max(resident_tokens, 0)
            self.until_s = now_s + LOADS_FRESH_S
            return True
        if self.prefill_tokens or self.resident_tokens:
            self.forget()
            return True
        return False

    def forget(self) -> None:
        self.prefill_tokens = 0
        self.resident_tokens = 0
        self.until_s = -math.inf


class WorkerLoad:
    """Load and rates of one worker, or of the requests that were forwarded to a peer region.

    `prefill_s_per_token`: the rate that placement uses; `prefill_rate`: the learned rate. `inserted`: tokens that were
    lately computed, and so written to the cache, weighted as in `traffic`. `shown_tokens`: tokens computed since a
    restart; None once the worker is proven. `slower_s`: how much longer a decode step takes here than elsewhere.
    """

    __slots__ = (
        "_changes",
        "_others",
        "ahead",
        "availability",
        "capacity",
        "computed_from",
        "departures",
        "fills_sooner",
        "has_evicted",
        "inserted",
        "moves",
        "occupancy",
        "pace",
        "prefill_rate",
        "prefill_s_per_token",
        "prefills",
        "resident_tokens",
        "residents",
        "running",
        "shown_tokens",
        "slower_s",
    )

    def __init__(self, max_running: int | None = None, changes: Changes | None = None) -> None:
        self._changes = Changes() if changes is None else changes
        self._others = OtherLoad()
        self.ahead: Ahead | None = None  # the result of `look`; None after a change
        self.availability = Availability(self._changes)
        self.capacity = Capacity(max_running)
        self.computed_from = 0  # `prefills.ended_tokens` when the engine started
        self.departures = Departures()
        self.inserted = 0.0
        self.moves = MoveRates()
        self.pace = Pace()
        self.prefill_rate = PrefillRate()
        self.prefill_s_per_token = PREFILL_S_PER_TOKEN_PRIOR
        self.prefills = PrefillQueue()
        self.resident_tokens = 0
        self.fills_sooner = 1.0  # the mean size of caches divided by the size of this one
        self.has_evicted = False  # since the engine started, as its report or its totals show
        self.occupancy = Occupancy()
        self.residents = Residents()
        self.running = 0
        self.shown_tokens: int | None = None
        self.slower_s = 0.0

    # Requests

    def prefill_begins(
        self, request: object, tokens: int, now_s: float, resident: int = 0, sequences: int = 1, moving: int = 0
    ) -> None:
        """A request was sent: `tokens` are to be computed and cached, and `resident` tokens are held if decoding is
        done here.

        `moving`: the time to bring the prompt's cached tokens to the device, as the number of tokens computed in that
        time.
        """
        if not self.running:
            self.departures.busy_from(now_s)
        self.prefills.add(request, tokens, now_s, moving)
        self.running += sequences
        self.resident_tokens += resident
        self.ahead = None

    def prefill_ended(self, request: object, now_s: float) -> None:
        """The prompt of a request has been computed, or never will be."""
        self.prefills.remove(request, now_s)
        self.ahead = None

    def computed(self, tokens: int) -> None:
        """Count computed tokens: they prove a restarted worker."""
        if self.shown_tokens is not None:
            self.shown_tokens += tokens
            if self.shown_tokens * self.prefill_s_per_token >= PROVEN_S:
                self.shown_tokens = None
            self.ahead = None

    def add_running(self, sequences: int, tokens: int) -> None:
        """Add `sequences` that run here, with `tokens` resident for them; negative numbers remove them."""
        self.running += sequences
        self.resident_tokens += tokens
        self.ahead = None

    def has_slots(self) -> bool:
        """Whether the engine would run another request now, rather than queue it."""
        capacity = self.capacity
        return self.running < capacity.running and self.resident_tokens < capacity.tokens

    def must_have_evicted(self) -> bool:
        """Whether the worker has evicted something since it started, or has computed about as much as its pool
        holds.
        """
        pool = self.capacity.pool_tokens
        computed = self.prefills.ended_tokens - self.computed_from
        return self.has_evicted or (pool is not None and computed >= FULL * pool)

    # What a new request would find

    def slowdown_s(self) -> float:
        """By how many seconds `running` and `resident_tokens` delay a decode step, plus `slower_s`."""
        return self.running * DECODE_S_PER_RUNNING + self.resident_tokens * DECODE_S_PER_RESIDENT_TOKEN + self.slower_s

    def look(self) -> Ahead:
        """Compute what is ahead of a new request. Cached in `ahead`, because few workers change between two
        decisions.
        """
        rate_s, slowdown_s, prefills = self.prefill_s_per_token, self.slowdown_s(), self.prefills
        tokens, others = prefills.tokens + prefills.moving_tokens, None
        more, resident, until_s = self._others.prefill_tokens, self._others.resident_tokens, self._others.until_s
        if self.shown_tokens is not None:
            more += max(0, prefills.tokens - self.shown_tokens)
            until_s = math.inf
        if more or resident:
            slower_s = slowdown_s + resident * DECODE_S_PER_RESIDENT_TOKEN
            others = OthersAhead(until_s, (tokens + more) * rate_s, slower_s)
        waits = tokens > 0 or others is not None
        at_work_s = prefills.at_work_tokens * rate_s
        ahead = Ahead(waits, slowdown_s, self.inserted, tokens * rate_s, prefills.since_s, at_work_s, others)
        self.ahead = ahead
        return ahead

    def queue_s(self, now_s: float) -> float:
        """Seconds of prefill ahead of a new request."""
        return waits_s(self.ahead or self.look(), now_s)[0]

    def decode_slowdown_s(self, now_s: float) -> float:
        """Seconds by which the requests that run here delay each further output token."""
        return waits_s(self.ahead or self.look(), now_s)[1]

    def decode_tokens(self, now_s: float) -> int:
        counts = self.shown_tokens is not None or now_s < self._others.until_s
        return self.resident_tokens + (self._others.resident_tokens if counts else 0)

    # What is learned

    def observe(self, loads: EngineLoads, now_s: float) -> bool:
        """Apply an engine's report: sizes, the load of other proxies, the prefill rate. Returns whether the rate
        changed.
        """
        if loads.max_running or loads.max_tokens:
            self.capacity.observe(loads, self.running, self.resident_tokens)
            if loads.max_tokens:
                self.occupancy.set_pool(loads.max_tokens)
                self.residents.pool_tokens = loads.max_tokens
                most = max(loads.total_tokens or 0, loads.used_tokens or 0, loads.prefill_uncached_tokens_total or 0)
                if most >= FULL * loads.max_tokens:
                    self.has_evicted = True
        prefill = (loads.waiting_uncached_tokens or 0) - self.prefills.tokens
        resident = (loads.used_tokens or 0) - self.resident_tokens
        if self._others.observe(prefill, resident, now_s):
            self.ahead = None
        known = self.prefill_rate.s_per_token
        if self.prefill_rate.observe(loads):
            self._apply_rate()
        return self.prefill_rate.s_per_token != known

    def observe_rate(self, uncached_tokens: int, busy_s: float) -> None:
        """Learn the prefill rate from `uncached_tokens` that were computed in `busy_s`."""
        if self.prefill_rate.learn(uncached_tokens, busy_s):
            self._apply_rate()

    def set_rate(self, prefill_s_per_token: float) -> None:
        if prefill_s_per_token != self.prefill_s_per_token:
            self.prefill_s_per_token = prefill_s_per_token
            self._changes.count += 1
            self.ahead = None

    def set_slower(self, s_per_token: float) -> None:
        """Set how much longer an output token takes here than elsewhere."""
        self.slower_s = s_per_token
        self.ahead = None

    def restart(self, s_per_token: float) -> None:
        """The engine starts, or restarts: forget its failures, its rates and the load of other proxies. The prefill
        rate begins at `s_per_token`, and the worker is unproven.
        """
        self.availability.reset_breaker()
        self.prefill_rate.restart(s_per_token)
        self._apply_rate()
        self.moves = MoveRates()
        self.inserted = 0.0
        self.has_evicted, self.computed_from = False, self.prefills.ended_tokens
        self.occupancy = Occupancy()
        self.residents = Residents()
        self._others.forget()
        self.departures.forget()
        self.shown_tokens = 0
        self.pace.forget()
        self.set_slower(0.0)

    @property
    def proven(self) -> bool:
        return self.shown_tokens is None

    def _apply_rate(self) -> None:
        self.set_rate(self.prefill_rate.s_per_token)
        self.capacity.observe_rate(self.prefill_rate.s_per_token)

    def as_dict(self, now_s: float) -> dict[str, int | float | str]:
        return {
            "health": self.availability.health(now_s),
            "running": self.running,
            "prefill_tokens": self.prefills.tokens,
            "resident_tokens": self.decode_tokens(now_s),
            "queue_s": self.queue_s(now_s),
            "prefill_s_per_token": self.prefill_rate.s_per_token,
            "decode_s_per_token": self.pace.s_per_token(now_s),
            "decode_slower_s_per_token": self.slower_s,
            "load_s_per_token": self.moves.load_s_per_token,
            "fetch_s_per_token": self.moves.fetch_s_per_token,
            "failures_in_a_row": self.availability.breaker.failures,
            "proven": int(self.proven),
            **self.residents.as_dict(now_s),
            **self.capacity.as_dict(),
        }
