"""Preble's E2, "exploitation and exploration": a worker with most of the prompt cached, else one with little load.

Source: V. Srivatsa et al., "Preble: Efficient Distributed Prompt Scheduling for LLM Serving", ICLR 2025,
arXiv:2407.00023, section 3.2; github.com/WukLab/preble, multi_node/global_scheduler_with_time.py: `runtime_selector`,
`calculate_min_load_cost`, `handle_important_node_stealing`; checked against the two ports,
github.com/vllm-project/aibrix, pkg/plugins/gateway/algorithms/prefix_cache_preble.go, commit 0338af7d, and
github.com/blitz-serving/blitz-router, docs/preble-design.md, commit 2ee7df69.

    load       sum of (prefill time of what was not cached + decode time) over requests given in the last 3 minutes
    exploit    if more of the prompt is cached than not: the least loaded of the workers with the longest prefix
    explore    otherwise: the worker with the least load + prefill time of what is not cached there
    rebalance  from 50 requests per worker on, while the most loaded worker has over 1.5 times the load of the least
               loaded one: requests that would go to the most loaded by "exploit" go to the least loaded

The decode time of a request is the mean answer length in the window (45 tokens before the first answer, as in the
source) times the median time per token over the last 200 answers (0.15 s before the first).

Differences: Preble keeps a tree of the prefixes that it has routed to each worker. Here a prefix counts if the worker
has it cached or was given it to compute, so it is never out of date. Prefill times are those of the replayed model; the
source has fits for one model on one GPU. The cost of evicting (the paper's M) is 0, as in the code with its defaults.
The worker-side scheduler (priorities by hit ratio) is not part of a router, so it is left out.
"""

from collections import deque
from statistics import median
from typing import Final

from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy

WINDOW_S: Final = 180.0
IMBALANCE: Final = 1.5
REBALANCE_FROM: Final = 50
"""Requests per worker before rebalancing begins."""
ANSWER_TOKENS_PRIOR: Final = 45
TOKEN_S_PRIOR: Final = 0.15
TOKEN_TIMES: Final = 200


class PrebleE2(Policy):
    """Exploits a prefix that is most of the prompt, else explores; rebalances if loads are too uneven."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._window: deque[tuple[float, int, float]] = deque()  # (time, worker, prefill seconds)
        self._prefill_s = [0.0] * len(fleet.workers)
        self._count = [0] * len(fleet.workers)
        self._given = 0
        self._answers: deque[tuple[float, int]] = deque()
        self._answer_tokens = 0
        self._token_s: deque[float] = deque([TOKEN_S_PRIOR], maxlen=TOKEN_TIMES)
        self._median_token_s = TOKEN_S_PRIOR

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:
        self._forget(now_s)
        workers, request = self.fleet.prefills, turn.request
        cached = {worker.index: worker.cached_tokens(request, in_flight=True) for worker in workers}
        longest = max(cached.values())
        if longest > request.input_tokens - longest:
            chosen = min((worker for worker in workers if cached[worker.index] == longest), key=self.load_s)
            chosen = self._rebalanced(chosen)
        else:
            tokens = request.input_tokens
            chosen = min(workers, key=lambda each: self.load_s(each) + _prefill_s(each, tokens, cached[each.index]))
        self._give(chosen, _prefill_s(chosen, request.input_tokens, cached[chosen.index]), now_s)
        return chosen

    def ended(self, turn: ReplayTurn, now_s: float) -> None:
        tokens = turn.request.output_tokens
        self._answers.append((now_s, tokens))
        self._answer_tokens += tokens
        if tokens > 1:
            self._token_s.append((now_s - turn.first_token_s) / (tokens - 1))
            self._median_token_s = median(self._token_s)

    def _rebalanced(self, chosen: Worker) -> Worker:
        workers = self.fleet.prefills
        if self._given < REBALANCE_FROM * len(workers):
            return chosen
        lightest = min(workers, key=self.load_s)
        is_heaviest = self.load_s(chosen) == max(map(self.load_s, workers))
        return lightest if is_heaviest and self.load_s(chosen) > IMBALANCE * self.load_s(lightest) else chosen

    def load_s(self, worker: Worker) -> float:
        """Prefill and decode time of the requests that the worker was given in the window."""
        answer = self._answer_tokens / len(self._answers) if self._answers else ANSWER_TOKENS_PRIOR
        return self._prefill_s[worker.index] + self._count[worker.index] * answer * self._median_token_s

    def _give(self, worker: Worker, prefill_s: float, now_s: float) -> None:
        self._window.append((now_s, worker.index, prefill_s))
        self._prefill_s[worker.index] += prefill_s
        self._count[worker.index] += 1
        self._given += 1

    def _forget(self, now_s: float) -> None:
        while self._window and self._window[0][0] < now_s - WINDOW_S:
            _, index, prefill_s = self._window.popleft()
            self._prefill_s[index] -= prefill_s
            self._count[index] -= 1
        while self._answers and self._answers[0][0] < now_s - WINDOW_S:
            self._answer_tokens -= self._answers.popleft()[1]


def _prefill_s(worker: Worker, input_tokens: int, cached_tokens: int) -> float:
    return (input_tokens - cached_tokens) / worker.scheduler.costs.prefill_tokens_per_s
