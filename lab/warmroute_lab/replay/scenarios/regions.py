"""Cloudflare's rise of cached input from 60 % to 80 %: agents in four regions, and a header that names the session.

Cloudflare wrote on 16 April 2026 that the share of cached input tokens rose from 60 % to 80 % at peak times when its
heaviest users adopted a session affinity header, which sends a session to the region that has its tensors. Inside a
region, Cloudflare placed requests by KV cache already. Not all traffic adopted the header, and the baseline was not
random.

The scenario has 4 regions of 4 replicas with 3.5M KV tokens each, and 1,200 agents that start within an hour. Each turn
comes in at a random region. Without the header a turn stays in that region, which has at best the context that the
session had a few turns ago. So every region must hold every session, and the KV cache is four times too small. With the
header, the proxy forwards the turn to the session's region. The first quarter of the arrivals warms the caches up and
is left out.

Other runs use placements that know nothing of regions. With the header, their turns come in at the session's region
directly, and travel as far as forwarded turns. These runs separate the gain of the header from the gain of the
placement. All results depend on how much fits into the caches.
"""

from dataclasses import replace
from typing import Final

from warmroute_lab.replay.agents import Agents, agents_trace
from warmroute_lab.replay.scenarios.scenario import Run, Scenario
from warmroute_lab.replay.setup import Setup

SHARES: Final = (0.0, 0.34, 1.0)
"""The shares of sessions that send the header."""
BLIND: Final = ("random", "least_tokens")
INSIDE: Final = ("lmetric", "llmd_affinity", "smg_event")
ACROSS: Final = ("warmroute", "warmroute+events")
AGENTS: Final = Agents()
REPLICAS: Final = 4
KV_TOKENS: Final = 3_500_000
RTT_S: Final = 0.1
SKIP_SHARE: Final = 0.25


def setup(naming_share: float, replicas: int = REPLICAS) -> Setup:
    """The fleet, if `naming_share` of the sessions send the header."""
    return Setup(
        prefills=replicas, kv_tokens=KV_TOKENS, regions=4, rtt_s=RTT_S, each_turn=True, naming_share=naming_share,
        skip_share=SKIP_SHARE,
    )  # fmt: skip


def scenario(agents: Agents, replicas: int = REPLICAS) -> Scenario:
    """The trace and runs of the table."""
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
