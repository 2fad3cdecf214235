"""The rows of the benchmark: the trace, fleet and baselines of each, and which rows are held back.

A row is one command of `warmroute replay`, which is run at several seeds: at each seed clients arrive at other times,
and a made-up trace is another one. A third of the rows, chosen by a hash of the row's name, is held back: no rule or
constant of the placement may be chosen by their results, nor by results of any row at one of `SEEDS`. For trials, use
the rows that are not held back, at `TRIAL_SEEDS`.
"""

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

OURS: Final = ("warmroute", "warmroute+events")
BASELINES: Final = ("llmd_affinity", "smg_event", "lmetric", "session_sticky", "prefix_hash", "dynamo_kv+scale16")
"""The published policies that come closest on any row. `policies.md` has all policies of `warmroute replay`."""
REGIONAL: Final = ("lmetric", "llmd_affinity", "smg_event")
"""The baselines inside regions. They do not know about regions."""

SEEDS: Final = (21, 22, 23, 24, 25)
"""The seeds of the page. They were first used after the last change of a placement rule."""
TRIAL_SEEDS: Final = (1, 2, 3, 4, 5)
HELD_BACK_OF: Final = 3

CONVERSATION: Final = "$TRACES/conversation_trace.jsonl.gz"
SYNTHETIC: Final = "$TRACES/synthetic_trace.jsonl.gz"
CLAUDE_CODE: Final = "$TRACES/claude_code_a.jsonl"


class Row(NamedTuple):
    """One row. `words` are the arguments of `warmroute replay`, without seed and policies.

    `label`: the name of a policy's result, since scenarios run a policy several times. `group`: the heading above the
    row. `is_agents`: whether the clients are agents, rather than people who chat.
    """

    name: str
    group: str
    words: tuple[str, ...]
    baselines: tuple[str, ...] = BASELINES
    label: str = "{policy}"
    is_agents: bool = True
    ours: tuple[str, ...] = OURS

    @property
    def policies(self) -> tuple[str, ...]:
        """All policies that are run on the row."""
        return (*self.ours, *self.baselines)

    @property
    def is_held_back(self) -> bool:
        """Whether no rule or constant may be chosen by the row's results."""
        return is_held_back(self.name)


def is_held_back(name: str) -> bool:
    """Return whether a hash of the name holds a row back."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % HELD_BACK_OF == 0


def _traffic(
    name: str, trace: tuple[str, ...], fleet: tuple[str, ...], loads: Iterable[int], *, agents: bool
) -> list[Row]:
    """Rows of one trace on one fleet, at several loads."""
    return [
        Row(f"{name}, {load}x", "Traces", (*trace, *fleet, "--speed-up", str(load)), is_agents=agents) for load in loads
    ]


def _made_up(name: str, workers: int, loads: Iterable[int], *fleet: str) -> list[Row]:
    words = ("--workers", str(workers), *fleet)
    return _traffic(f"{name}, N={workers}", ("--made-up", name), words, loads, agents=True)


def _on_fleets(group: str, suffix: str, *fleet: str) -> list[Row]:
    """Rows of one fleet with three kinds of agents."""
    kinds = {
        "Claude Code": (CLAUDE_CODE,),
        "toolagent 2x": ("--made-up", "toolagent", "--speed-up", "2"),
        "waves": ("--made-up", "waves"),
    }
    return [Row(f"{name}, {suffix}", group, (*trace, *fleet)) for name, trace in kinds.items()]


def _split(prefills: int, decodes: int) -> list[Row]:
    fleet, suffix = ("--workers", f"{prefills}:{decodes}"), f"{prefills}:{decodes} prefill:decode"
    return _on_fleets("Prefill and decode apart", suffix, *fleet)[:2]


ROWS: Final = (
    *_traffic("conversation, N=8", (CONVERSATION,), ("--workers", "8"), (1, 2, 4), agents=False),
    *_traffic("conversation, N=4", (CONVERSATION,), ("--workers", "4"), (4,), agents=False),
    *_traffic("synthetic, N=8", (SYNTHETIC,), ("--workers", "8"), (1, 2, 4), agents=False),
    *_made_up("toolagent", 8, (1, 2, 4)),
    *_made_up("bursty", 8, (1, 4)),
    *_made_up("inference-day", 16, (1, 4)),
    *_made_up("waves", 8, (1, 4)),
    *_made_up("short", 4, (1, 4), "--kv-tokens", "1M"),
    *(
        Row(
            f"Claude Code, N={workers}, {size} tokens a worker", "Caches of several sizes",
            (CLAUDE_CODE, "--workers", str(workers), "--kv-tokens", size),
        )
        for workers in (8, 16, 32)
        for size in ("10M", "3M", "1.5M", "1M")
    ),
    *_split(6, 2),
    *_split(5, 3),
    *_split(4, 4),
    *_on_fleets(
        "Workers that differ", "two of eight slow", "--fleet", "bench/placement/fleets/two-slow.toml",
        "--kv-tokens", "4M",
    ),
    *_on_fleets("Workers that come and go", "churn", "--change", "300:restart:3", "500:remove:2", "700:add:7"),
    *(
        Row(
            f"regions, header from {share} of sessions", "Regions", ("--scenario", "regions"), REGIONAL,
            f"{{policy}} inside, header from {share} of sessions",
        )
        for share in ("0%", "34%", "100%")
    ),
)  # fmt: skip
"""All rows, in the order of the page."""
