"""Policies that look at load alone: least tokens, least requests, power of two choices, and a sticky table.

Tokens are the prompt tokens of requests that have not ended. The table sends a session where its first turn went, and
the first turn to the worker with the fewest tokens: what a router with a session header and no other knowledge does.
Power of two choices: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001;
two different workers are drawn and the one with fewer tokens wins, as in SMG's `power_of_two`
(github.com/lightseekorg/smg, model_gateway/src/policies/power_of_two.rs, commit 1373e8d8). Ties go to any of the best.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy


def least(workers: Sequence[Worker], cost: Callable[[Worker], Any], random: Random) -> Worker:
    """Any of the workers with the lowest cost, each as likely."""
    costs = [cost(worker) for worker in workers]
    lowest = min(costs)
    best = [worker for worker, found in zip(workers, costs, strict=True) if found == lowest]
    return best[0] if len(best) == 1 else random.choice(best)


class _Drawing(Policy):
    """Draws where load does not decide."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._random = Random(1)  # noqa: S311 - a draw of a simulation


class LeastTokens(_Drawing):
    """The worker with the fewest outstanding prompt tokens."""

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about load
        return least(self.fleet.prefills, lambda worker: worker.tokens, self._random)


class LeastRequests(_Drawing):
    """The worker with the fewest outstanding requests."""

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about load
        return least(self.fleet.prefills, lambda worker: worker.requests, self._random)


class PowerOfTwo(_Drawing):
    """Of two different workers, drawn at random, the one with fewer outstanding prompt tokens."""

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about load
        workers = self.fleet.prefills
        drawn = self._random.sample(workers, min(2, len(workers)))
        return min(drawn, key=lambda worker: worker.tokens)


class SessionSticky(LeastTokens):
    """A table of sessions; the first turn goes to the fewest tokens. Where the worker is gone the session moves."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._homes: dict[int, Worker] = {}

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:
        home = self._homes.get(turn.request.session)
        if home is None or home.index not in self.fleet.up:
            home = self._homes[turn.request.session] = super().choose(turn, now_s)
        return home
