"""The same GPUs, aggregated or split into prefill and decode workers (PD): time per token and TTFT against load.

In an aggregated worker a chunk of somebody's prompt (8,192 tokens, 0.41 s) is computed in the same step as everybody's
next token, and holds it up; a decode worker never computes prompts, so its tokens come at the pace of its batch
(Cloudflare, 16 April 2026: the p90 of the time per token fell from 100 ms with large variance to 20-30 ms). What that
costs: some of the GPUs cannot prefill, the KV of each prompt crosses the network before the second token, and a turn
waits for room at both ends. So an aggregated fleet keeps the lower TTFT until its queues are long.

Constants, all of the engine model (`warmroute_backend.engine.work.Costs`): 20,000 prefill tokens/s a worker, chunks of
8,192; a step costs 5 ms, decoding 15 ms + 0.1 ms a sequence more (a reference queueing model, not a measurement).
Transfer: 2 ms + 400,000 tokens/s, which is 28 GB/s at 70 KB a token (MLA, bf16), half of a 400 Gb/s link; Mooncake
measured 164 GB/s over four such links. 8 workers of 3M KV tokens. 150 agents start within an hour; the load divides
that hour, so four times the load is that of agents who come four times as fast.
"""

from typing import Final

from warmroute_proxy.replay.agents import Agents, agents_trace
from warmroute_proxy.replay.scenarios import Run, Scenario
from warmroute_proxy.replay.setup import Setup

LOADS: Final = (1.0, 2.0, 4.0, 8.0)
SPLITS: Final = ((8, 0), (7, 1), (6, 2), (4, 4))
KV_TOKENS: Final = 3_000_000
AGENTS: Final = Agents(sessions=150, output_mean=800.0)


def scenario(agents: Agents = AGENTS) -> Scenario:
    """All runs of the table; other `agents` are for tests."""
    trace = agents_trace(agents, "agents")
    runs = []
    for prefills, decodes in SPLITS:
        label = f"{prefills}:{decodes} prefill:decode" if decodes else f"{prefills} aggregated"
        fleet = Setup(prefills=prefills, decodes=decodes, kv_tokens=KV_TOKENS)
        runs += [Run(label, "warmroute", fleet, load) for load in LOADS]
    notes = ("Transfer of KV from prefill to decode: 2 ms + 400,000 tokens/s (28 GB/s at 70 KB a token).",)
    return Scenario(trace, tuple(runs), notes)
