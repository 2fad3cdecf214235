"""Policies that hash: the first blocks of a prompt, and consistent hashing with bounded loads.

`PrefixHash`: the worker is the hash of the first two blocks mod N (N workers). Prompts that share these blocks share a
worker, whatever follows.

`BoundedRing`: consistent hashing with bounded loads (V. Mirrokni, M. Thorup, M. Zadimoghaddam, arXiv:1608.01350). The
key is the session or the first two blocks. The policy takes the first worker clockwise of the key whose load, with this
request, is at most ceil(c * (all requests + 1) / N), c = 1.25. A load is the number of outstanding requests. Each
worker has 160 points on the ring.

`SmgPrefixHash`: SMG's `prefix_hash` (github.com/lightseekorg/smg, model_gateway/src/policies/prefix_hash.rs, commit
3adfd7d7): the ring's worker for the first 256 tokens or, if this worker has more than 1.25 times the mean number of
requests, the worker with the fewest. Here the key is the first block, since a trace knows no shorter prefix.
"""

from bisect import bisect_left
from collections.abc import Iterator
from math import ceil
from typing import Final

from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy
from warmroute_lab.replay.trace import Request, mixed

LOAD_FACTOR: Final = 1.25
POINTS: Final = 160
PREFIX_BLOCKS: Final = 2


def prefix_key(request: Request, blocks: int) -> int:
    """Identify a prompt by its first `blocks` blocks: the id of the last one, since an id depends on all blocks before
    it."""
    full = request.blocks[:blocks]
    if len(full) < blocks and request.tail is not None:
        return request.tail
    return full[-1] if full else request.session


class Ring:
    """Workers on a circle of hashes. If a worker comes or goes, only the keys of this worker move."""

    def __init__(self, workers: list[Worker], salt: int) -> None:
        self._salt = salt
        points = [
            (point, worker)
            for worker in workers
            for point in mixed(range(worker.index * POINTS, (worker.index + 1) * POINTS), salt)
        ]
        points.sort(key=lambda point: point[0])
        self._points = [point for point, _ in points]
        self._workers = [worker for _, worker in points]

    def walk(self, key: int) -> Iterator[Worker]:
        """The workers clockwise of a key, each once."""
        start = bisect_left(self._points, mixed([key], self._salt + 1)[0])
        seen: set[int] = set()
        for at in range(len(self._workers)):
            worker = self._workers[(start + at) % len(self._workers)]
            if worker.index not in seen:
                seen.add(worker.index)
                yield worker


class PrefixHash(Policy):
    """hash(first two blocks) mod N."""

    exact = False

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it looks at nothing
        workers = self.fleet.prefills
        return workers[mixed([prefix_key(turn.request, PREFIX_BLOCKS)], 0)[0] % len(workers)]


class _OnRing(Policy):
    """Keeps the workers on a ring."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._ring = Ring(fleet.prefills, 0)

    def changed(self, now_s: float) -> None:  # noqa: ARG002 - part of the interface
        self._ring = Ring(self.fleet.prefills, 0)


class BoundedRing(_OnRing):
    """Consistent hashing with bounded loads, by session or (`by_prefix`) by the first two blocks."""

    def __init__(self, fleet: ReplayFleet, *, by_prefix: bool = False) -> None:
        super().__init__(fleet)
        self._by_prefix = by_prefix

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - the policy looks at load, not at time
        workers = self.fleet.prefills
        limit = ceil(LOAD_FACTOR * (sum(worker.requests for worker in workers) + 1) / len(workers))
        key = prefix_key(turn.request, PREFIX_BLOCKS) if self._by_prefix else turn.request.session
        return next(worker for worker in self._ring.walk(key) if worker.requests < limit)


class SmgPrefixHash(_OnRing):
    """SMG's `prefix_hash`: the ring's worker up to 1.25 times the mean load, else the one with the fewest requests."""

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - the policy looks at load, not at time
        workers = self.fleet.prefills
        first = next(self._ring.walk(prefix_key(turn.request, 1)))
        total = sum(worker.requests for worker in workers)
        if not total or first.requests <= LOAD_FACTOR * (total + 1) / len(workers):
            return first
        return min(workers, key=lambda worker: worker.requests)
