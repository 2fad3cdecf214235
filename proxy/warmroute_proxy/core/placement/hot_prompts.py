"""The last prompts of hot lineages, in memory, so that they can be computed elsewhere before their home goes.

Newest first: what makes room is what was used least lately. Limits: `max_bytes` of all together, `MAX_AGE_S` since the
last use (then the lineage is cold, and the engine that had it is about to evict it), and prompts below `MIN_BYTES` are
not kept at all, since computing them takes a fraction of a second wherever their next turn goes. They are held by
reference, as they came, and nothing writes them anywhere.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from warmroute_proxy.core.load.traffic import MEMORY_S
from warmroute_proxy.core.prompt.facts import Facts

MIN_BYTES: Final = 16_384
MAX_AGE_S: Final = 600.0
_BYTES_PER_CUT: Final = 96  # a hash and an end, each an integer of its own in a list


class KeptPrompt:
    """One prompt: the request that brought it, without its head, and the worker that has it cached."""

    __slots__ = ("body", "cache_worker", "facts", "path", "salt", "size", "tagged", "used_s", "wire_model")

    def __init__(
        self,
        facts: Facts,
        body: bytes,
        path: str,
        salt: str,
        wire_model: str | None,
        *,
        tagged: bool,
        cache_worker: str,
    ) -> None:
        """`wire_model`: the name to send where the client used an alias; `tagged`: it is one prompt, not a list."""
        self.facts = facts
        self.body = body
        self.path = path
        self.salt = salt
        self.wire_model = wire_model
        self.tagged = tagged
        self.cache_worker = cache_worker
        self.used_s = 0.0
        self.size = len(body) + _BYTES_PER_CUT * len(facts.chain.hashes)

    def heat(self, now_s: float) -> float:
        """What there is to lose, in bytes to compute again, by how likely it is to be asked for again soon."""
        return len(self.body) * math.exp(min(0.0, self.used_s - now_s) / MEMORY_S)


class KeptPrompts:
    """The newest prompt of each lineage."""

    def __init__(self, max_bytes: int) -> None:
        self.min_bytes = MIN_BYTES if max_bytes else 1 << 62
        """Shorter bodies are not kept: for a caller to compare before anything is made."""

        self.bytes = 0
        self._max_bytes = max_bytes
        self._by_lineage: OrderedDict[int, KeptPrompt] = OrderedDict()  # least lately used first

    def __len__(self) -> int:
        return len(self._by_lineage)

    def keep(self, prompt: KeptPrompt, now_s: float) -> None:
        """A turn was served: its prompt takes the place of the last one of its lineage."""
        self.drop(prompt.facts.lineage)
        if prompt.size > self._max_bytes or len(prompt.body) < self.min_bytes:
            return
        prompt.used_s = now_s
        self._by_lineage[prompt.facts.lineage] = prompt
        self.bytes += prompt.size
        while self.bytes > self._max_bytes:
            self.drop(next(iter(self._by_lineage)))

    def drop(self, lineage: int) -> None:
        """Forget one."""
        found = self._by_lineage.pop(lineage, None)
        if found is not None:
            self.bytes -= found.size

    def expire(self, now_s: float) -> None:
        """Forget what has become cold."""
        while self._by_lineage:
            oldest = next(iter(self._by_lineage.values()))
            if now_s - oldest.used_s <= MAX_AGE_S:
                return
            self.drop(oldest.facts.lineage)

    def hottest(self, cache_workers: Iterable[str], now_s: float) -> list[KeptPrompt]:
        """What these workers have, the hottest first."""
        wanted = frozenset(cache_workers)
        found = [prompt for prompt in self._by_lineage.values() if prompt.cache_worker in wanted]
        return sorted(found, key=lambda prompt: -prompt.heat(now_s))
