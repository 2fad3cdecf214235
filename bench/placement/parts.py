"""The parts: simulations that are run once, each by one command, for the pages beside the main page."""

from pathlib import Path
from typing import Final, NamedTuple

PRODUCTION: Final = "warmroute"
QUEUE: Final = "warmroute+queue"
STRONG: Final = (
    "session_hash", "session_sticky", "prefix_hash", "chwbl_session", "smg_approx", "smg_event", "smg_event+in_flight",
    "dynamo_kv", "dynamo_kv+scale16", "llmd_affinity", "llmd_affinity+in_flight", "preble_e2", "lmetric",
    "dualmap_no_rebalance",
)  # fmt: skip
"""Baselines that use sessions or caches. Other policies are far worse on all traces whose prompts share anything."""
REFERENCE: Final = ("round_robin", "session_hash", "smg_event", "llmd_affinity")
CURVE: Final = (*REFERENCE, "least_tokens", "smg_approx", "dynamo_kv", "preble_e2", "lmetric")

CONVERSATION: Final = "conversation_trace.jsonl.gz"
SYNTHETIC: Final = "synthetic_trace.jsonl.gz"
CLAUDE_CODE: Final = "claude_code_a.jsonl"


class Part(NamedTuple):
    """One command: its trace (a file of the traces' folder, or options), fleet, policies and loads.

    If `policies` is empty, the command runs a scenario.
    """

    name: str
    title: str
    what: tuple[str, ...]
    fleet: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    loads: tuple[float, ...] = ()

    @property
    def trace(self) -> str | None:
        """The trace's file; None if the trace is generated."""
        return None if self.what[0].startswith("-") else self.what[0]

    def words(self, traces: str) -> list[str]:
        """The arguments of `warmroute replay`."""
        what = [str(Path(traces) / self.trace)] if self.trace else list(self.what)
        words = [*what, *self.fleet]
        if self.policies:
            words += ["--policy", *self.policies, "--speed-up", *(f"{load:g}" for load in self.loads)]
        return words


def _waiting(name: str, title: str, what: tuple[str, ...], fleet: tuple[str, ...], load: float) -> Part:
    return Part(f"waiting-{name}", title, what, fleet, (PRODUCTION, QUEUE), (load,))


def _made_up(name: str, workers: int, *fleet: str) -> Part:
    title = f"{name}, N={workers}"
    fleet = ("--workers", str(workers), *fleet)
    return Part(name, title, ("--made-up", name), fleet, (PRODUCTION, *STRONG), (1, 4))


PARTS: Final = (
    Part("claude-code", "Claude Code sessions, N=16", (CLAUDE_CODE,), ("--workers", "16"), ("all",), (1,)),
    Part("conversation-8", "conversation, N=8", (CONVERSATION,), ("--workers", "8"), ("all",), (1, 2, 4)),
    _made_up("inference-day", 16),
    _made_up("waves", 8),
    Part("pd", "Prefill and decode apart", ("--scenario", "pd")),
    Part("conversation-4", "conversation, N=4", (CONVERSATION,), ("--workers", "4"), ("all",), (4,)),
    Part("conversation-4-below", "conversation, N=4", (CONVERSATION,), ("--workers", "4"), REFERENCE, (1, 2)),
    Part(
        "conversation-8-loads", "conversation, N=8", (CONVERSATION,), ("--workers", "8"), (PRODUCTION, *CURVE),
        (0.5, 3, 5),
    ),
    _made_up("toolagent", 8),
    _made_up("bursty", 8),
    _made_up("short", 4, "--kv-tokens", "1M"),
    Part("synthetic-8", "synthetic, N=8", (SYNTHETIC,), ("--workers", "8"), ("all",), (1, 2, 4)),
)  # fmt: skip
"""All parts, those with the longest run first."""

WAITING: Final = (
    _waiting("slots", "bursty, N=8, 32 at once", ("--made-up", "bursty"), ("--workers", "8", "--max-running", "32"), 1),
    _waiting("memory", "bursty, N=8", ("--made-up", "bursty"), ("--workers", "8"), 4),
    _waiting("agents", "Claude Code sessions, N=16, 6 at once", (CLAUDE_CODE,),
             ("--workers", "16", "--max-running", "6"), 1),
    _waiting("overload", "conversation, N=4", (CONVERSATION,), ("--workers", "4"), 4),
)  # fmt: skip
"""Parts with more requests than engines can run at once, which show who waits, and in which queue."""

SPEED: Final = (
    Part("speed-conversation", "conversation, twice", (CONVERSATION,), ("--workers", "8"), (PRODUCTION,), (1,)),
    Part("speed-claude-code", "Claude Code sessions", (CLAUDE_CODE,), ("--workers", "16"), (PRODUCTION,), (1,)),
)
"""Parts whose speed is measured, one by one and each in a separate process."""
