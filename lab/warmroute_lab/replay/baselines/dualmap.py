"""DualMap without rebalancing: of two workers that the prompt's start names, the one with more of the prompt cached.

Source: Y. Yuan et al., "DualMap: Enabling Both Cache Affinity and Load Balancing for Distributed LLM Serving", ICLR
2026, arXiv:2602.06502, sections 3.2 and 3.4; checked against github.com/vllm-project/aibrix,
pkg/plugins/gateway/algorithms/dualmap.go, commit 9c8981ea: `addRequestToBestGlobalQueue`, `lazyExpansionController`.

Two hashes of the start of the prompt name two workers, each on a separate hash ring. If both hashes name one worker,
the next worker in the list is the second. The worker that has cached more of the prompt, or is computing more of it,
gets the request; if both have equally much, the less loaded one. If this worker cannot compute its pending tokens and
this request's within the SLO (5 s, as in the paper's experiments), the request goes to the worker with the earlier
expected first token.

The start of the prompt is two blocks, which the paper finds for 95 % of the conversation trace. If more than 2/N of the
last 200 requests share this start (N workers), one more block is hashed, and so on; if fewer than 1/N do, one block
less.

Left out is the rebalancing of section 3.3: if both workers are overloaded, requests that wait in the router's queue
move to their other worker. Here requests do not wait at the router. The result is the paper's ablation "no rebalance".
"""

from collections import Counter, deque
from typing import Final

from warmroute_lab.replay.baselines.hashing import Ring
from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy
from warmroute_lab.replay.trace import Request

SLO_S: Final = 5.0
START_BLOCKS: Final = 2
WINDOW: Final = 200
MIN_SAMPLES: Final = 20
_SALTS: Final = (11, 23)


class HotPrefixes:
    """How many blocks of a prompt are hashed: more if many recent requests share them."""

    def __init__(self) -> None:
        self._extended: set[int] = set()
        self._window: deque[list[int]] = deque()
        self._counts: Counter[int] = Counter()

    def key(self, request: Request, block_tokens: int, workers: int) -> int:
        """The id of the prompt's start, for the rings to hash. Counts the request among the recent ones."""
        blocks = request.blocks[: request.input_tokens // block_tokens]
        if request.tail is not None:
            blocks = [*blocks, request.tail]
        blocks = blocks or [request.session]
        depth = min(START_BLOCKS, len(blocks))
        while depth < len(blocks) and blocks[depth - 1] in self._extended:
            depth += 1
        self._observe(blocks[:depth])
        recent = len(self._window)
        if recent >= MIN_SAMPLES:
            if self._counts[blocks[depth - 1]] > 2 * recent / workers:
                self._extended.add(blocks[depth - 1])
            if depth > START_BLOCKS and self._counts[blocks[depth - 2]] < recent / workers:
                self._extended.discard(blocks[depth - 2])
        return blocks[depth - 1]

    def _observe(self, blocks: list[int]) -> None:
        self._window.append(blocks)
        self._counts.update(blocks)
        if len(self._window) > WINDOW:
            for block in self._window.popleft():
                self._counts[block] -= 1
                if not self._counts[block]:
                    del self._counts[block]


class DualMap(Policy):
    """Of the two workers that the prompt's start names, the one with more of the prompt cached, if it meets the SLO."""

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._hot = HotPrefixes()
        self._rings = [Ring(fleet.prefills, salt) for salt in _SALTS]

    def changed(self, now_s: float) -> None:  # noqa: ARG002 - part of the interface
        self._rings = [Ring(self.fleet.prefills, salt) for salt in _SALTS]

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker:  # noqa: ARG002 - it is about state
        workers, request = self.fleet.prefills, turn.request
        key = self._hot.key(request, workers[0].scheduler.page_size, len(workers))
        first, second = (next(ring.walk(key)) for ring in self._rings)
        if first is second:
            second = workers[(workers.index(first) + 1) % len(workers)]
        cached = {each: each.cached_tokens(request, in_flight=True) for each in (first, second)}
        ahead = {each: each.pending_tokens() for each in cached}
        wait_s = {
            each: (ahead[each] + request.input_tokens - cached[each]) / each.scheduler.costs.prefill_tokens_per_s
            for each in cached
        }
        warmer = min(cached, key=lambda each: (-cached[each], ahead[each]))
        return warmer if wait_s[warmer] <= SLO_S else min(cached, key=lambda each: wait_s[each])
