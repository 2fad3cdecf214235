"""Keeps sums of each tenant and worker by minute, for the last hour, in memory.

The overview of the admin page begins with these sums; the ledger has only sums by hour. `request_metrics` gathers the
sums of requests in constant time per turn, and adds them here once a minute and before a read. A finished minute is
kept encoded, as other processes of the proxy get it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from operator import add
from typing import Final

import msgspec

MINUTES: Final = 60
MAX_TENANTS: Final = 100
"""How many tenants have a row in a minute; all further tenants share one row, `OTHERS`."""

MAX_WORKERS: Final = 200
"""How many workers have a row in a minute; turns of further workers count in the tenants' rows alone."""

MAX_SENT_BYTES: Final = 2**19
"""How many bytes go to the other processes at most; if there are more, the oldest minutes are left out."""

OTHERS: Final = "(others)"

TTFT_BOUNDS_S: Final[tuple[float, ...]] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
STEPS: Final = 8
FINE_BOUNDS_S: Final[tuple[float, ...]] = tuple(
    high * (low / high) ** (1 - step / STEPS)
    for low, high in zip((0.0005, *TTFT_BOUNDS_S), TTFT_BOUNDS_S, strict=False)
    for step in range(1, STEPS + 1)
)
"""The buckets of `TTFT_BOUNDS_S`, each divided into `STEPS` buckets, which are narrow enough for percentiles."""


class Row(msgspec.Struct, array_like=True, gc=False):
    """Sums of one tenant in one minute."""

    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    list_nanousd: int = 0
    price_nanousd: int = 0
    warm_prompt_tokens: int = 0
    """Prompt tokens of turns of the kind `warm`, which only keep a prompt cached. Hit ratios leave them out."""

    warm_cached_tokens: int = 0
    errors: int = 0
    """Answers with a status of 500 or above, and answers that broke off."""

    rate_limited: int = 0
    ttft: dict[int, int] = {}
    """Index in `FINE_BOUNDS_S` -> the number of streams whose TTFT is in this bucket."""

    loss: dict[str, int] = {}

    def plus(self, other: "Row") -> None:
        for name in NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for bin_, streams in other.ttft.items():
            self.ttft[bin_] = self.ttft.get(bin_, 0) + streams
        for name, tokens in other.loss.items():
            self.loss[name] = self.loss.get(name, 0) + tokens

    def ttft_s(self, share: float) -> float | None:
        """A percentile of the TTFT: `share` of the streams had at most this TTFT; None without a stream."""
        left = share * sum(self.ttft.values())
        for bin_ in sorted(self.ttft):
            left -= self.ttft[bin_]
            if left <= 0.0:
                return FINE_BOUNDS_S[min(bin_, len(FINE_BOUNDS_S) - 1)]
        return None


NUMBERS: Final = tuple(name for name in Row.__struct_fields__ if name not in {"ttft", "loss"})
SHOWN: Final = tuple(name for name in NUMBERS if not name.startswith("warm_"))


class Minute(msgspec.Struct, array_like=True, gc=False):
    """The sums of one minute. `number`: minutes since 1970; `workers`: worker -> turns, prompt and cached tokens."""

    number: int
    tenants: dict[str, Row] = {}
    workers: dict[str, list[int]] = {}

    def plus(self, other: "Minute") -> None:
        """Add the sums of the same minute in another process."""
        for name, row in other.tenants.items():
            self.tenants.setdefault(name, Row()).plus(row)
        for name, sums in other.workers.items():
            self.workers[name] = list(map(add, self.workers.get(name, (0, 0, 0)), sums))

    @property
    def key(self) -> str:
        """The beginning of the minute in UTC, as `2026-11-30T02:45`."""
        return time.strftime("%Y-%m-%dT%H:%M", time.gmtime(self.number * 60))

    def all(self) -> Row:
        total = Row()
        for row in self.tenants.values():
            total.plus(row)
        return total


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Minute).decode


class Minutes:
    """The minutes of one process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: unix seconds."""
        self._clock = clock
        self._finished: deque[bytes] = deque(maxlen=MINUTES)
        self._now = Minute(0)

    def add(self, tenant: str, row: Row, number: int | None = None, worker: str | None = None) -> None:
        """Add sums of a tenant to the minute `number`, by default the current one. `worker`: the one that served the
        turns.
        """
        number = int(self._clock()) // 60 if number is None else number
        if number > self._now.number:  # sums of an earlier minute count in the newest one
            if self._now.tenants:
                self._finished.append(_encode(self._now))
            self._now = Minute(number)
        tenants, workers = self._now.tenants, self._now.workers
        if tenant not in tenants and len(tenants) >= MAX_TENANTS:
            tenant = OTHERS
        tenants.setdefault(tenant, Row()).plus(row)
        if worker is not None and (worker in workers or len(workers) < MAX_WORKERS):
            sums = row.turns, row.prompt_tokens, row.cached_tokens
            workers[worker] = list(map(add, workers.get(worker, (0, 0, 0)), sums))

    def encoded(self) -> list[bytes]:
        """The minutes to send to the other processes, the newest first."""
        found, size = [_encode(self._now)], 0
        for minute in reversed(self._finished):
            size += len(minute)
            if size > MAX_SENT_BYTES:
                break
            found.append(minute)
        return found

    def take_over(self, minutes: list[bytes]) -> None:
        """Take the minutes that a predecessor of this process has sent, the newest first."""
        self._finished.extendleft(minutes[:MINUTES])


def merged(sent: Iterable[list[bytes]], now_s: float) -> list[Minute]:
    """The last hour up to the current minute, summed over processes, including minutes without a turn."""
    current = int(now_s) // 60
    found = {number: Minute(number) for number in range(current - MINUTES + 1, current + 1)}
    for minutes in sent:
        for minute in map(_decode, minutes):
            if minute.number in found:
                found[minute.number].plus(minute)
    return list(found.values())
