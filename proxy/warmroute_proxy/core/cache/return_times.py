"""Learns after what time idle conversations come back, from those that did come back and those that did not.

The age of an idle conversation is the time since the end of its last turn. For each bucket of ages, two sums are kept:
how many conversations came back at that age, and how many seconds all idle conversations spent at it. Their quotient is
the hazard: the rate at which an idle conversation of that age comes back. The hazard falls with age: tools answer
within seconds, people within minutes, and most sessions end.

The time for which KV is worth its memory follows as in the five-minute rule (J. Gray, F. Putzolu, SIGMOD 1987). A token
kept for a second takes 1 / pool of the memory; a token computed again takes 1 / rate seconds of prefill. A pool is
filled by `pool / rate` seconds of prefill, so an idle conversation is worth keeping while

    hazard(age)  >=  rate / pool

Limits: at most `MAX_IDLE` idle conversations; the conversation that has been idle longest is forgotten first. All sums
are halved at `MAX_RETURNS` returns, so they follow the traffic.
"""

from bisect import bisect_right
from collections import OrderedDict
from typing import Final

UNKNOWN: Final = 0
TOOLS: Final = 1
PERSON: Final = 2
OVER: Final = 3
"""How a turn ended. UNKNOWN: not known. TOOLS: with tool calls, whose results come within seconds. PERSON: with a text
for a person, who takes minutes to answer. OVER: as the last turn of its conversation.
"""
KINDS: Final = 3
"""The number of kinds with return times: all but OVER."""

EDGES_S: Final[tuple[float, ...]] = (
    1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 450.0, 600.0, 900.0,
)  # fmt: skip
"""The ends of the buckets. A conversation that is idle for longer counts as not coming back."""
MAX_IDLE: Final = 20_000
MAX_RETURNS: Final = 8192
MIN_RETURNS: Final = 64
"""With fewer returns, no window is computed."""
MIN_IN_BUCKET: Final = 4
"""A bucket with fewer returns is not a reason to keep anything."""


class ReturnTimes:
    """The return times of the conversations of one group of workers."""

    __slots__ = ("_bucket_of", "_count", "_exposed_s", "_idle", "_max", "_returns")

    def __init__(self, max_idle: int = MAX_IDLE) -> None:
        self._max = max_idle
        self._returns = [0.0 for _ in EDGES_S]
        self._exposed_s = [0.0 for _ in EDGES_S]
        self._count = 0.0  # all returns
        self._bucket_of: dict[int, int] = {}
        self._idle: list[OrderedDict[int, float]] = [OrderedDict() for _ in EDGES_S]  # lineage -> when its turn ended

    @property
    def idle(self) -> int:
        return len(self._bucket_of)

    @property
    def returns(self) -> float:
        """The number of returns that were learned from, with older returns counted less."""
        return self._count

    def ended(self, lineage: int, now_s: float) -> None:
        if lineage in self._bucket_of:
            self._remove(lineage)
        self._idle[0][lineage] = now_s
        self._bucket_of[lineage] = 0
        if len(self._bucket_of) > self._max:
            self._forget_one()

    def came_back(self, lineage: int, now_s: float) -> None:
        bucket = self.left(lineage, now_s)
        if 0 <= bucket < len(EDGES_S):
            self._returns[bucket] += 1.0
            self._count += 1.0
            if self._count >= MAX_RETURNS:
                self._count /= 2
                self._returns = [each / 2 for each in self._returns]
                self._exposed_s = [each / 2 for each in self._exposed_s]

    def left(self, lineage: int, now_s: float) -> int:
        """Stop following a conversation, and count its idle time until now. Returns the bucket of its age; -1 if it was
        not followed.
        """
        at = self._bucket_of.get(lineage)
        if at is None:
            return -1
        age_s = max(0.0, now_s - self._idle[at][lineage])
        self._remove(lineage)
        bucket = max(at, bisect_right(EDGES_S, age_s))
        self._passed(at, bucket)
        if bucket < len(EDGES_S):
            self._exposed_s[bucket] += max(0.0, age_s - _begin_s(bucket))
        return bucket

    def advance(self, now_s: float) -> None:
        for bucket in range(len(EDGES_S) - 1, -1, -1):
            idle = self._idle[bucket]
            before_s = now_s - EDGES_S[bucket]
            while idle:
                lineage = next(iter(idle))
                ended_s = idle[lineage]
                if ended_s > before_s:
                    break
                del idle[lineage]
                now_at = max(bucket + 1, bisect_right(EDGES_S, now_s - ended_s))
                self._passed(bucket, now_at)
                if now_at < len(EDGES_S):
                    self._idle[now_at][lineage] = ended_s
                    self._bucket_of[lineage] = now_at
                else:
                    del self._bucket_of[lineage]

    def window_s(self, rate_per_pool: float, otherwise_s: float) -> float:
        """How long an idle conversation is worth its memory; `otherwise_s` while too little is known."""
        if self._count < MIN_RETURNS:
            return otherwise_s
        for bucket in range(len(EDGES_S) - 1, -1, -1):
            returns = self._returns[bucket]
            if returns >= MIN_IN_BUCKET and returns >= rate_per_pool * self._exposed_s[bucket]:
                return EDGES_S[bucket]
        return EDGES_S[0]

    # Inside

    def _remove(self, lineage: int) -> None:
        bucket = self._bucket_of.pop(lineage, -1)
        if bucket >= 0:
            del self._idle[bucket][lineage]

    def _passed(self, first: int, end: int) -> None:
        for bucket in range(first, end):
            self._exposed_s[bucket] += EDGES_S[bucket] - _begin_s(bucket)

    def _forget_one(self) -> None:
        for idle in reversed(self._idle):
            if idle:
                del self._bucket_of[idle.popitem(last=False)[0]]
                return


def _begin_s(bucket: int) -> float:
    return EDGES_S[bucket - 1] if bucket else 0.0
