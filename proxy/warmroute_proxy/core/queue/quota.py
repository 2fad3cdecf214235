"""What one tenant may use: requests and tokens a minute, and at once.

Limits by the minute are buckets that hold one minute's worth and fill evenly. A request reserves as many tokens as its
prompt is estimated to have and its answers are expected to have; once it is settled, what it did not use is given back.
It counts as many requests as it has sequences: each answer of `n`, and each prompt of a list, runs by itself in an
engine. All tokens of a prompt count, cached ones too, as OpenAI counts them,
unless a tenant has another weight for them. A request that is larger than the bucket
passes when the bucket is full, and leaves it in debt.

A request beyond a minute's worth is refused. A request beyond the limits "at once" waits in the queue until another of
the tenant's has ended; that bound is on what is under way already, so that it is exceeded by at most one request.
"""

from typing import Final, Literal, NamedTuple

MINUTE_S: Final = 60.0

Kind = Literal["requests", "tokens"]


class TenantLimits(NamedTuple):
    """The limits that an operator has configured; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_at_once: int | None = None
    tokens_at_once: int | None = None
    cached_weight: float = 1.0
    """How much a cached prompt token counts of a limit of tokens, once it is known to be cached."""


class Bucket:
    """A bucket of one minute's worth of requests or tokens."""

    __slots__ = ("_at_s", "_level", "limit")

    def __init__(self, limit: int, now_s: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at_s = now_s

    def change(self, limit: int, now_s: float) -> None:
        """Have another limit. What was taken stays taken."""
        self._level = min(self._filled(now_s) + limit - self.limit, float(limit))
        self.limit = limit

    def remaining(self, now_s: float) -> int:
        """What may be taken now."""
        return max(0, int(self._filled(now_s)))

    def wait_s(self, amount: int, now_s: float) -> float:
        """Seconds until so much may be taken; 0 if now."""
        return max(0.0, (min(amount, self.limit) - self._filled(now_s)) * MINUTE_S / self.limit)

    def reset_s(self, now_s: float) -> float:
        """Seconds until it is full."""
        return self.wait_s(self.limit, now_s)

    def take(self, amount: int, now_s: float) -> None:
        """Take, or with a negative amount give back. The level may fall below 0, and never rises above the limit."""
        self._level = min(self._filled(now_s) - amount, float(self.limit))

    def _filled(self, now_s: float) -> float:
        if now_s > self._at_s:
            self._level = min(float(self.limit), self._level + (now_s - self._at_s) * self.limit / MINUTE_S)
            self._at_s = now_s
        return self._level


class Shortage(NamedTuple):
    """Which limit a request would exceed, and in how many seconds it no longer would."""

    kind: Kind
    limit: int
    wait_s: float


class Quota:
    """One tenant's limits and what it has used of them."""

    __slots__ = ("limits", "requests", "running", "tokens", "tokens_running")

    def __init__(self, limits: TenantLimits, now_s: float) -> None:
        self.limits = limits
        rpm, tpm = limits.requests_per_minute, limits.tokens_per_minute
        self.requests = None if rpm is None else Bucket(rpm, now_s)
        self.tokens = None if tpm is None else Bucket(tpm, now_s)
        self.running = 0
        self.tokens_running = 0

    def change(self, limits: TenantLimits, now_s: float) -> None:
        """Have other limits. What is reserved and under way still counts, and is settled with what it reserved."""
        self.limits = limits
        self.requests = _changed(self.requests, limits.requests_per_minute, now_s)
        self.tokens = _changed(self.tokens, limits.tokens_per_minute, now_s)

    def reserve(self, tokens: int, now_s: float, sequences: int = 1) -> Shortage | None:
        """Reserve a request of so many tokens, or return what is short and reserve nothing."""
        if self.requests is not None and (wait_s := self.requests.wait_s(sequences, now_s)) > 0:
            return Shortage("requests", self.requests.limit, wait_s)
        if self.tokens is not None:
            if (wait_s := self.tokens.wait_s(tokens, now_s)) > 0:
                return Shortage("tokens", self.tokens.limit, wait_s)
            self.tokens.take(tokens, now_s)
        if self.requests is not None:
            self.requests.take(sequences, now_s)
        return None

    def give_back(self, requests: int, tokens: int, now_s: float) -> None:
        """Return what was reserved and not used; `tokens` is negative where more were used."""
        if self.requests is not None:
            self.requests.take(-requests, now_s)
        if self.tokens is not None:
            self.tokens.take(-tokens, now_s)

    def may_begin(self) -> bool:
        """Whether another request may be under way."""
        requests, tokens = self.limits.requests_at_once, self.limits.tokens_at_once
        return (requests is None or self.running < requests) and (tokens is None or self.tokens_running < tokens)

    def begin(self, tokens: int, sequences: int = 1) -> None:
        """A request is under way."""
        self.running += sequences
        self.tokens_running += tokens

    def end(self, tokens: int, sequences: int = 1) -> None:
        """A request has ended; the arguments as in `begin`."""
        self.running -= sequences
        self.tokens_running -= tokens


def _changed(bucket: Bucket | None, limit: int | None, now_s: float) -> Bucket | None:
    if bucket is None or limit is None:
        return None if limit is None else Bucket(limit, now_s)
    bucket.change(limit, now_s)
    return bucket
