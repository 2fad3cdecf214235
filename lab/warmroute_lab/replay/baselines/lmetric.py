"""LMetric (D. Zhang et al., "LMetric: Simple is Better - Multiplication May Be All You Need for LLM Request
Scheduling", OSDI 2026, arXiv:2603.15202; the authors' github.com/blitz-serving/blitz-router, docs/dsl/policies.md,
`lmetric-q`, and docs/dsl/schema.md, commits 06a908f8 and c4e38340):

    least of prefill_tokens * (batch size + 1)

`prefill_tokens`: uncached tokens queued at the worker and those of this request. Batch size: requests running or
queued. A prompt is never cached whole, so the product is never 0. Ties go to any of the best.
"""

from random import Random

from warmroute_lab.replay.baselines.load import least
from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy


class LMetric(Policy):
    """The least product of prefill tokens and batch size."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._random = Random(1)  # noqa: S311 - a draw of a simulation

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about state
        request = turn.request

        def score(worker: Worker) -> int:
            prefill_tokens = worker.pending_tokens() + request.input_tokens - worker.cached_tokens(request)
            return prefill_tokens * (worker.requests + 1)

        return least(self.fleet.prefills, score, self._random)
