"""Keeps recent prompts in memory, so that other engines can compute them before an engine is drained.

The last prompt of each lineage (conversation branch) is kept. Limits: `max_bytes` for all prompts together, divided by
tenant (`warmroute.contract.shares`): the tenant that has most loses its least recently used prompt first. A prompt is
dropped `MAX_AGE_S` after its last use, because by then its engine is about to evict it. Prompts below `MIN_BYTES` are
not stored at all, because any engine computes them in a fraction of a second. Bodies are held by reference, unchanged,
and are never written to disk.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from warmroute.contract.shares import Division
from warmroute_proxy.core.load.traffic import MEMORY_S
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

MIN_BYTES: Final = 16_384
MAX_AGE_S: Final = 600.0
_BYTES_PER_CUT: Final = 96  # a hash and an end, each an int object in a list


class HotPrompt:
    """One prompt: the request that contained it, without HTTP headers, and the worker that has the prompt cached."""

    __slots__ = ("body", "cache_worker", "dropped", "path", "routing", "salt", "size", "used_s", "wire_model")

    def __init__(
        self,
        routing: RoutingRequest,
        body: bytes,
        path: str,
        salt: str,
        wire_model: str | None,
        dropped: frozenset[str],
        cache_worker: str,
    ) -> None:
        """`wire_model`: the name to send if the client used an alias. `dropped`: members of the body to leave out."""
        self.routing = routing
        self.body = body
        self.path = path
        self.salt = salt
        self.wire_model = wire_model
        self.dropped = dropped
        self.cache_worker = cache_worker
        self.used_s = 0.0
        self.size = len(body) + _BYTES_PER_CUT * len(routing.chain.hashes)

    def heat(self, now_s: float) -> float:
        """The bytes to compute again if the prompt is lost, weighted by how likely the prompt is used again soon."""
        return len(self.body) * math.exp(min(0.0, self.used_s - now_s) / MEMORY_S)


class HotPrompts:
    """The newest prompt of each lineage."""

    def __init__(self, max_bytes: int) -> None:
        self.min_bytes = MIN_BYTES if max_bytes else 1 << 62
        """Shorter bodies are not stored, so a caller need not make a `HotPrompt` of them."""

        self.bytes = 0
        self._max_bytes = max_bytes
        self._by_lineage: OrderedDict[int, HotPrompt] = OrderedDict()  # least recently used first
        self._division: Division[int, HotPrompt] = Division(
            lambda _, prompt: prompt.routing.tenant, lambda _, prompt: prompt.size
        )

    def __len__(self) -> int:
        return len(self._by_lineage)

    def keep(self, prompt: HotPrompt, now_s: float) -> None:
        """Store the prompt of a served turn. It replaces the previous prompt of its lineage."""
        self.drop(prompt.routing.lineage)
        if prompt.size > self._max_bytes or len(prompt.body) < self.min_bytes:
            return
        prompt.used_s = now_s
        self._by_lineage[prompt.routing.lineage] = prompt
        self.bytes += prompt.size
        if self._division.begun or 2 * self.bytes > self._max_bytes:
            self._division.stored(prompt.routing.lineage, self._by_lineage)
            while self.bytes > self._max_bytes:
                self.drop(self._division.next_to_go())

    def drop(self, lineage: int) -> None:
        found = self._by_lineage.pop(lineage, None)
        if found is not None:
            self.bytes -= found.size
            self._division.discard(lineage)

    def expire(self, now_s: float) -> None:
        while self._by_lineage:
            oldest = next(iter(self._by_lineage.values()))
            if now_s - oldest.used_s <= MAX_AGE_S:
                return
            self.drop(oldest.routing.lineage)

    def hottest(self, cache_workers: Iterable[str], now_s: float) -> list[HotPrompt]:
        """The prompts that are cached at one of these workers, the hottest first."""
        wanted = frozenset(cache_workers)
        found = [prompt for prompt in self._by_lineage.values() if prompt.cache_worker in wanted]
        return sorted(found, key=lambda prompt: -prompt.heat(now_s))
