"""What placing a request costs everybody else: three prices of a token that has to be computed.

**others**: who comes to the same worker next waits longer. An engine prefills in order of arrival, so work x that is
put behind a queue q delays each request that arrives until then, of which there are (returning requests a second) * q,
by x. Only requests that return for what is cached there count: any other one would have gone elsewhere. This term is
what keeps an overloaded fleet apart into its sessions.

    others = DELAYED * returning_per_s * queue * compute

**reuse**: a token that is cached at the place that has most of the prompt, and is computed again at another one, is
work that need not have been, and its copy takes the room of something that was worth keeping. All who arrive during the
rest of the busy period wait for that work; by the theory of the M/G/1 queue the period is 1 / (1 - utilisation) times
the work that is left.

    reuse = private tokens computed again * (PRIVATE / (1 - busy) - 1) * s_per_token
          + shared tokens computed again * (SHARED / (1 + SHARERS * sharers / places) - 1) * s_per_token

Tokens that only this conversation has used are private. A prefix that other conversations have begun
with is different: its second copy serves all those that will begin at this worker, so the price of making it is spread
over its share of them. Without that, new conversations with one long system prompt all join the worker that has it.
The -1: the request's own time is in `compute` already, and even that is spread.

**churn**: a new conversation that settles at a worker displaces what was used there least lately. Workers that write
more to their caches keep everything for a shorter time, so it is the dearer the more this worker has written lately, as
a multiple of the mean. For turns of a conversation that is known somewhere it is 0: where they go is not a matter of
balance.

    churn = CHURN * uncached * s_per_token * inserted / mean inserted

Utilisation, rates and what was inserted are measured (`traffic`); nothing is set. The five constants are flat: each
may be halved or doubled without moving a hit ratio by more than 0.005 or a TTFT p90 by more than a tenth.
"""

from typing import Final

PRIVATE: Final = 12.0
SHARED: Final = 3.0
SHARERS: Final = 4.0
CHURN: Final = 3.0
DELAYED: Final = 3.0
MAX_BUSY: Final = 0.9
"""Beyond it the queue is not stationary, and `others` grows instead."""


class Prices:
    """The prices of one prompt at all places of a fleet."""

    __slots__ = ("_busy", "_bytes_per_token", "_places", "_shared", "best", "delayed_per_s", "s_per_token")

    def __init__(
        self,
        bytes_per_token: float,
        s_per_token: float,
        shared: list[tuple[int, int]],
        best: int,
        places: int,
        busy: float,
        returning_per_s: float,
    ) -> None:
        """`shared` is the index's (`Match`), `best` the longest prefix in bytes that any place has."""
        self.s_per_token = s_per_token
        self.delayed_per_s = DELAYED * returning_per_s
        """Times queue and compute, both in seconds, it is `others`."""
        self._busy = busy
        self._shared = shared
        self.best = best
        self._places = places
        self._bytes_per_token = bytes_per_token

    def reuse_s(self, matched: int) -> float:
        """Where so many bytes are cached: for the tokens between there and what is cached at best."""
        best, private = self.best, PRIVATE / (1 - min(self._busy, MAX_BUSY))
        weighted = (best - matched) * (private - 1)
        for end, sharers in self._shared:
            if matched < end and matched < best:
                difference = SHARED / (1 + SHARERS * sharers / self._places) - private
                weighted += (min(end, best) - matched) * difference
                matched = end
        return weighted / self._bytes_per_token * self.s_per_token


def churn_s(inserted: float, places: int, s_per_token: float) -> float:
    """What a token of a new conversation costs at a place, for each that was inserted there lately; `inserted` is the
    sum of all places, in any unit.
    """
    return CHURN * s_per_token * places / inserted if inserted else 0.0
