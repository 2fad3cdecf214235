"""Defines what requests can be placed on: the workers of this region, and the peer regions.

A worker is one data-parallel rank of one engine, because each rank has a prefix cache of its own. A peer region is
treated as one worker, `region:<name>`, because this proxy does not know its single workers.
"""

from dataclasses import dataclass
from typing import Final

from warmroute_proxy.core.base.role import Role

ANY_MODEL: Final = frozenset({"*"})


@dataclass(frozen=True, slots=True)
class Worker:
    """One rank of one engine of this region.

    `host_cache`: whether it keeps in host memory what it drops from the device. `store`: the name of the store that it
    writes through to and reads from, if any; workers with equal names share the store. `max_running`: how many requests
    it may run at once, whatever the engine reports. `page_tokens`: the page size of its cache, which holds only whole
    pages.
    """

    id: str
    engine: str
    dp_rank: int
    role: Role
    models: frozenset[str] = ANY_MODEL
    host_cache: bool = False
    store: str | None = None
    max_running: int | None = None
    page_tokens: int = 1

    def serves(self, model: str) -> bool:
        """Whether requests for `model` may be sent here."""
        return "*" in self.models or model in self.models


@dataclass(frozen=True, slots=True)
class Peer:
    """Another region. `models`: `{"*"}` if it is not known here which models its engines serve."""

    region: str
    rtt_s: float
    models: frozenset[str] = ANY_MODEL

    def serves(self, model: str) -> bool:
        """Whether requests for `model` may be forwarded there."""
        return "*" in self.models or model in self.models


def peer_id(region: str) -> str:
    return f"region:{region}"
