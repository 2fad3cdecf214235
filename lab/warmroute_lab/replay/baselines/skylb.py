"""SkyLB, now SkyWalker: each region's balancer pushes requests to free replicas, in another region if need be.

Source: T. Xia et al., "SkyWalker: A Locality-Aware Cross-Region Load Balancer for LLM Inference", EuroSys 2026,
arXiv:2505.24095; github.com/skypilot-org/skypilot, sky/serve/load_balancer.py, `_queue_processor` and
`ClientPool.select_replica`, and sky/serve/load_balancing_policies.py, `PrefixTreePolicy`, branch of commit 5a267c21.

Each region has a balancer. *Selective pushing*: a replica gets a request only while it is free, that is, while its own
queue is empty. Of the free replicas of its region, the balancer takes the one that has more than half of the prompt in
the region's prefix tree, else the one with the fewest requests. If no replica of the region is free, the request goes
to a region that has a free one. The balancer takes the region that has more than half of the prompt in a tree of
regions, else the region to which it has pushed the fewest unfinished requests. There, too, the region's prefix tree and
the numbers of requests decide between the free replicas.

Differences: if no replica of any region is free, the source keeps the request in the balancer's queue until one is.
Here the request goes at once to the replica with the shortest queue in the request's region. The source asks every
0.1 s whether a queue is empty; here the balancer knows at once.
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
    """Pushes a turn to a free replica of the region that it came to, else of another region, chosen by prefix trees."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        block_tokens = fleet.workers[0].scheduler.page_size
        names = {worker.region for worker in fleet.workers}
        self._replicas = {name: RoutedTree(block_tokens) for name in names}
        self._regions = {name: RoutedTree(block_tokens) for name in names}
        self._pushed: Counter[tuple[str, str]] = Counter()  # unfinished requests, by (from region, to region)

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
