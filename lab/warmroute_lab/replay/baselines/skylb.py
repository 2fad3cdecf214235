"""SkyLB, now SkyWalker (T. Xia et al., "SkyWalker: A Locality-Aware Cross-Region Load Balancer for LLM Inference",
EuroSys 2026, arXiv:2505.24095; github.com/skypilot-org/skypilot, sky/serve/load_balancer.py, `_queue_processor` and
`ClientPool.select_replica`, and sky/serve/load_balancing_policies.py, `PrefixTreePolicy`, branch of commit 5a267c21).

A balancer in each region. *Selective pushing*: a replica is given a request only while no request waits in its own
queue. Of such replicas of the own region the one that the region's prefix tree knows more than half of the prompt of,
else the one with the fewest requests. Where the region has none, the request goes to another region that has: the one
that a tree of regions knows more than half of the prompt of, else the one where the fewest requests that it has pushed
are under way; the balancer there chooses as above.

What differs: where no replica anywhere is free, the source keeps the request in the balancer's queue until one is; a
replay's routers keep nothing back, so it goes to the replica of the own region with the shortest queue. Whether a queue
is empty is known at once, where the source asks every 0.1 s.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from warmroute_lab.replay.baselines.smg import MAX_TREE_TOKENS, RoutedTree
from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy
from warmroute_lab.replay.trace import Request

CACHE_THRESHOLD: Final = 0.5


class SkyLb(Policy):
    """Push if nothing waits: to the own region by its tree, else to another by the tree of regions."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        block_tokens = fleet.workers[0].scheduler.page_size
        names = {worker.region for worker in fleet.workers}
        self._replicas = {name: RoutedTree(block_tokens) for name in names}
        self._regions = {name: RoutedTree(block_tokens) for name in names}
        self._pushed: Counter[tuple[str, str]] = Counter()  # requests under way, by (from, to)

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about state
        request = turn.request
        workers = self.fleet.prefills
        here = turn.origin if turn.origin in self._replicas else workers[0].region
        free = [worker for worker in workers if not worker.scheduler.waiting]
        near = [worker for worker in free if worker.region == here]
        if near:
            chosen = self._replica(request, near)
        elif free:
            region = self._region(request, here, sorted({worker.region for worker in free}))
            chosen = self._replica(request, [worker for worker in free if worker.region == region])
        else:
            own = [worker for worker in workers if worker.region == here] or workers
            chosen = min(own, key=lambda worker: len(worker.scheduler.waiting))
        if chosen.region != here:
            _insert(self._regions[here], request, chosen.region)
        _insert(self._replicas[chosen.region], request, chosen.index)
        turn.state = here, chosen.region
        self._pushed[turn.state] += 1
        return chosen

    def ended(self, turn: ReplayTurn, now_s: float) -> None:  # noqa: ARG002 - part of the interface
        self._pushed[turn.state] -= 1

    def lost(self, turn: ReplayTurn, now_s: float) -> None:
        self.ended(turn, now_s)

    def _replica(self, request: Request, workers: Sequence[Worker]) -> Worker:
        matched, last_tenant = self._replicas[workers[0].region].match(request, {worker.index for worker in workers})
        if isinstance(last_tenant, int) and matched > CACHE_THRESHOLD * request.input_tokens:
            return self.fleet.workers[last_tenant]
        return min(workers, key=lambda worker: worker.requests)

    def _region(self, request: Request, here: str, regions: list[str]) -> str:
        matched, last_tenant = self._regions[here].match(request, set(regions))
        if isinstance(last_tenant, str) and matched > CACHE_THRESHOLD * request.input_tokens:
            return last_tenant
        return min(regions, key=lambda region: self._pushed[here, region])


def _insert(tree: RoutedTree, request: Request, tenant: int | str) -> None:
    tree.insert(request, tenant)
    tree.cut(MAX_TREE_TOKENS)
