"""Limits how many requests and tokens a tenant, a key or a group may use in one process: per minute, and at once.

A limit per minute is a token bucket that holds one minute's worth and fills evenly. A request reserves the estimated
tokens of its prompt and the expected tokens of its answers. When it is settled, the unused tokens are given back. A
request counts once for each of its sequences, because each answer of `n`, and each prompt of a list, runs separately in
an engine. All prompt tokens count, as at OpenAI; a limit may give cached tokens a lower weight. A request that is
larger than the bucket passes when the bucket is full, and leaves the bucket in debt.

A request beyond a limit per minute is refused. A request beyond a limit "at once" waits in the queue until another one
under the same limit has ended. The limit "at once" counts only what is under way already, so it is exceeded by at most
one request.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta

from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.queue.scope import Scope

MINUTE_S: Final = 60.0

Kind = Literal["requests", "tokens"]

_Limit = Annotated[int, Meta(ge=1, le=10**12)]


class TenantLimits(NamedTuple):
    """The limits that an operator has configured. None means no limit."""

    requests_per_minute: _Limit | None = None
    tokens_per_minute: _Limit | None = None
    requests_at_once: _Limit | None = None
    tokens_at_once: _Limit | None = None
    cached_weight: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    """How much a cached prompt token counts in limits of tokens, once it is known to be cached."""


NEVER: Final = 2.0
"""A `warn_share` that is never reached, so that no client is warned."""


class ScopeLimits(NamedTuple):
    """Limits, and the tenants or keys to which they apply. `warn_share`: the used share of a limit at which warnings to
    clients begin.
    """

    scope: Scope
    limits: TenantLimits
    warn_share: float = NEVER

    @property
    def name(self) -> str:
        return self.scope.name


class UsedTokens(Frozen, frozen=True):
    """What a request has used: all its tokens, how many of them were cached, and the least number that is counted."""

    tokens: int
    cached: int = 0
    at_least: int = 0

    def weighed(self, cached_weight: float) -> int:
        cached = self.cached if cached_weight == 1.0 else math.floor(self.cached * cached_weight)
        return max(self.tokens - self.cached + cached, self.at_least)


NO_TOKENS: Final = UsedTokens(0)


class Bucket:
    """A bucket of one minute's worth of requests or tokens."""

    __slots__ = ("_at_s", "_excess", "_excess_until_s", "_level", "limit")

    def __init__(self, limit: int, now_s: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at_s = now_s
        self._excess = self._excess_until_s = 0.0

    def change(self, limit: int, now_s: float) -> None:
        """Use another limit. Earlier use still counts. Use above a lower limit delays no request, but is subtracted
        from the gain if the limit is raised again within a minute.
        """
        filled, excess = self._filled(now_s), self._excess if now_s < self._excess_until_s else 0.0
        taken = min(excess, max(0, limit - self.limit))
        left = filled + limit - self.limit - taken
        self._level = max(left, min(0.0, filled * limit / self.limit))  # a debt lasts no longer than before
        if self._level > left:
            self._excess_until_s = now_s + MINUTE_S
        self._excess = excess - taken + self._level - left
        self.limit = limit

    def remaining(self, now_s: float) -> int:
        return max(0, int(self._filled(now_s)))

    def wait_s(self, amount: int, now_s: float) -> float:
        """Seconds until `amount` may be taken; 0 if it may be taken now."""
        most = amount if amount < self.limit else self.limit  # noqa: FURB136 - min() takes ten times as long
        short = most - self._filled(now_s)
        return short * MINUTE_S / self.limit if short > 0 else 0.0

    def remaining_and_reset_s(self, now_s: float) -> tuple[int, float]:
        """What may be taken now, and the seconds until the bucket is full."""
        level = self._filled(now_s)
        return int(level) if level > 0 else 0, (self.limit - level) * MINUTE_S / self.limit

    def take(self, amount: int, now_s: float) -> None:
        """Take `amount`, or give it back if it is negative. The level may fall below 0, but not rise above the
        limit.
        """
        level = self._filled(now_s) - amount
        self._level = level if level < self.limit else float(self.limit)

    def _filled(self, now_s: float) -> float:
        if now_s > self._at_s:
            level = self._level + (now_s - self._at_s) * self.limit / MINUTE_S
            self._level = level if level < self.limit else float(self.limit)
            self._at_s = now_s
        return self._level


class Exceeded(NamedTuple):
    """The limit that a request would exceed, what is left of it, and the seconds until the request may pass."""

    scope: Scope
    kind: Kind
    limit: int
    left: int
    wait_s: float

    @property
    def reason(self) -> str:
        """The name of the limit."""
        return f"{self.kind}_per_minute"


class Quota:
    """The limits of one scope (tenants or keys), and how much of each is used."""

    __slots__ = ("limits", "of", "requests", "running", "tokens", "tokens_running")

    def __init__(self, of: ScopeLimits, now_s: float) -> None:
        self.of = of
        self.limits = limits = of.limits
        rpm, tpm = limits.requests_per_minute, limits.tokens_per_minute
        self.requests = None if rpm is None else Bucket(rpm, now_s)
        self.tokens = None if tpm is None else Bucket(tpm, now_s)
        self.running = 0
        self.tokens_running = 0

    def change(self, of: ScopeLimits, now_s: float) -> None:
        """Change the limits. Requests under way still count, and are settled against what they reserved."""
        self.of = of
        self.limits = limits = of.limits
        self.requests = _changed(self.requests, limits.requests_per_minute, now_s)
        self.tokens = _changed(self.tokens, limits.tokens_per_minute, now_s)

    def exceeded(self, tokens: int, now_s: float, sequences: int = 1) -> Exceeded | None:
        """The limit that a request of `tokens` would exceed; None if the request may pass."""
        if self.requests is not None and (wait_s := self.requests.wait_s(sequences, now_s)) > 0:
            return self._short("requests", self.requests, wait_s, now_s)
        if self.tokens is not None and (wait_s := self.tokens.wait_s(tokens, now_s)) > 0:
            return self._short("tokens", self.tokens, wait_s, now_s)
        return None

    def take(self, requests: int, tokens: int, now_s: float) -> None:
        """Take `requests` and `tokens`; negative amounts are given back."""
        if self.requests is not None:
            self.requests.take(requests, now_s)
        if self.tokens is not None:
            self.tokens.take(tokens, now_s)

    def bucket(self, kind: Kind) -> Bucket | None:
        """The bucket of a limit per minute; None without such a limit."""
        return self.requests if kind == "requests" else self.tokens

    def used_shares(self, now_s: float) -> list[tuple[str, float]]:
        """The used share of each limit, by the limit's name."""
        buckets = ("requests_per_minute", self.requests), ("tokens_per_minute", self.tokens)
        found = [(name, 1 - it.remaining(now_s) / it.limit) for name, it in buckets if it is not None]
        at_once = self.limits.requests_at_once
        return found if at_once is None else [*found, ("requests_at_once", self.running / at_once)]

    def may_begin(self) -> bool:
        requests, tokens = self.limits.requests_at_once, self.limits.tokens_at_once
        return (requests is None or self.running < requests) and (tokens is None or self.tokens_running < tokens)

    def at_once_words(self) -> str:
        """The limit "at once" that is reached, in words."""
        requests, tokens = self.limits.requests_at_once, self.limits.tokens_at_once
        by_requests = requests is not None and self.running >= requests
        return f"{requests} requests at once" if by_requests else f"{tokens} tokens at once"

    def begin(self, tokens: int, sequences: int = 1) -> None:
        self.running += sequences
        self.tokens_running += tokens

    def end(self, tokens: int, sequences: int = 1) -> None:
        """A request has ended. The arguments are those of `begin`."""
        self.running -= sequences
        self.tokens_running -= tokens

    def _short(self, kind: Kind, bucket: Bucket, wait_s: float, now_s: float) -> Exceeded:
        return Exceeded(self.of.scope, kind, bucket.limit, bucket.remaining(now_s), wait_s)


def _changed(bucket: Bucket | None, limit: int | None, now_s: float) -> Bucket | None:
    if bucket is None or limit is None:
        return None if limit is None else Bucket(limit, now_s)
    bucket.change(limit, now_s)
    return bucket


def reserve(quotas: Sequence[Quota], tokens: int, now_s: float, sequences: int = 1) -> Exceeded | None:
    """Reserve a request's tokens in all quotas, or reserve nothing and return the limit that it would exceed."""
    for quota in quotas:
        exceeded = quota.exceeded(tokens, now_s, sequences)
        if exceeded is not None:
            return exceeded
    for quota in quotas:
        quota.take(sequences, tokens, now_s)
    return None
