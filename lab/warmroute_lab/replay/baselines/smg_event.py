"""SMG's `cache_aware` policy, path with KV events (github.com/lightseekorg/smg, commit 73da68ca,
model_gateway/src/policies/cache_aware.rs: `select_worker`, `is_imbalanced`, `select_worker_event_driven`,
`score_overlap`).

Imbalanced means that the request counts of the busiest and the idlest worker differ by more than 32 and by more than a
factor of 1.0001: then the worker with the fewest requests, of equal ones the one that has processed fewest. Else the
worker with the most matching blocks, of equal ones the one with fewer requests. Without any match as if imbalanced.

Its index is fed by KV events; here it is exact and of this instant. The triggers by KV usage are off, as by default.
What still ties after overlap and requests goes to the worker that has processed fewest (there, to the one with the
smaller tree, which at low load makes the tail 10 % longer: new conversations go to the worker that evicted last).
"""

from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy

BALANCE_ABS = 32
BALANCE_REL = 1.0001


class SmgEvent(Policy):
    """Best overlap while request counts are balanced. `in_flight`: routed, unfinished prefixes count as cached."""

    def __init__(self, fleet: ReplayFleet, *, in_flight: bool = False) -> None:
        super().__init__(fleet)
        self._in_flight = in_flight
        self._processed = [0] * len(fleet.workers)

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about state
        workers = self.fleet.prefills
        processed = self._processed

        def busyness(worker: Worker) -> tuple[int, int]:
            return worker.requests, processed[worker.index]

        least = min(workers, key=busyness)
        most = max(worker.requests for worker in workers)
        chosen = least
        if most - least.requests <= BALANCE_ABS or most <= least.requests * BALANCE_REL:
            scores = [worker.cached_tokens(turn.request, in_flight=self._in_flight) for worker in workers]
            best = max(scores)
            if best:
                matching = [worker for worker, score in zip(workers, scores, strict=True) if score == best]
                chosen = min(matching, key=busyness)
        processed[chosen.index] += 1
        return chosen
