"""Counts the turns that wait for KV memory at other processes and proxies, so that new sessions wait everywhere.

While turns of running sessions wait, new sessions have to wait, too (`queue.door`). Each process announces, by model
and tenant, how many turns of running sessions wait for memory in its queue, and how many tokens all waiting turns of
the tenant need. The numbers are absolute and repeated every few seconds, so the next message makes up for a lost one. A
number that is not repeated for `KNOWN_S` is forgotten, and so are all numbers of a process that has gone.

Limit: `MAX_WAITS` tenants of each process.
"""

from typing import Final

import msgspec

MAX_WAITS: Final = 4096
KNOWN_S: Final = 15.0


class Waits(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="q"):
    """What waits for memory, of one tenant. `running`: turns of running sessions; `tokens`: what all its turns need."""

    model: str
    tenant: str
    running: int
    tokens: int


class WaitsElsewhere:
    """What waits at other processes, by process, model and tenant."""

    __slots__ = ("_by_peer", "_observed_s", "_running")

    def __init__(self) -> None:
        self._by_peer: dict[int, dict[tuple[str, str], Waits]] = {}
        self._observed_s: dict[tuple[int, str, str], float] = {}
        self._running: dict[str, int] = {}  # by model

    def observe(self, peer: int, waits: Waits, now_s: float) -> None:
        key, of_peer = (waits.model, waits.tenant), self._by_peer.setdefault(peer, {})
        before = of_peer.pop(key, None)
        self._add(waits.model, -(before.running if before is not None else 0))
        if (waits.running > 0 or waits.tokens > 0) and len(of_peer) < MAX_WAITS:
            of_peer[key] = waits
            self._observed_s[peer, *key] = now_s
            self._add(waits.model, waits.running)
        else:
            self._observed_s.pop((peer, *key), None)

    def expire(self, now_s: float) -> None:
        """Forget all numbers that were not repeated for `KNOWN_S`."""
        for peer, model, tenant in [
            key for key, observed_s in self._observed_s.items() if observed_s < now_s - KNOWN_S
        ]:
            self.observe(peer, Waits(model, tenant, 0, 0), now_s)

    def forget(self, peer: int) -> None:
        for waits in self._by_peer.pop(peer, {}).values():
            self._add(waits.model, -waits.running)
            self._observed_s.pop((peer, waits.model, waits.tenant), None)

    def running(self, model: str, tenant: str | None = None) -> int:
        """How many turns of running sessions wait for memory. `tenant`: None for all tenants."""
        if tenant is None or model not in self._running:
            return self._running.get(model, 0)
        return sum(waits.running for waits in self._of(model, tenant))

    def all_running(self) -> int:
        return sum(self._running.values())

    def needed(self, model: str, tenant: str) -> int:
        return sum(waits.tokens for waits in self._of(model, tenant))

    def tenants(self, model: str) -> set[str]:
        return {tenant for of_peer in self._by_peer.values() for each, tenant in of_peer if each == model}

    def _of(self, model: str, tenant: str) -> list[Waits]:
        return [waits for of_peer in self._by_peer.values() if (waits := of_peer.get((model, tenant))) is not None]

    def _add(self, model: str, running: int) -> None:
        left = self._running.get(model, 0) + running
        if left > 0:
            self._running[model] = left
        else:
            self._running.pop(model, None)
