"""Admission: which turns go now, which wait, and which are turned away with a 429.

A turn that finds room and no line before it costs a few comparisons in `Turn.begin` and never comes here. `enter` is
for the rest: a tenant has limits of its own, others wait already, or what was decided has no room. A turn that waits
holds its body and nothing else: no worker, no ledger entry. It is placed when its turn comes, by the facts of that
moment; until then a client may leave, and leaves no trace but in the metrics.

Places are looked for when something ends or has its first token, and a few times a second, since what engines report
changes too. At most `PER_ROUND` turns are dispatched, or sent to another line, at once, so that the loop is not held.

Limits of a tenant are those of one proxy process; a request that another region forwarded has been counted there.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.queue.admission import Drain, Queue, Waiter
from warmroute_proxy.core.queue.dispatch_order import Found, next_dispatches, place_queued
from warmroute_proxy.core.queue.quota import Bucket, Quota, Shortage
from warmroute_proxy.core.queue.retry_budget import RetryBudget
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.intake.parsed_request import Intake
from warmroute_proxy.server.request.failure import shutting_down

log = logging.getLogger(__name__)

PER_ROUND: Final = 32
_CODE: Final = "rate_limit_exceeded"
_NOWHERE: Final = ("", 0.0)
"""The place, and the seconds to compute there, of who waits for the end of another turn of its tenant."""


class Hold:
    """What one turn has reserved of its tenant's quota."""

    __slots__ = ("began", "quota", "tokens")

    def __init__(self, quota: Quota, tokens: int) -> None:
        self.quota = quota
        self.tokens = tokens
        self.began = False

    def begin(self) -> None:
        """The turn is under way."""
        if not self.began:
            self.began = True
            self.quota.begin(self.tokens)

    def end(self, requests_used: int, tokens_used: int, now_s: float) -> None:
        """It is not, and has used so much."""
        if self.began:
            self.quota.end(self.tokens)
        self.quota.give_back(1 - requests_used, self.tokens - tokens_used, now_s)


class Holder(Protocol):
    """A turn that may hold something of its tenant's quota."""

    hold: Hold | None


class Asker(Holder, Protocol):
    """A turn, as admission sees it."""

    intake: Intake
    waiter: "Waiter[Asker] | None"

    @property
    def excluded(self) -> frozenset[str]: ...
    def admitted(self, decision: Decision) -> None: ...
    def refused(self, refusal: Refusal) -> None: ...
    def crashed(self) -> None: ...


class Admission:
    """The queue of one proxy process, its tenants' quotas, and its budget of retries."""

    def __init__(self, config: Config, router: Router, metrics: Metrics, clock: Callable[[], float]) -> None:
        limits = config.limits
        self.queue: Queue[Asker] = Queue(limits.queue_requests, limits.queue_bytes, limits.queue_timeout_s)
        self.retries = RetryBudget()
        self._timeout_s = limits.queue_timeout_s
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._drain = Drain()
        self._pumping = False
        self._again = False  # whether the next round asks some of those, too, for whose place there is no room
        now = clock()
        self.quotas = {t.name: Quota(t.limits, now) for t in config.tenants if t.limits is not None}

    def enter(self, turn: Asker, decision: Decision) -> Decision | None:
        """A turn that may not be able to go at once: where it goes now, or None where it waits or was turned away."""
        tenant, facts = turn.intake.tenant, turn.intake.facts
        quota = self.quotas.get(tenant.name) if turn.intake.forwarded_from is None else None
        if quota is not None and turn.hold is None:
            tokens = decision.prompt_tokens_est + facts.expected_output_tokens
            shortage = quota.reserve(tokens, self._clock())
            if shortage is not None:
                self._refuse(turn, _kind_of(shortage), self._beyond(tenant.name, shortage))
                return None
            turn.hold = Hold(quota, tokens)
        waiter = Waiter(turn, tenant.name, facts.model, len(turn.intake.body.raw), self._clock())
        if not _may_begin(turn):
            self._wait(waiter, *_NOWHERE)
            return None
        if decision.kind != "forward":
            found = self._place_queued(waiter, decision)
            if not found.goes:
                self._wait(waiter, found.decision.cache_worker, found.compute_s)
                return None
            decision = found.decision
        if turn.hold is not None:
            turn.hold.begin()
        return decision

    def leave(self, turn: Asker) -> None:
        """The client of a turn that waits has left."""
        waiter, turn.waiter = turn.waiter, None
        if waiter is not None and self.queue.leave(waiter):
            self._metrics.add("warmroute_queue_left_total")
            self.cancel(turn)

    def cancel(self, turn: Holder) -> None:
        """A turn has ended without having used anything: what it reserved is given back."""
        hold, turn.hold = turn.hold, None
        if hold is not None:
            hold.end(0, 0, self._clock())
        self.freed()

    def ended(self, turn: Holder, tokens: int) -> None:
        """A turn that was dispatched has ended, and used so many tokens."""
        hold, turn.hold = turn.hold, None
        if hold is not None:
            hold.end(1, tokens, self._clock())
        self.freed()

    def freed(self) -> None:
        """Something has ended: look for those who can go, once the caller has finished what it does."""
        if self.queue.requests and not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def sweep(self, now_s: float) -> None:
        """Turn away who has waited too long, and look for room. Called a few times a second."""
        if not self.queue.requests:
            return
        for waiter in self.queue.expired(now_s - self._timeout_s):
            if waiter.item.waiter is not waiter:
                continue  # to tell one of them began another request, which has taken this one's place
            model, waited_s = waiter.model, self._timeout_s
            self._turn_away(waiter, "queue_timeout", f"no engine for {model} had room within {waited_s:g} s")
        self._again = True
        self.freed()

    def shut_down(self) -> None:
        """The proxy is going: who waits had better ask another one."""
        for waiter in self.queue.waiting():
            if waiter.item.waiter is not waiter:
                continue
            self.queue.leave(waiter)
            self._refuse(waiter.item, "draining", shutting_down())

    def headers(self, tenant: str) -> tuple[tuple[str, str], ...]:
        """What is left of a tenant's limits by the minute, as OpenAI says it; nothing where it has none."""
        quota = self.quotas.get(tenant)
        if quota is None:
            return ()
        now = self._clock()
        return (*_bucket_headers("requests", quota.requests, now), *_bucket_headers("tokens", quota.tokens, now))

    def as_dict(self, now_s: float) -> dict[str, Any]:
        """What the admin page shows."""
        waiting = self.queue.waiting()
        by_tenant = Counter(waiter.tenant for waiter in waiting)
        by_place = Counter(waiter.place for waiter in waiting)
        return {
            "queue": {
                "requests": self.queue.requests,
                "requests_limit": self.queue.max_requests,
                "bytes": self.queue.bytes,
                "bytes_limit": self.queue.max_bytes,
                "timeout_s": self._timeout_s,
                "oldest_s": now_s - min((waiter.since_s for waiter in waiting), default=now_s),
                "drain_per_s": self._drain.per_s(now_s),
                "by_tenant": dict(by_tenant),
                "by_place": dict(by_place),
            },
            "tenants": {name: _quota_dict(quota, now_s) for name, quota in self.quotas.items()},
        }

    # -- inside

    def _place_queued(self, waiter: "Waiter[Asker]", decision: Decision) -> Found:
        turn, now = waiter.item, self._clock()
        return place_queued(self._router, self.queue, waiter, turn.intake.facts, decision, turn.excluded, now)

    def _wait(self, waiter: "Waiter[Asker]", place: str, compute_s: float) -> None:
        pushed_out = self.queue.join(waiter, place, compute_s)
        if pushed_out is None:
            refusal = self._full(f"every engine for {waiter.model} is busy, and the queue is full")
            self._refuse(waiter.item, "queue_full", refusal)
            return
        waiter.item.waiter = waiter
        for other in pushed_out:
            self._turn_away(other, "queue_full", f"every engine for {other.model} is busy, and the queue is full")
        self.freed()

    def _pump(self) -> None:
        """Dispatch who can go, in fair order."""
        self._pumping, again, self._again = False, self._again, False
        left = PER_ROUND
        for waiter, found in next_dispatches(self.queue, self._router, self._ask, self._clock(), again=again):
            if found.goes:
                self._go(waiter, found.decision)
            left -= 1
            if not left:
                self._again |= again
                self.freed()
                return

    def _ask(self, waiter: "Waiter[Asker]") -> Found | None:
        """Where a turn that waits can go now, if it can."""
        turn = waiter.item
        if not _may_begin(turn):
            if waiter.spot != (waiter.model, _NOWHERE[0]):
                self.queue.move(waiter, *_NOWHERE)
            return None
        try:
            decision = self._router.place(turn.intake.facts, self._clock(), turn.excluded)
            return self._place_queued(waiter, decision)
        except NoWorker:
            return None
        except Exception as error:  # it would fail again each time, and nobody behind it would ever go
            log.error("placing a turn that waits failed: %s", type(error).__name__)
            turn.crashed()
            return None

    def _go(self, waiter: "Waiter[Asker]", decision: Decision) -> None:
        turn, now = waiter.item, self._clock()
        tokens = decision.prompt_tokens_est - decision.predicted_cached_tokens
        self.queue.served(waiter, tokens + turn.intake.facts.expected_output_tokens)
        self._drain.served(now)
        self._metrics.queue_wait.observe(now - waiter.since_s)
        turn.waiter = None
        if turn.hold is not None:
            turn.hold.begin()
        turn.admitted(decision)

    def _turn_away(self, waiter: "Waiter[Asker]", reason: str, message: str) -> None:
        self.queue.leave(waiter)
        self._refuse(waiter.item, reason, self._full(message))

    def _refuse(self, turn: Asker, reason: str, refusal: Refusal) -> None:
        turn.waiter = None
        self._metrics.add("warmroute_refused_total", labels=(("reason", reason),))
        turn.refused(refusal)

    def _full(self, message: str) -> Refusal:
        """A 429 because the fleet is busy: its limits are those of the queue."""
        after_s = self._drain.retry_after_s(self.queue.requests, self._clock())
        headers = (
            ("x-ratelimit-limit-requests", str(self.queue.max_requests)),
            ("x-ratelimit-remaining-requests", str(max(0, self.queue.max_requests - self.queue.requests))),
            ("x-ratelimit-reset-requests", go_duration(after_s)),
        )
        return Refusal(429, f"{message}; try again in {after_s} s", code=_CODE, retry_after_s=after_s, headers=headers)

    def _beyond(self, tenant: str, shortage: Shortage) -> Refusal:
        """A 429 because a tenant has used its minute's worth."""
        after_s = max(1, math.ceil(shortage.wait_s))
        message = f"the limit of {shortage.limit} {shortage.kind} a minute is reached; try again in {after_s} s"
        return Refusal(429, message, code=_CODE, retry_after_s=after_s, headers=self.headers(tenant))


def go_duration(seconds: float) -> str:
    """Seconds as OpenAI's headers have them, which is as Go prints them: `12ms`, `1.5s`, `6m0s`."""
    millis = math.ceil(seconds * 1000)
    if millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{head}{rest / 1000:g}s"


def _may_begin(turn: Asker) -> bool:
    """Whether its tenant's limits at once let a turn go; one that another region has failed is counted already."""
    hold = turn.hold
    return hold is None or hold.began or hold.quota.may_begin()


def _kind_of(shortage: Shortage) -> str:
    return f"{shortage.kind}_per_minute"


def _bucket_headers(kind: str, bucket: Bucket | None, now_s: float) -> tuple[tuple[str, str], ...]:
    if bucket is None:
        return ()
    return (
        (f"x-ratelimit-limit-{kind}", str(bucket.limit)),
        (f"x-ratelimit-remaining-{kind}", str(bucket.remaining(now_s))),
        (f"x-ratelimit-reset-{kind}", go_duration(bucket.reset_s(now_s))),
    )


def _quota_dict(quota: Quota, now_s: float) -> dict[str, Any]:
    limits = {name: value for name, value in quota.limits._asdict().items() if value is not None}
    return {
        **limits,
        "running": quota.running,
        "tokens_running": quota.tokens_running,
        "requests_remaining": None if quota.requests is None else quota.requests.remaining(now_s),
        "tokens_remaining": None if quota.tokens is None else quota.tokens.remaining(now_s),
    }
