"""Cloudflare's step from 60 % to 80 %: agents on four regions, and a header that names the session.

Cloudflare wrote on 16 April 2026 that the share of cached input tokens rose from 60 % to 80 % at peak times when its
heaviest users adopted a session affinity header, which sends a session to the region that has its tensors. Inside a
region they place by KV cache already. Not all traffic adopted it, and the baseline was not random.

Here: 4 regions of 4 replicas with 3.5M KV tokens each; 1,200 agents that start within an hour; each turn comes in at
any region. Without the header a turn stays where it came in, and its region finds what is left of the context of some
turns ago: every region has to hold every session, so the KV cache is four times too small. With it, the proxy forwards
the turn to where the session lives. The first quarter of the arrivals warms the caches up and is left out.

The same with other placements inside the regions, which know nothing of them: with the header a turn comes in at the
session's region by itself, over the same network. That tells the gain of the header from the gain of the placement. How
much fits in the caches decides where all of this lies.
"""

from dataclasses import replace
from typing import Final

from warmroute_lab.replay.agents import Agents, agents_trace
from warmroute_lab.replay.scenarios.scenario import Run, Scenario
from warmroute_lab.replay.setup import Setup

SHARES: Final = (0.0, 0.34, 1.0)
"""Of the sessions, those that send the header."""
BLIND: Final = ("random", "least_tokens")
INSIDE: Final = ("lmetric", "llmd_affinity", "smg_event")
ACROSS: Final = ("warmroute", "warmroute+events")
AGENTS: Final = Agents()
REPLICAS: Final = 4
KV_TOKENS: Final = 3_500_000
RTT_S: Final = 0.1
SKIP_SHARE: Final = 0.25


def setup(naming_share: float, replicas: int = REPLICAS) -> Setup:
    """The fleet, when that share of the sessions sends the header."""
    return Setup(
        prefills=replicas, kv_tokens=KV_TOKENS, regions=4, rtt_s=RTT_S, each_turn=True, naming_share=naming_share,
        skip_share=SKIP_SHARE,
    )  # fmt: skip


def scenario(agents: Agents = AGENTS, replicas: int = REPLICAS) -> Scenario:
    """All runs of the table; other `agents` and `replicas` are for tests."""
    trace = agents_trace(agents, "agents")
    runs = [Run(f"any region, {name} inside", name, setup(0.0, replicas)) for name in BLIND]
    for name in (*INSIDE, *ACROSS):
        for share in SHARES:
            fleet = setup(share, replicas) if name in ACROSS else replace(setup(0.0, replicas), home_share=share)
            runs.append(Run(f"{name} inside, header from {share:.0%} of sessions", name, fleet))
    notes = (
        f"Hit ratio with one cache that never forgets: {trace.ceiling():.3f}.",
        "After Cloudflare's report of 16 April 2026: 60 % to 80 % cached input when heavy users sent the header.",
    )
    return Scenario(trace, tuple(runs), notes)
