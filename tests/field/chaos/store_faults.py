"""What breaks where several proxies share stores: drawn from a seed, and carried out. As `schedule`, for stores.

kill      SIGKILL, started again after `for_s`
restart   ended in good order, and started again
freeze    SIGSTOP for `for_s`: connections stay open, and nothing answers
proxy     SIGKILL to one of the proxies, started again at once
"""

import asyncio
import random
from dataclasses import dataclass
from typing import Final, Literal

from tests.subjects.stores import Server

from .schedule import QUIET_PART

Kind = Literal["kill", "restart", "freeze", "proxy"]

STORES: Final = ("postgres", "redis")
OF_STORES: Final[tuple[Kind, ...]] = ("kill", "restart", "freeze")
REQUESTS_PER_FAULT: Final = 400
REQUESTS_PER_KILL: Final = 2_000
LONGEST_S: Final = 4.0
"""Longer than a lease is waited for, and for Redis long enough that its deadline ends many calls."""


@dataclass(frozen=True, slots=True)
class StoreFault:
    """One fault, after so many requests have ended. `target`: a store, or the number of a proxy."""

    at: int
    kind: Kind
    target: str
    for_s: float = 0.0

    def __str__(self) -> str:
        return f"after {self.at}: {self.kind} {self.target}{f' for {self.for_s} s' if self.for_s else ''}"


def store_schedule(seed: int, requests: int, proxies: int) -> list[StoreFault]:
    """The faults of a run, in order. Each store meets each kind, and at least one proxy is killed."""
    draw = random.Random(f"stores {seed}")
    first, last = int(requests * QUIET_PART), int(requests * (1 - QUIET_PART))
    both = [(kind, store) for kind in OF_STORES for store in STORES]
    both += draw.choices(both, k=max(0, requests // REQUESTS_PER_FAULT - len(both)))
    faults = [
        StoreFault(draw.randint(first, last), kind, store, 0.0 if kind == "restart" else _seconds(draw))
        for kind, store in both
    ]
    kills = max(1, requests // REQUESTS_PER_KILL)
    faults += [StoreFault(draw.randint(first, last), "proxy", str(draw.randrange(proxies))) for _ in range(kills)]
    return sorted(faults, key=lambda fault: fault.at)


def away_schedule(requests: int, away_s: float) -> list[StoreFault]:
    """One fault: the database is gone for a long time."""
    return [StoreFault(requests // 10, "kill", "postgres", away_s)]


def _seconds(draw: random.Random) -> float:
    return round(draw.uniform(0.5, LONGEST_S), 2)


async def strike(server: Server, fault: StoreFault) -> None:
    """Carry out a fault of a store, and mend it."""
    if fault.kind == "freeze":
        server.freeze()
        await asyncio.sleep(fault.for_s)
        server.thaw()
        return
    await asyncio.to_thread(server.kill if fault.kind == "kill" else server.end)
    await asyncio.sleep(fault.for_s)
    await asyncio.to_thread(server.start)
