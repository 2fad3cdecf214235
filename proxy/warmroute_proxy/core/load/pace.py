"""How fast each worker's streams flow, and which workers are clearly slower than the others.

A GPU that is throttled or shared, or a bad link, shows in nothing that an engine reports: its streams flow more slowly.
What one stream shows is the time from its first token to its end. Much of that may be no fault of the worker: prompts
that were prefilled between two tokens, other sequences in the batch. So of each stream two speeds are kept, in output
tokens a second, and between them is what the worker would do for this stream alone:

    at least  tokens / the whole time
    at most   tokens / (the time in which no prompt was under way there - what the load model says that others cost)

A worker is slow if what it does *at most* is less than `1 / CLEARLY` of what the others of its role and models do *at
least*, by their median (the lower one of two). Workers that are alike but unequally busy are so never told apart, and
at most half of a group is slow: nobody in its better half has a faster median above it.

What follows is no verdict: the difference is added to what a token costs there (`WorkerLoad.slowdown_s`), so that a
session stays where computing its prompt again would take longer than slow tokens do.

Both speeds are means that forget with `MEMORY_S`; of speeds rather than times, so that one stream that hung weighs no
more than any other. After `FORGET_S` without a stream nothing is known, and the worker is tried again.

Workers are compared when a stream ends, once in `COMPARE_EVERY_S`, not when somebody asks: processes that hear the same
streams (`siblings`) so come to the same penalties.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warmroute_proxy.core.load.load import WorkerLoad

MEMORY_S: Final = 60.0
FORGET_S: Final = 60.0
MIN_STREAMS: Final = 5
"""Streams that a worker must have shown before it is compared."""
CLEARLY: Final = 2.0
COMPARE_EVERY_S: Final = 1.0

MIN_TOKENS: Final = 16
MIN_STREAM_S: Final = 0.2
"""An answer that came faster than this was kept back somewhere, and then came at once."""
MIN_CLEAR: Final = 0.5
"""The share of a stream's time without a prompt under way, below which it says nothing."""
MIN_OWN: Final = 0.25
"""The share of a token's time that is the worker's own, whatever the load model says."""


class Pace:
    """Output tokens a second of one worker's streams, each by itself: at least and at most so many."""

    __slots__ = ("_at_s", "_weight", "at_least", "at_most", "streams")

    def __init__(self) -> None:
        self._at_s = -math.inf
        self._weight = 0.0
        self.streams = 0  # since nothing was known
        self.at_least = 0.0
        self.at_most = 0.0

    def observe(self, tokens: int, stream_s: float, prefilling_s: float, slowdown_s: float, now_s: float) -> bool:
        """One stream: tokens after its first, the time they took, how much of that prompts were under way beside it,
        and what the load model says that each token was delayed by others. False if it says nothing.
        """
        clear_s = stream_s - prefilling_s
        if tokens < MIN_TOKENS or stream_s < MIN_STREAM_S or clear_s < MIN_CLEAR * stream_s:
            return False
        token_s = clear_s / tokens
        own_s, least_s = token_s - slowdown_s, MIN_OWN * token_s
        if own_s < least_s:  # noqa: PLR1730 - max() takes three times as long
            own_s = least_s
        since_s = now_s - self._at_s
        if since_s >= FORGET_S:
            self.streams, self._weight = 0, 0.0
        elif since_s > 0.0:
            self._weight *= math.exp(-since_s / MEMORY_S)
        self._at_s = now_s
        self.streams += 1
        self._weight += 1.0
        self.at_least += (tokens / stream_s - self.at_least) / self._weight
        self.at_most += (1.0 / own_s - self.at_most) / self._weight
        return True

    def forgotten_s(self) -> float:
        """When nothing is known any more."""
        return self._at_s + FORGET_S

    def forget(self) -> None:
        """What was seen is of the past."""
        self._at_s = -math.inf

    def is_known(self, now_s: float) -> bool:
        """Whether enough streams have shown it, lately enough."""
        return self.streams >= MIN_STREAMS and now_s < self._at_s + FORGET_S

    def s_per_token(self, now_s: float) -> float:
        """Seconds of an output token, at best; 0 where too little is known."""
        return 1.0 / self.at_most if self.is_known(now_s) else 0.0


def level_paces(groups: Iterable[Collection["WorkerLoad"]], now_s: float) -> None:
    """Say of each worker how much slower it is than the others of its group."""
    for group in groups:
        speeds = sorted([load.pace.at_least for load in group if load.pace.is_known(now_s)])
        for load in group:
            slower_s = _slower_s(load.pace, speeds) if load.pace.is_known(now_s) else 0.0
            if slower_s != load.slower_s:
                load.set_slower(slower_s)


def forget_paces(loads: Iterable["WorkerLoad"], now_s: float) -> float:
    """Try workers again that were slow and have streamed nothing since. Returns when the next is due."""
    due_s = math.inf
    for load in loads:
        if not load.slower_s:
            continue
        if now_s >= load.pace.forgotten_s():
            load.set_slower(0.0)
        else:
            due_s = min(due_s, load.pace.forgotten_s())
    return due_s


def _slower_s(pace: Pace, speeds: Sequence[float]) -> float:
    """Seconds by which a token takes surely longer than that of the others; 0 unless clearly.

    `speeds` are what all of them, this one too, do at least, in order.
    """
    others = len(speeds) - 1
    if not others:
        return 0.0
    middle = (others - 1) // 2
    if speeds[middle] >= pace.at_least:  # the others behind this one stand one place further
        middle += 1
    others_s, own_s = 1.0 / speeds[middle], 1.0 / pace.at_most
    return own_s - others_s if own_s > CLEARLY * others_s else 0.0
