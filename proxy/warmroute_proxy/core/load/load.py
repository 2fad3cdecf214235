"""What each worker is busy with, and whether it can be used.

Load is counted in tokens, not in requests: prefill tokens still to compute (raised at dispatch by the predicted
uncached tokens, lowered at the first token) and tokens resident for decoding (the prompt and what was generated).
Engines prefill in order of arrival, so the prompt that is at work is the oldest one without a first token; what it
must have computed since its turn came, at the learned rate, is taken off the queue.
That is what this proxy has sent. An engine's own `/v1/loads` shows more when other proxies send to it too: what it
reports beyond our own count at that moment is added, until the report is `LOADS_FRESH_S` old.

Rates are learned from counters that the engine publishes: prefill seconds per token from its busy time, never from
latencies, which contain queueing. Each is an exponential average, bounded to what hardware can do. Placement takes
rates within a fifth of their mean for equal (`level_rates`): noise between like machines must not send all new
sessions to the one that seems 1 % faster. How fast a worker decodes is only known from its streams (`pace`).

A worker that began anew, or was added to a fleet that serves, is unproven: it has an empty queue and looks best to
everybody, and nobody knows yet how fast it is (kernels are compiled, graphs captured, other proxies see the same empty
queue). So what is on its way there beyond the tokens that it has computed since counts twice: as if as many again were
waiting. In the seconds of the cost it may so have about as much waiting as it has shown that it gets through, which
doubles with each round. After `PROVEN_S` of work at its rate it is like the others. Its rate begins as the mean of the
others: that of its past is no more, and the prior may be far from what this fleet does.
"""

import math
from collections import OrderedDict
from collections.abc import Collection
from typing import Final, Literal

from warmroute_proxy.core.cache.retention import Retention
from warmroute_proxy.core.cache.tiers import MoveRates
from warmroute_proxy.core.load.breaker import BREAKER_FAILURES, Breaker
from warmroute_proxy.core.load.capacity import Capacity
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.load.pace import Pace

PREFILL_S_PER_TOKEN_PRIOR: Final = 1 / 20_000
PREFILL_S_PER_TOKEN_MIN: Final = 1e-6
PREFILL_S_PER_TOKEN_MAX: Final = 0.1
RATE_MIN_TOKENS: Final = 256
RATE_WEIGHT_TOKENS: Final = 50_000
"""Tokens of new evidence that weigh as much as all that was learned before."""
RATE_NOISE: Final = 0.2

DECODE_S_PER_RUNNING: Final = 1e-4
"""What each running request adds to a decode step."""
DECODE_S_PER_RESIDENT_TOKEN: Final = 2e-9
"""What each resident token adds to a decode step: 70 KB read at about 35 TB/s (eight GPUs)."""

LOADS_FRESH_S: Final = 5.0

STAY_WEIGHT: Final = 1 / 16
"""Of the last turn, in how long one stays."""

PROVEN_S: Final = 10.0
"""Seconds of prefill after which a worker is believed to be what it looks like."""

Health = Literal["up", "draining", "down", "open"]


Ahead = tuple[bool, float, float, float, float, float, tuple[float, float, float] | None]
"""What is ahead of a new request: whether it may have to wait, by what a decode step is slowed, and `inserted`. Then
seconds of prefill that were sent, since when the oldest of it is at work, and its share. Last what others count for
(`None`: nothing): until when, and the seconds of prefill and the slowdown with theirs.
"""


class Changes:
    """How often the health or the rate of any worker of a fleet has changed. What follows from those is kept until it
    does again.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class WorkerLoad:
    """Load, rate and health of one worker (or of a peer region, for what was forwarded there)."""

    __slots__ = (
        "_at_work_tokens",
        "_busy_since_s",
        "_busy_us_total",
        "_changes",
        "_left_s",
        "_others_prefill_tokens",
        "_others_resident_tokens",
        "_prefilling_s",
        "_prefills",
        "_reported_until_s",
        "_since_s",
        "_stay_s",
        "_uncached_total",
        "ahead",
        "breaker",
        "capacity",
        "draining",
        "inserted",
        "learned_s_per_token",
        "moves",
        "pace",
        "prefill_s_per_token",
        "prefill_tokens",
        "ready",
        "resident_tokens",
        "retention",
        "running",
        "shown_tokens",
        "slower_s",
        "up",
    )

    def __init__(self, max_running: int | None = None, changes: Changes | None = None) -> None:
        self._changes = Changes() if changes is None else changes
        self.ahead: Ahead | None = None  # as `look` has made it, until something changes
        self.capacity = Capacity(max_running)
        self.up = True
        self.draining = False
        self.breaker = Breaker()
        self.ready = True  # up, not draining, breaker closed: what almost every look at a worker finds
        self.moves = MoveRates()
        self.inserted = 0.0  # tokens computed and so written to the cache lately, weighted as `traffic` says
        self.retention = Retention()
        self._prefills: OrderedDict[object, int] = OrderedDict()  # tokens by what they are for, oldest first
        self._at_work_tokens = 0  # of the oldest one
        self._since_s = 0.0  # when its turn came
        self._prefilling_s = 0.0  # in which any was under way, until then
        self.running = 0
        self.prefill_tokens = 0
        self.resident_tokens = 0
        self.slower_s = 0.0  # what a decode step takes longer here than elsewhere
        self.pace = Pace()
        self.learned_s_per_token = PREFILL_S_PER_TOKEN_PRIOR
        self.prefill_s_per_token = PREFILL_S_PER_TOKEN_PRIOR
        self._others_prefill_tokens = 0  # by the engine's report
        self._others_resident_tokens = 0
        self._reported_until_s = -math.inf
        self.shown_tokens: int | None = None  # computed since it began, None once that is proof enough
        self._uncached_total: int | None = None
        self._busy_us_total: int | None = None
        self._stay_s = 0.0  # of a turn, lately
        self._left_s = -math.inf  # when the last one ended
        self._busy_since_s = 0.0  # when one was sent while none ran

    def usable(self, now_s: float) -> bool:
        """Whether new requests may be sent here."""
        return self.ready or (self.up and not self.draining and self.breaker.allows(now_s))

    def health(self, now_s: float) -> Health:
        """One word for pages and metrics."""
        if not self.up:
            return "down"
        if self.draining:
            return "draining"
        return "up" if self.breaker.allows(now_s) else "open"

    def set_health(self, *, up: bool | None = None, draining: bool | None = None) -> None:
        """What the probe or the operator says; None leaves it."""
        self.up = self.up if up is None else up
        self.draining = self.draining if draining is None else draining
        self._refresh()

    def succeeded(self) -> None:
        """A request was served."""
        if self.breaker.failures:
            self.breaker.reset()
            self._refresh()

    def failed(self, request: object, now_s: float) -> None:
        """A request failed by this worker's fault."""
        self.breaker.failed(request, now_s)
        self._refresh()

    def prefill_begins(self, owner: object, tokens: int, now_s: float, resident: int = 0) -> None:
        """A request was sent: so many tokens to be computed and cached, and so many resident for its decoding here."""
        if not self._prefills:
            self._since_s = now_s
            self._at_work_tokens = tokens
            if not self.running:
                self._busy_since_s = now_s
        self._prefills[owner] = tokens
        self.prefill_tokens += tokens
        self.running += 1
        self.resident_tokens += resident
        self.ahead = None

    def prefill_ended(self, owner: object, now_s: float) -> None:
        """They have been computed, or never will be."""
        prefills = self._prefills
        self.prefill_tokens -= prefills.pop(owner)
        self._at_work_tokens = 0
        for tokens in prefills.values():  # of the oldest one
            self._at_work_tokens = tokens
            break
        self._prefilling_s += now_s - self._since_s
        self._since_s = now_s
        self.ahead = None

    def computed(self, tokens: int) -> None:
        """So many tokens were computed: what proves a new worker."""
        if self.shown_tokens is not None:
            self.shown_tokens += tokens
            if self.shown_tokens * self.prefill_s_per_token >= PROVEN_S:
                self.shown_tokens = None
            self.ahead = None

    def runs(self, requests: int, tokens: int) -> None:
        """So many more requests run here, or fewer, and so many more tokens are resident for them."""
        self.running += requests
        self.resident_tokens += tokens
        self.ahead = None

    def left(self, stay_s: float, now_s: float) -> None:
        """A turn has ended that was here for so long."""
        weight = STAY_WEIGHT if self._left_s > -math.inf else 1.0
        self._stay_s += weight * (stay_s - self._stay_s)
        self._left_s = now_s

    def next_end_s(self, now_s: float) -> float:
        """Seconds between two ends while so many run, by Little's law, or without one if that is longer; infinite where
        none has been seen.
        """
        if self._left_s == -math.inf:
            return math.inf
        return max(self._stay_s / max(1, self.running), now_s - max(self._left_s, self._busy_since_s))

    def slowdown_s(self) -> float:
        """What `running` and `resident_tokens` add to a decode step, and what one takes longer here than elsewhere."""
        return self.running * DECODE_S_PER_RUNNING + self.resident_tokens * DECODE_S_PER_RESIDENT_TOKEN + self.slower_s

    def prefilling_s(self, now_s: float) -> float:
        """Seconds in which any prompt was under way here, since the beginning."""
        return self._prefilling_s + now_s - self._since_s if self._prefills else self._prefilling_s

    def set_slower(self, s_per_token: float) -> None:
        """How much longer an output token takes here than elsewhere."""
        self.slower_s = s_per_token
        self.ahead = None

    def look(self) -> Ahead:
        """What is ahead of a new request, made anew: kept in `ahead`, because few workers change between decisions."""
        rate_s, slowdown_s = self.prefill_s_per_token, self.slowdown_s()
        tokens, others = self.prefill_tokens, None
        more, resident, until_s = self._others_prefill_tokens, self._others_resident_tokens, self._reported_until_s
        if self.shown_tokens is not None:
            more += max(0, tokens - self.shown_tokens)
            until_s = math.inf
        if more or resident:
            slower_s = slowdown_s + resident * DECODE_S_PER_RESIDENT_TOKEN
            others = (until_s, (tokens + more) * rate_s, slower_s)
        waits = tokens > 0 or others is not None
        at_work_s = self._at_work_tokens * rate_s
        self.ahead = (waits, slowdown_s, self.inserted, tokens * rate_s, self._since_s, at_work_s, others)
        return self.ahead

    def queue_s(self, now_s: float) -> float:
        """Seconds of prefill ahead of a new request."""
        return waits_s(self.ahead or self.look(), now_s)[0]

    def decode_slowdown_s(self, now_s: float) -> float:
        """Seconds by which what runs here delays each further output token."""
        return waits_s(self.ahead or self.look(), now_s)[1]

    def decode_tokens(self, now_s: float) -> int:
        """Tokens resident for decoding."""
        counts = self.shown_tokens is not None or now_s < self._reported_until_s
        return self.resident_tokens + (self._others_resident_tokens if counts else 0)

    def has_begun_anew(self, loads: EngineLoads) -> bool:
        """Whether a report says that the engine began anew since the last one: totals only grow otherwise."""
        tokens = loads.prefill_uncached_tokens_total
        return tokens is not None and self._uncached_total is not None and tokens < self._uncached_total

    def observe(self, loads: EngineLoads, now_s: float) -> bool:
        """Take over what the engine reports: its size, other proxies' load, its prefill rate. True if that changed."""
        if loads.max_running or loads.max_tokens:
            self.capacity.observe(loads, self)
        prefill = (loads.waiting_uncached_tokens or 0) - self.prefill_tokens
        resident = (loads.used_tokens or 0) - self.resident_tokens
        if prefill > 0 or resident > 0:
            self._others_count(max(prefill, 0), max(resident, 0), now_s + LOADS_FRESH_S)
        elif self._others_prefill_tokens or self._others_resident_tokens:
            self._others_count(0, 0, -math.inf)
        tokens, busy_us = loads.prefill_uncached_tokens_total, loads.prefill_busy_us_total
        known = self.learned_s_per_token
        if tokens is None or busy_us is None:
            return False
        if self._uncached_total is None or self._busy_us_total is None or tokens < self._uncached_total:
            self._uncached_total, self._busy_us_total = tokens, busy_us  # the first report, or the engine restarted
        elif tokens - self._uncached_total >= RATE_MIN_TOKENS:
            self.observe_rate(tokens - self._uncached_total, (busy_us - self._busy_us_total) / 1e6)
            self._uncached_total, self._busy_us_total = tokens, busy_us
        return self.learned_s_per_token != known

    def _others_count(self, prefill_tokens: int, resident_tokens: int, until_s: float) -> None:
        """What the engine has beyond what this proxy has sent, by its report."""
        self._others_prefill_tokens = prefill_tokens
        self._others_resident_tokens = resident_tokens
        self._reported_until_s = until_s
        self.ahead = None

    def observe_rate(self, uncached_tokens: int, busy_s: float) -> None:
        """Learn the prefill rate from tokens computed and the time that took."""
        if uncached_tokens <= 0 or busy_s <= 0:
            return
        seen = busy_s / uncached_tokens
        if not PREFILL_S_PER_TOKEN_MIN <= seen <= PREFILL_S_PER_TOKEN_MAX:
            seen = min(max(seen, PREFILL_S_PER_TOKEN_MIN), PREFILL_S_PER_TOKEN_MAX)
        weight = uncached_tokens / (uncached_tokens + RATE_WEIGHT_TOKENS)
        self.learned_s_per_token += weight * (seen - self.learned_s_per_token)
        self.set_rate(self.learned_s_per_token)
        self.capacity.observe_rate(self.learned_s_per_token)

    def set_rate(self, prefill_s_per_token: float) -> None:
        """The rate for placement."""
        if prefill_s_per_token != self.prefill_s_per_token:
            self.prefill_s_per_token = prefill_s_per_token
            self._changes.count += 1
            self.ahead = None

    def begins(self, s_per_token: float) -> None:
        """The engine starts, or starts anew: failures, others' load and rates are of the past. It has yet to show what
        it can do; until it does, its rate is taken to be `s_per_token`.
        """
        self.breaker.reset()
        self._refresh()
        self.learned_s_per_token = s_per_token
        self.set_rate(s_per_token)
        self.capacity.observe_rate(s_per_token)
        self.moves = MoveRates()
        self.inserted = 0.0
        self.retention = Retention()
        self._others_count(0, 0, -math.inf)
        self._uncached_total = self._busy_us_total = None
        self._left_s = -math.inf
        self.shown_tokens = 0
        self.pace.forget()
        self.set_slower(0.0)

    @property
    def proven(self) -> bool:
        """Whether it has shown what it can do."""
        return self.shown_tokens is None

    def _refresh(self) -> None:
        ready = self.up and not self.draining and self.breaker.failures < BREAKER_FAILURES
        if ready != self.ready:
            self.ready = ready
            self._changes.count += 1

    def as_dict(self, now_s: float) -> dict[str, int | float | str]:
        """What pages and metrics show."""
        return {
            "health": self.health(now_s),
            "running": self.running,
            "prefill_tokens": self.prefill_tokens,
            "resident_tokens": self.decode_tokens(now_s),
            "queue_s": self.queue_s(now_s),
            "prefill_s_per_token": self.learned_s_per_token,
            "decode_s_per_token": self.pace.s_per_token(now_s),
            "decode_slower_s_per_token": self.slower_s,
            "load_s_per_token": self.moves.load_s_per_token,
            "fetch_s_per_token": self.moves.fetch_s_per_token,
            "failures_in_a_row": self.breaker.failures,
            "proven": int(self.proven),
            **self.capacity.as_dict(),
        }


def waits_s(ahead: Ahead, now_s: float) -> tuple[float, float]:
    """Seconds of prefill ahead of a new request, and seconds by which each of its output tokens is delayed."""
    _, slowdown_s, _, queue_s, since_s, at_work_s, others = ahead
    if others is not None and now_s < others[0]:
        _, queue_s, slowdown_s = others
    done_s = now_s - since_s
    if done_s > at_work_s:  # noqa: PLR1730 - min() takes three times as long
        done_s = at_work_s
    if done_s > 0:  # never where nothing is ahead: then nothing is at work
        queue_s -= done_s
    return queue_s, slowdown_s


def level_rates(loads: Collection[WorkerLoad]) -> None:
    """Let placement see one rate where learned rates differ by no more than noise."""
    if not loads:
        return
    learned = [load.learned_s_per_token for load in loads]
    mean = sum(learned) / len(learned)
    noise = RATE_NOISE * mean
    for load, s_per_token in zip(loads, learned, strict=True):
        load.set_rate(s_per_token if abs(s_per_token - mean) > noise else mean)


def starts_among(load: WorkerLoad, fleet: Collection[WorkerLoad]) -> None:
    """A worker starts, or starts anew: its rate is the mean of what the others have shown, else the prior."""
    rates = [other.learned_s_per_token for other in fleet if other is not load and other.proven]
    load.begins(sum(rates) / len(rates) if rates else PREFILL_S_PER_TOKEN_PRIOR)
