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

import msgspec

from warmroute_proxy.core.breaker import BREAKER_FAILURES, Breaker
from warmroute_proxy.core.capacity import Capacity
from warmroute_proxy.core.pace import Pace
from warmroute_proxy.core.tiers import MoveRates
from warmroute_proxy.core.traffic import Inserted

PREFILL_S_PER_TOKEN_PRIOR: Final = 1 / 20_000
PREFILL_S_PER_TOKEN_MIN: Final = 1e-6
PREFILL_S_PER_TOKEN_MAX: Final = 0.1
RATE_MIN_TOKENS: Final = 256
RATE_WEIGHT_TOKENS: Final = 50_000
"""Tokens of new evidence that weigh as much as all that was learned before."""
RATE_NOISE: Final = 0.2

BYTES_PER_TOKEN_PRIOR: Final = 4.0
BYTES_PER_TOKEN_MIN: Final = 0.5
BYTES_PER_TOKEN_MAX: Final = 32.0
BYTES_PER_TOKEN_WEIGHT: Final = 0.1
MAX_MODELS: Final = 1024

DECODE_S_PER_RUNNING: Final = 1e-4
"""What each running request adds to a decode step."""
DECODE_S_PER_RESIDENT_TOKEN: Final = 2e-9
"""What each resident token adds to a decode step: 70 KB read at about 35 TB/s (eight GPUs)."""

LOADS_FRESH_S: Final = 5.0

PROVEN_S: Final = 10.0
"""Seconds of prefill after which a worker is believed to be what it looks like."""

Health = Literal["up", "draining", "down", "open"]


class EngineLoads(msgspec.Struct, frozen=True, gc=False):
    """What an engine says of one rank at `/v1/loads`; `None` where it does not say. Totals only ever grow."""

    running: int | None = None
    waiting_uncached_tokens: int | None = None
    used_tokens: int | None = None
    prefill_uncached_tokens_total: int | None = None
    prefill_busy_us_total: int | None = None
    waiting: int | None = None
    total_tokens: int | None = None
    """In use, and of what waits."""
    max_running: int | None = None
    max_tokens: int | None = None
    """What its KV pool holds."""


class WorkerLoad:
    """Load, rate and health of one worker (or of a peer region, for what was forwarded there)."""

    __slots__ = (
        "_at_work_s",
        "_at_work_tokens",
        "_busy_us_total",
        "_others_prefill_tokens",
        "_others_resident_tokens",
        "_others_until_s",
        "_prefilling_s",
        "_prefills",
        "_reported_prefill_tokens",
        "_reported_until_s",
        "_shown_tokens",
        "_since_s",
        "_uncached_total",
        "breaker",
        "draining",
        "inserted",
        "learned_s_per_token",
        "moves",
        "pace",
        "prefill_s_per_token",
        "prefill_tokens",
        "ready",
        "resident_tokens",
        "room",
        "running",
        "slowdown_s",
        "slower_s",
        "up",
        "work_s",
    )

    def __init__(self, max_running: int | None = None) -> None:
        self.room = Capacity(max_running)
        self.up = True
        self.draining = False
        self.breaker = Breaker()
        self.ready = True  # up, not draining, breaker closed: what almost every look at a worker finds
        self.moves = MoveRates()
        self.inserted = Inserted()
        self._prefills: OrderedDict[object, int] = OrderedDict()  # tokens by what they are for, oldest first
        self._at_work_tokens = 0  # of the oldest one
        self._at_work_s = 0.0  # of prefill
        self._since_s = 0.0  # when its turn came
        self._prefilling_s = 0.0  # in which any was under way, until then
        self.running = 0
        self.prefill_tokens = 0
        self.resident_tokens = 0
        self.work_s = 0.0  # what `prefill_tokens` take
        self.slowdown_s = 0.0  # what `running` and `resident_tokens` add to a decode step, and `slower_s`
        self.slower_s = 0.0  # what a decode step takes longer here than elsewhere
        self.pace = Pace()
        self.learned_s_per_token = PREFILL_S_PER_TOKEN_PRIOR
        self.prefill_s_per_token = PREFILL_S_PER_TOKEN_PRIOR
        self._reported_prefill_tokens = 0  # of others, by the engine
        self._reported_until_s = -math.inf
        self._others_prefill_tokens = 0  # the same, and for an unproven worker what counts twice
        self._others_resident_tokens = 0
        self._others_until_s = -math.inf
        self._shown_tokens: int | None = None  # computed since it began, None once that is proof enough
        self._uncached_total: int | None = None
        self._busy_us_total: int | None = None

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

    def prefill_begins(self, owner: object, tokens: int, now_s: float) -> None:
        """So many tokens were sent, to be computed and cached."""
        if not self._prefills:
            self._since_s = now_s
            self._at_work_tokens = tokens
        self._prefills[owner] = tokens
        self.prefill_tokens += tokens
        self._refresh_work()
        self.inserted.add(tokens, now_s)
        if self._shown_tokens is not None:
            self._look_beyond()

    def prefill_ended(self, owner: object, now_s: float) -> None:
        """They have been computed, or never will be."""
        self.prefill_tokens -= self._prefills.pop(owner)
        self._at_work_tokens = next(iter(self._prefills.values())) if self._prefills else 0
        self._prefilling_s += now_s - self._since_s
        self._since_s = now_s
        self._refresh_work()
        if self._shown_tokens is not None:
            self._look_beyond()

    def computed(self, tokens: int) -> None:
        """So many tokens were computed: what proves a new worker."""
        if self._shown_tokens is not None:
            self._shown_tokens += tokens
            if self._shown_tokens * self.prefill_s_per_token >= PROVEN_S:
                self._shown_tokens = None
            self._look_beyond()

    def runs(self, requests: int, tokens: int) -> None:
        """So many more requests run here, or fewer, and so many more tokens are resident for them."""
        self.running += requests
        self.resident_tokens += tokens
        self.slowdown_s = (
            self.running * DECODE_S_PER_RUNNING + self.resident_tokens * DECODE_S_PER_RESIDENT_TOKEN + self.slower_s
        )

    def prefilling_s(self, now_s: float) -> float:
        """Seconds in which any prompt was under way here, since the beginning."""
        return self._prefilling_s + now_s - self._since_s if self._prefills else self._prefilling_s

    def set_slower(self, s_per_token: float) -> None:
        """How much longer an output token takes here than elsewhere."""
        self.slower_s = s_per_token
        self.runs(0, 0)

    def queue_s(self, now_s: float) -> float:
        """Seconds of prefill ahead of a new request."""
        return waits_s((self,), now_s)[0][0]

    def decode_slowdown_s(self, now_s: float) -> float:
        """Seconds by which what runs here delays each further output token."""
        return waits_s((self,), now_s)[1][0]

    def decode_tokens(self, now_s: float) -> int:
        """Tokens resident for decoding."""
        return self.resident_tokens + (self._others_resident_tokens if now_s < self._others_until_s else 0)

    def has_begun_anew(self, loads: EngineLoads) -> bool:
        """Whether a report says that the engine began anew since the last one: totals only grow otherwise."""
        tokens = loads.prefill_uncached_tokens_total
        return tokens is not None and self._uncached_total is not None and tokens < self._uncached_total

    def observe(self, loads: EngineLoads, now_s: float) -> bool:
        """Take over what the engine reports: its size, other proxies' load, its prefill rate. True if that changed."""
        if loads.max_running or loads.max_tokens:
            self.room.observe(loads, self)
        prefill = (loads.waiting_uncached_tokens or 0) - self.prefill_tokens
        resident = (loads.used_tokens or 0) - self.resident_tokens
        self._reported_prefill_tokens = prefill if prefill > 0 else 0  # noqa: FURB136 - max() takes three times as long
        self._others_resident_tokens = resident if resident > 0 else 0  # noqa: FURB136
        self._reported_until_s = now_s + LOADS_FRESH_S if prefill > 0 or resident > 0 else -math.inf
        self._look_beyond()
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

    def observe_rate(self, uncached_tokens: int, busy_s: float) -> None:
        """Learn the prefill rate from tokens computed and the time that took."""
        if uncached_tokens <= 0 or busy_s <= 0:
            return
        seen = min(max(busy_s / uncached_tokens, PREFILL_S_PER_TOKEN_MIN), PREFILL_S_PER_TOKEN_MAX)
        weight = uncached_tokens / (uncached_tokens + RATE_WEIGHT_TOKENS)
        self.learned_s_per_token += weight * (seen - self.learned_s_per_token)
        self.set_rate(self.learned_s_per_token)
        self.room.observe_rate(self.learned_s_per_token)

    def set_rate(self, prefill_s_per_token: float) -> None:
        """The rate for placement."""
        self.prefill_s_per_token = prefill_s_per_token
        self._refresh_work()

    def begins(self, s_per_token: float) -> None:
        """The engine starts, or starts anew: failures, others' load and rates are of the past. It has yet to show what
        it can do; until it does, its rate is taken to be `s_per_token`.
        """
        self.breaker.reset()
        self.ready = self.up and not self.draining
        self.learned_s_per_token = s_per_token
        self.set_rate(s_per_token)
        self.room.observe_rate(s_per_token)
        self.moves = MoveRates()
        self.inserted = Inserted()
        self._reported_prefill_tokens = self._others_resident_tokens = 0
        self._reported_until_s = -math.inf
        self._uncached_total = self._busy_us_total = None
        self._shown_tokens = 0
        self.pace.forget()
        self.set_slower(0.0)
        self._look_beyond()

    @property
    def proven(self) -> bool:
        """Whether it has shown what it can do."""
        return self._shown_tokens is None

    def _refresh_work(self) -> None:
        self.work_s = self.prefill_tokens * self.prefill_s_per_token
        self._at_work_s = self._at_work_tokens * self.prefill_s_per_token

    def _refresh(self) -> None:
        self.ready = self.up and not self.draining and self.breaker.failures < BREAKER_FAILURES

    def _look_beyond(self) -> None:
        """What counts as ahead of a new request beyond what this proxy has sent. Kept, so that a look costs nothing."""
        shown = self._shown_tokens
        self._others_prefill_tokens = self._reported_prefill_tokens
        self._others_until_s = self._reported_until_s
        if shown is not None:
            self._others_prefill_tokens += max(0, self.prefill_tokens - shown)
            self._others_until_s = math.inf

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
            **self.room.as_dict(),
        }


def waits_s(loads: Collection[WorkerLoad], now_s: float) -> tuple[list[float], list[float]]:
    """`queue_s` and `decode_slowdown_s` of each: placement asks for all of them, so it is spared two calls for each."""
    queues_s: list[float] = []
    add = queues_s.append
    shared = False
    for load in loads:
        queue_s = load.work_s
        if now_s < load._others_until_s:
            shared = True
            queue_s = (load.prefill_tokens + load._others_prefill_tokens) * load.prefill_s_per_token
        if queue_s:
            done_s = now_s - load._since_s
            if done_s > load._at_work_s:  # noqa: PLR1730 - min() takes three times as long
                done_s = load._at_work_s
            if done_s > 0:
                queue_s -= done_s
        add(queue_s)
    if not shared:
        return queues_s, [load.slowdown_s for load in loads]
    return queues_s, [
        load.slowdown_s + load._others_resident_tokens * DECODE_S_PER_RESIDENT_TOKEN
        if now_s < load._others_until_s
        else load.slowdown_s
        for load in loads
    ]


def level_rates(loads: Collection[WorkerLoad]) -> None:
    """Let placement see one rate where learned rates differ by no more than noise."""
    if not loads:
        return
    mean = sum(load.learned_s_per_token for load in loads) / len(loads)
    for load in loads:
        differs = abs(load.learned_s_per_token - mean) > RATE_NOISE * mean
        load.set_rate(load.learned_s_per_token if differs else mean)


def starts_among(load: WorkerLoad, fleet: Collection[WorkerLoad]) -> None:
    """A worker starts, or starts anew: its rate is the mean of what the others have shown, else the prior."""
    rates = [other.learned_s_per_token for other in fleet if other is not load and other.proven]
    load.begins(sum(rates) / len(rates) if rates else PREFILL_S_PER_TOKEN_PRIOR)


def bounded_bytes_per_token(ratio: float) -> float:
    """The ratio, kept to what tokenizers do."""
    if BYTES_PER_TOKEN_MIN <= ratio <= BYTES_PER_TOKEN_MAX:
        return ratio
    return min(max(ratio, BYTES_PER_TOKEN_MIN), BYTES_PER_TOKEN_MAX)


class BytesPerToken:
    """Canonical prompt bytes per token of each model, learned from usage. At most `MAX_MODELS`, the oldest goes."""

    def __init__(self) -> None:
        self._by_model: dict[str, float] = {}

    def of(self, model: str) -> float:
        """The ratio for a model, the prior before anything was learned."""
        return self._by_model.get(model, BYTES_PER_TOKEN_PRIOR)

    def observe(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn from one prompt that an engine has counted."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        seen = bounded_bytes_per_token(prompt_bytes / prompt_tokens)
        known = self._by_model.get(model)
        if known is None and len(self._by_model) >= MAX_MODELS:
            del self._by_model[next(iter(self._by_model))]
        self._by_model[model] = seen if known is None else known + BYTES_PER_TOKEN_WEIGHT * (seen - known)

    def as_dict(self) -> dict[str, float]:
        """What was learned, for pages and metrics."""
        return dict(self._by_model)
