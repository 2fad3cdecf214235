"""What breaks, where, and for how many turns, drawn from a seed: pure, so that a seed names a run.

A fault begins when so many turns have ended since the fleet was whole again, and ends after so many more, not at a
time: a slow machine meets the same faults in the same order. The next one waits until the fleet is whole.

    partition  all lines of a region to the other regions are down; its clients still reach it
    cut        the line between two regions is down
    one_way    nothing passes from one region to another; the other direction is whole
    loss       30 % of the packets that come from a region are lost
    slow       2 s pass in each direction between a region and the others
    gray       2 s pass in one direction between two regions
    lost       all processes of a region are killed, and start again with empty caches
    drain      its proxies end in good order, one after the other, and start again, as in an upgrade
    overload   its engines hold answers back for a second: turns go elsewhere, and come back
    upgrade    its proxies, of another commit until then, are replaced by this one's, one after the other
    leave      it leaves the fleet: its proxies end, the others forget it; and it joins again
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

Kind = Literal["partition", "cut", "one_way", "loss", "slow", "gray", "lost", "drain", "overload", "leave", "upgrade"]
KINDS: Final[tuple[Kind, ...]] = tuple(kind for kind in get_args(Kind) if kind != "upgrade")
"""Those of any run; an upgrade is the end of one with two versions."""

CALM_TURNS: Final = 50
FAULT_TURNS: Final = 40
SETTLE_TURNS: Final = 60
"""After a fault, until turns count as calm again."""

LOSS_PERCENT: Final = 30
LOSS_TURNS: Final = 10
"""So many turns at least enter at the region that loses packets, while it does."""

CLOCKS_APART_S: Final = 5.0

OF_LINES: Final[frozenset[Kind]] = frozenset({"cut", "one_way", "gray"})
"""Faults between two regions; the others are of one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `other` is empty where it is of one region."""

    kind: Kind
    region: str
    other: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.region}{f' {self.other}' if self.other else ''}"


def schedule(seed: int, regions: Sequence[str], kinds: Sequence[Kind] = KINDS) -> list[Fault]:
    """The faults of a run, in order: each kind once. The database's region, the first, does not leave."""
    draw = random.Random(f"regions {seed}")
    found = []
    for kind in draw.sample(list(kinds), len(kinds)):
        region, other = draw.sample(list(regions[1:] if kind == "leave" else regions), 2)
        found.append(Fault(kind, region, other if kind in OF_LINES else ""))
    return found


def clocks_ahead_s(seed: int, regions: Sequence[str]) -> dict[str, float]:
    """By how much the clock of each region is ahead: two of them are `CLOCKS_APART_S` apart."""
    draw = random.Random(f"clocks {seed}")
    ahead_s = [0.0, CLOCKS_APART_S, *(draw.uniform(0.0, CLOCKS_APART_S) for _ in regions[2:])]
    draw.shuffle(ahead_s)
    return dict(zip(regions, ahead_s, strict=True))
