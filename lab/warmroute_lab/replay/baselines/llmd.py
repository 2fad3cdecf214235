"""llm-d's default for shared prefixes: of the workers that have the prefix cached, the one with the fewest tokens.

Source: the filter `prefix-cache-affinity-filter` and the scorer `token-load-scorer` (github.com/llm-d/llm-d-router,
pkg/epp/framework/plugins/scheduling/filter/prefixcacheaffinity/plugin.go and .../scorer/tokenload/token_load.go, with
the loads of .../requestcontrol/dataproducer/inflightload).

The filter keeps the workers that have at least 0.8 of the prompt cached. If the least loaded of them is more than 18 s
slower than the least loaded of the others (in-flight tokens / prefill rate), or no worker has the prefix, the filter
keeps all workers. Of the kept workers, the scorer takes the one with the fewest tokens: those in flight there plus the
uncached ones of this request. Ties are broken at random, as llm-d's picker shuffles them. The uncached tokens of a
request, as estimated when it was routed, are in flight until its first token.

Here the router knows exactly what a worker has cached at each moment, and the rate is the model's own, not llm-d's
constant.
"""

from warmroute_lab.replay.baselines.load import Drawing
from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker

AFFINITY_THRESHOLD = 0.80
MAX_TTFT_PENALTY_S = 18.0


class LlmdAffinity(Drawing):
    """Workers that have the prefix, else the least load. With `in_flight`, routed prefixes count as cached."""

    def __init__(self, fleet: ReplayFleet, *, in_flight: bool = False) -> None:
        super().__init__(fleet)
        self._counts_in_flight = in_flight
        self._loads = [0] * len(fleet.workers)

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about state
        request = turn.request
        workers = self.fleet.prefills
        cached = {each: each.cached_tokens(request, in_flight=self._counts_in_flight) for each in workers}
        scored = {
            each: self._loads[each.index] + request.input_tokens - cached[each]
            for each in self._candidates(turn, cached)
        }
        least = min(scored.values())
        chosen = self._random.choice([each for each, score in scored.items() if score == least])
        turn.state = request.input_tokens - cached[chosen]
        self._loads[chosen.index] += turn.state
        return chosen

    def started(self, turn: ReplayTurn, now_s: float) -> None:  # noqa: ARG002 - as the base says
        assert turn.worker is not None
        self._loads[turn.worker.index] -= turn.state

    def lost(self, turn: ReplayTurn, now_s: float) -> None:
        if not turn.first_token_s:
            self.started(turn, now_s)

    def _candidates(self, turn: ReplayTurn, cached: dict[Worker, int]) -> list[Worker]:
        workers = list(cached)
        enough = AFFINITY_THRESHOLD * turn.request.input_tokens
        sticky = [each for each in workers if cached[each] >= enough]
        others = [each for each in workers if each not in sticky]
        if not sticky or not others:
            return workers
        penalty = min(self._loads[each.index] for each in sticky) - min(self._loads[each.index] for each in others)
        rate = workers[0].scheduler.costs.prefill_tokens_per_s
        return workers if penalty > MAX_TTFT_PENALTY_S * rate else sticky
