"""Computes what placing a request costs all other requests: three prices of a token that has to be computed.

**others**: later requests at the worker wait longer. An engine prefills in order of arrival. So if a prompt that takes
x seconds joins a queue of q seconds, each request that arrives in those q seconds is delayed by x. That is (returning
requests a second) * q requests. Only requests that return for what is cached there count: any other request would have
gone elsewhere. This term keeps the sessions of an overloaded fleet on separate workers.

    others = DELAYED * returning_per_s * queue * compute

**reuse**: computing a token is avoidable work if the worker that has most of the prompt has this token cached. Such
work delays all requests that arrive until the worker is idle again. By the theory of the M/G/1 queue, the waiting work
grows as 1 / (1 - busy), and so does the time in which one more second of work is completed. So the number of delayed
requests grows as 1 / (1 - busy)^2. What one more second of work adds to each wait grows by this factor, too.

    reuse = private tokens computed again * (AGAIN / (1 - busy)^2 - 1) * s_per_token
          + shared tokens computed again * (AGAIN * (1 / (1 - busy)^2 - 1) / (1 + sharers / workers) - 1) * s_per_token

Tokens that only this conversation has used are private: a second copy of them does not serve any other request. Tokens
of a prefix with which other conversations have begun are shared. Their second copy would have been made some time
anyway, so its price is only what it costs more now than in an idle fleet. The copy also serves conversations that will
begin at this worker later. The number of conversations to come is taken as the number that have come so far, divided
equally among all workers. Without this division, new conversations with one long system prompt would all join the
worker that has it. Both lines end with -1 because the request's own time is already in `compute`. For shared tokens
even the request's own time is spread over the conversations to come.

**churn**: a new conversation that settles at a worker displaces what was used there least recently. Workers that write
more to their caches keep everything for a shorter time. So churn is proportional to `inserted`, what this worker has
written lately relative to the size of its cache, as a multiple of the fleet's mean. Churn is 0 if some worker has more
of the prompt than the prefix that other conversations share: then the balance of caches does not matter for the turn.

    churn = CHURN * uncached * s_per_token * inserted / mean inserted

In a fork (`forks`: prompts with a common head that come almost at once) the head counts as private or as shared, the
time to compute it is never spread over others, and churn is 0.

These three prices do not move a known conversation away from a warm cache (`placement`).

Utilisation, rates and inserted tokens are measured (`load.traffic`); nothing is configured.
"""

from typing import Final

AGAIN: Final = 7.0
CHURN: Final = 3.0
DELAYED: Final = 3.0
MAX_BUSY: Final = 0.9
"""The largest utilisation that `reuse` assumes. Beyond it the queue is not stationary, and `others` grows instead."""


class PromptPrices:
    __slots__ = (
        "_again",
        "_bytes_per_token",
        "_fork",
        "_private",
        "_shared",
        "_workers",
        "best_bytes",
        "delayed_per_s",
        "s_per_token",
    )

    def __init__(
        self,
        bytes_per_token: float,
        s_per_token: float,
        shared: list[tuple[int, int]],
        best_bytes: int,
        workers: int,
        busy: float,
        returning_per_s: float,
    ) -> None:
        """`shared`: as in the index's `Match`. `best_bytes`: the longest prefix that any worker has."""
        self.s_per_token = s_per_token
        self.delayed_per_s = DELAYED * returning_per_s
        """`others` for each second of queue times each second of compute."""
        slower = 1 / (1 - (busy if busy < MAX_BUSY else MAX_BUSY)) ** 2  # noqa: FURB136 - see `waits_s`
        self._private, self._again = AGAIN * slower, AGAIN * (slower - 1)  # for a private token, for a shared one
        self._shared = shared
        self.best_bytes = best_bytes
        self._workers = workers
        self._bytes_per_token = bytes_per_token
        self._fork: float | None = None  # the price of a token of a fork's head; None outside forks

    def in_fork(self, sharers: int) -> None:
        """Set prices for a prompt of a fork, whose head counts as shared by `sharers` prompts; as private if `sharers`
        is 0.
        """
        shared = self._again / (1 + sharers / self._workers) - 1
        self._fork = max(0.0, shared) if sharers else self._private - 1

    def reuse_s(self, matched: int) -> float:
        """`reuse` at a worker with `matched` bytes cached: for the tokens from there to the end of the longest cached
        prefix.
        """
        best, private = self.best_bytes, self._private
        if self._fork is not None:
            return (best - matched) * self._fork / self._bytes_per_token * self.s_per_token
        weighted = (best - matched) * (private - 1)
        for end, sharers in self._shared:
            if matched < end and matched < best:
                difference = self._again / (1 + sharers / self._workers) - private
                weighted += (min(end, best) - matched) * difference
                matched = end
        return weighted / self._bytes_per_token * self.s_per_token


def churn_s(inserted: float, workers: int, s_per_token: float) -> float:
    """`churn` for one token of a new conversation and one token that was lately inserted at the worker. `inserted`: the
    sum of lately inserted tokens over all workers.
    """
    return CHURN * s_per_token * workers / inserted if inserted else 0.0
