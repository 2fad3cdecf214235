"""What breaks, where and when, drawn from a seed: pure, so that a seed names a run.

A fault begins when so many requests have ended, not at a time: a slow machine meets the same faults in the same order.
How long it lasts is in seconds, because so are the proxy's limits. Faults of one engine wait for each other.

    kill      SIGKILL, started again after `for_s`
    stop      SIGTERM, started again once it has ended
    freeze    SIGSTOP for `for_s`
    break     the engine breaks its next answers as `order` says (`POST /engine/faults`)
    drop      the network: all connections close as if in good order
    reset     the network: all connections are reset
    silence   the network: nothing passes for `for_s`, and nobody is told
    refuse    the network: no connection is accepted for `for_s`, those that are there are reset
    proxy     SIGKILL to the proxy, started again at once
"""

import random
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Kind = Literal["kill", "stop", "freeze", "break", "drop", "reset", "silence", "refuse", "proxy"]

PROXY_KILLS: Final = (0.15, 0.3)  # of the requests: the last generation serves most, so that growth would show
REQUESTS_PER_FAULT: Final = 60
QUIET_PART: Final = 0.04  # at the beginning and at the end
_WEIGHTS: Final = {"kill": 3, "stop": 2, "freeze": 3, "break": 5, "drop": 2, "reset": 2, "silence": 2, "refuse": 1}
_ORDERS: Final[tuple[dict[str, Any], ...]] = (
    {"fault": "slow", "delay_s": 0.5, "count": 10},
    {"fault": "slow", "delay_s": 3.0, "count": 3},
    {"fault": "hang", "count": 2},
    {"fault": "reset", "count": 4},
    {"fault": "cut", "count": 4},
    {"fault": "truncate", "count": 4},
    {"fault": "error_first", "count": 4},
    {"fault": "content_type", "count": 3},
    {"fault": "status", "status": 500, "count": 4},
    {"fault": "status", "status": 503, "count": 6},
    {"fault": "status", "status": 429, "count": 3},
    {"fault": "crash"},
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `order` for "break" alone, `engine` empty for "proxy"."""

    at: int
    kind: Kind
    engine: str
    for_s: float = 0.0
    order: dict[str, Any] | None = None

    def __str__(self) -> str:
        order = f" {self.order}" if self.order else ""
        return f"after {self.at}: {self.kind} {self.engine}{f' for {self.for_s} s' if self.for_s else ''}{order}"


def schedule(seed: int, requests: int, engines: list[str]) -> list[Fault]:
    """The faults of a run, in order. Each kind comes at least once."""
    draw = random.Random(f"faults {seed}")
    first, last = int(requests * QUIET_PART), int(requests * (1 - QUIET_PART))
    kinds = [kind for kind in get_args(Kind) if kind != "proxy"]
    more = max(0, requests // REQUESTS_PER_FAULT - len(kinds))
    kinds += draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=more)
    draw.shuffle(kinds)
    faults = [_fault(draw, kind, draw.randint(first, last), draw.choice(engines)) for kind in kinds]
    faults += [Fault(int(requests * part), "proxy", "") for part in PROXY_KILLS]
    return sorted(faults, key=lambda fault: fault.at)


def _fault(draw: random.Random, kind: Kind, at: int, engine: str) -> Fault:
    if kind == "break":
        order = dict(draw.choice(_ORDERS))
        if order["fault"] in {"reset", "cut", "truncate", "crash"}:
            order["after_events"] = draw.choice([0, 1, 2, 5, 12])
        return Fault(at, kind, engine, order=order)
    longest = {"kill": 2.0, "freeze": 7.0, "silence": 6.0, "refuse": 2.0}.get(kind)
    return Fault(at, kind, engine, round(draw.uniform(0.1, longest), 2) if longest else 0.0)
