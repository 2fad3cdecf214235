"""SMG's (and sglang-router's) policy `cache_aware`, without KV events (`SmgApprox`) and with them (`SmgEvent`).

`SmgApprox` keeps a tree of the prefixes that were routed to each worker. Source: github.com/lightseekorg/smg, commit
73da68ca, model_gateway/src/policies/cache_aware.rs: `select_worker`, `is_imbalanced`, `select_worker_with_tokens`;
crates/kv_index: `match_and_insert_with`, `evict_tenant_by_size`.

Load is imbalanced if the request counts of the busiest and the idlest worker differ by more than a number and by more
than a factor. Then the worker with the fewest requests gets the request. Otherwise, if more than a share of the prompt
is in the tree, the worker that was last sent that prefix gets it; if not, the worker with the fewest requests. A tie
goes to the worker that has processed the fewest. In each case the tree then lists the prompt under the chosen worker,
cached there or not.

Share, number and factor are 0.5, 32 and 1.0001 in sglang-router's first release and in most comparisons (`FIRST`). The
command line of both gateways now has 0.3, 64 and 1.5 (model_gateway/src/main.rs; `CLI`). Every 120 s, SMG cuts the tree
to 2^26 characters over all workers, by the least recently used leaves first; here to 2^24 tokens, in blocks. The first
release limited each worker's part instead, which is left out: `FIRST` has no limit on its tree.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy
from warmroute_lab.replay.trace import Request

MAX_TREE_TOKENS: Final = 2**24
UNLIMITED: Final = 2**62
EVICT_EVERY_S: Final = 120.0


class Thresholds(NamedTuple):
    """The share that counts as a match, the number and factor of imbalance, and the tree's largest size."""

    cache: float
    balance_abs: int
    balance_rel: float
    tree_tokens: int


FIRST: Final = Thresholds(0.5, 32, 1.0001, UNLIMITED)
CLI: Final = Thresholds(0.3, 64, 1.5, MAX_TREE_TOKENS)


class RoutedTree:
    """Which prefixes were sent to which tenants, in blocks. A tenant (SMG's word) is a worker's index or a region's
    name."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._tenants: dict[int, dict[int | str, None]] = {}  # by block, last sent at the end
        self._sizes: OrderedDict[tuple[int, int | str], int] = OrderedDict()  # the least recently used first
        self.tokens = 0

    def match(self, request: Request, among: set[int | str]) -> tuple[int, int | str | None]:
        """The matched tokens, and the tenant of `among` that was last sent that prefix."""
        tokens, last_tenant = 0, None
        for block, size in self._path(request):
            tenant = next((name for name in reversed(self._tenants.get(block, {})) if name in among), None)
            if tenant is None:
                break
            tokens, last_tenant = tokens + size, tenant
        return tokens, last_tenant

    def insert(self, request: Request, tenant: int | str) -> None:
        for block, size in reversed(self._path(request)):  # the deepest block first: leaves are evicted first
            tenants = self._tenants.setdefault(block, {})
            if tenant not in tenants:
                self.tokens += size
            tenants.pop(tenant, None)
            tenants[tenant] = None
            self._sizes[block, tenant] = size
            self._sizes.move_to_end((block, tenant))

    def cut(self, max_tokens: int) -> None:
        """Forget the least recently used blocks until at most `max_tokens` are left."""
        while self.tokens > max_tokens:
            (block, tenant), size = self._sizes.popitem(last=False)
            self.tokens -= size
            del self._tenants[block][tenant]
            if not self._tenants[block]:
                del self._tenants[block]

    def _path(self, request: Request) -> list[tuple[int, int]]:
        full = request.input_tokens // self._block_tokens
        path = [(block, self._block_tokens) for block in request.blocks[:full]]
        if request.tail is not None:
            path.append((request.tail, request.input_tokens - full * self._block_tokens))
        return path


class _Smg(Policy):
    """Counts the requests that each worker has processed, to decide ties."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._processed = [0] * len(fleet.workers)

    def _busyness(self, worker: Worker) -> tuple[int, int]:
        return worker.requests, self._processed[worker.index]

    def _is_balanced(self, idlest: Worker, limits: Thresholds) -> bool:
        least, most = idlest.requests, max(worker.requests for worker in self.fleet.prefills)
        return most - least <= limits.balance_abs or most <= least * limits.balance_rel


class SmgApprox(_Smg):
    """The worker that was last sent enough of the prompt, while request counts are balanced."""

    def __init__(self, fleet: ReplayFleet, thresholds: Thresholds = FIRST) -> None:
        super().__init__(fleet)
        self._thresholds = thresholds
        self._tree = RoutedTree(fleet.workers[0].scheduler.page_size)
        self._evict_at_s = EVICT_EVERY_S

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:
        if now_s >= self._evict_at_s:
            self._tree.cut(self._thresholds.tree_tokens)
            self._evict_at_s = now_s - now_s % EVICT_EVERY_S + EVICT_EVERY_S
        workers, request, limits = self.fleet.prefills, turn.request, self._thresholds
        chosen = min(workers, key=self._busyness)
        if self._is_balanced(chosen, limits):
            matched, last_tenant = self._tree.match(request, {worker.index for worker in workers})
            if isinstance(last_tenant, int) and matched > limits.cache * request.input_tokens:
                chosen = self.fleet.workers[last_tenant]
        self._tree.insert(request, chosen.index)
        self._processed[chosen.index] += 1
        return chosen


def smg_approx_cli(fleet: ReplayFleet) -> SmgApprox:
    return SmgApprox(fleet, CLI)


# `SmgEvent`: the policy `cache_aware`, code path with KV events (github.com/lightseekorg/smg, commit 73da68ca,
# model_gateway/src/policies/cache_aware.rs: `select_worker`, `is_imbalanced`, `select_worker_event_driven`,
# `score_overlap`).
#
# If load is imbalanced by the thresholds `FIRST`, the choice is that of `SmgApprox`. Otherwise the worker with the most
# matching blocks gets the request; a tie goes to the worker with fewer requests. If no worker has a match, the choice
# is as under imbalance.
#
# KV events feed SMG's index; here the index is exact and always current. The triggers by KV usage are off, as by
# default. If overlap and requests are equal, the worker that has processed the fewest gets the request. In SMG, the
# worker with the smaller tree gets it, which makes the tail 10 % longer at low load: new conversations go to the worker
# that evicted last.


class SmgEvent(_Smg):
    """The worker with most of the prompt cached, while request counts are balanced. `in_flight`: prompts that were
    routed to a worker but not computed yet count as cached there."""

    def __init__(self, fleet: ReplayFleet, *, in_flight: bool = False) -> None:
        super().__init__(fleet)
        self._in_flight = in_flight

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about state
        workers = self.fleet.prefills
        chosen = min(workers, key=self._busyness)
        if self._is_balanced(chosen, FIRST):
            scores = [worker.cached_tokens(turn.request, in_flight=self._in_flight) for worker in workers]
            best = max(scores)
            if best:
                matching = [worker for worker, score in zip(workers, scores, strict=True) if score == best]
                chosen = min(matching, key=self._busyness)
        self._processed[chosen.index] += 1
        return chosen
