"""Cloudflare's step from 60 % to 80 %: agents on four regions, and a header that names the session.

Cloudflare wrote on 16 April 2026 that the share of cached input tokens rose from 60 % to 80 % at peak times when its
heaviest users adopted a session affinity header, which sends a session to the region that has its tensors. Inside a
region they place by KV cache already. Not all traffic adopted it, and the baseline was not random.

Here: 4 regions of 4 replicas with 3.5M KV tokens each; 1,200 agents that start within an hour; each turn comes in at
any region. Without the header a turn stays where it came in, and its region finds what is left of the context of some
turns ago: every region has to hold every session, so the KV cache is four times too small. With it, the proxy forwards
the turn to where the session lives. The first quarter of the arrivals warms the caches up and is left out.

The same with another placement inside the regions, LMetric's, which knows nothing of them: with the header a turn
comes in at the session's region by itself. It gives the published pair; that the production placement is above it
without the header and with it is its own doing. How much fits in the caches decides where all of this lies.
"""

from dataclasses import replace
from typing import Final

from warmroute_proxy.replay.agents import Agents, agents_trace
from warmroute_proxy.replay.scenarios.scenario import Run, Scenario
from warmroute_proxy.replay.setup import Setup

SHARES: Final = (0.1, 0.2, 0.34, 0.5, 0.7, 1.0)
BLIND: Final = ("random", "least_tokens", "smg_event")
OTHER: Final = "lmetric"
OTHER_SHARES: Final = (0.0, 0.34, 1.0)
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
    for share in OTHER_SHARES:
        label = f"{OTHER} inside, header from {share:.0%} of sessions"
        runs.append(Run(label, OTHER, replace(setup(0.0, replicas), home_share=share)))
    runs.append(Run("no affinity: any region, warmroute inside", "warmroute", setup(0.0, replicas)))
    runs += [Run(f"header from {share:.0%} of sessions", "warmroute", setup(share, replicas)) for share in SHARES]
    notes = (
        f"Hit ratio with one cache that never forgets: {trace.ceiling():.3f}.",
        "After Cloudflare's report of 16 April 2026: 60 % to 80 % cached input when heavy users sent the header.",
    )
    return Scenario(trace, tuple(runs), notes)
