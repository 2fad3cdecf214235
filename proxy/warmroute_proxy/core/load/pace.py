"""Measures how fast the answers of each worker stream.

No report of an engine shows a throttled or shared GPU, or a bad link, but the worker's answers stream more slowly. The
proxy measures the time from a stream's first token to its end. Not all of that time is the worker's fault: between two
tokens it may have prefilled prompts, and its batch may have had other sequences. So each stream teaches two speeds, in
output tokens per second. The speed that the worker would reach if it served this stream alone lies between these
speeds:

    at least  tokens / the whole time
    at most   tokens / (the time in which no prompt was being prefilled there - the load model's cost of other requests)

For each worker, both speeds are averaged over its streams, with exponential decay (time constant `MEMORY_S`). Speeds
are averaged rather than times, so a stream that hung weighs no more than any other. After `FORGET_S` without a stream
the averages are forgotten, and the worker is tried again. `comparison` finds the workers that are clearly slower than
the others.
"""

import math
from typing import Final

MEMORY_S: Final = 60.0
FORGET_S: Final = 60.0
MIN_STREAMS: Final = 5
"""After this number of streams a worker is compared with others."""

MIN_TOKENS: Final = 16
MIN_STREAM_S: Final = 0.2
"""A stream that took less time was buffered somewhere, and came all at once."""
MIN_CLEAR: Final = 0.5
"""A stream is ignored if its worker was free of prefill for less than this share of the stream's time."""
MIN_OWN: Final = 0.25
"""At least this share of a token's time is attributed to the worker itself, whatever the load model says."""


class Pace:
    """Lower and upper bounds of the output tokens per second of one worker's streams."""

    __slots__ = ("_at_s", "_weight", "at_least", "at_most", "streams")

    def __init__(self) -> None:
        self._at_s = -math.inf
        self._weight = 0.0
        self.streams = 0  # streams observed since the bounds were last forgotten
        self.at_least = 0.0
        self.at_most = 0.0

    def observe(self, tokens: int, stream_s: float, prefilling_s: float, slowdown_s: float, now_s: float) -> bool:
        """Learn from one stream. Returns False if the stream is ignored.

        `tokens`: the output tokens after the first; they took `stream_s`. `prefilling_s`: how much of that time the
        worker had prompts in prefill. `slowdown_s`: how much other requests delayed each token, by the load model.
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
        """When the bounds are forgotten if no other stream ends."""
        return self._at_s + FORGET_S

    def forget(self) -> None:
        """Forget the bounds: the engine restarted."""
        self._at_s = -math.inf

    def is_known(self, now_s: float) -> bool:
        return self.streams >= MIN_STREAMS and now_s < self._at_s + FORGET_S

    def s_per_token(self, now_s: float) -> float:
        """A lower bound of the seconds that an output token takes; 0 if too little is known."""
        return 1.0 / self.at_most if self.is_known(now_s) else 0.0
