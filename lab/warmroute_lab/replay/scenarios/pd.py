"""The same GPUs, aggregated or split into prefill and decode workers (PD): time per token and TTFT against load.

In an aggregated worker a chunk of a prompt (8,192 tokens, 0.41 s) is computed in the same step as the next token of
all sequences, and delays it; a decode worker never computes prompts, so its tokens come at the pace of its batch
(Cloudflare, 16 April 2026: the p90 of the time per token fell from 100 ms with large variance to 20-30 ms). What that
costs: some of the GPUs cannot prefill, and the KV of each prompt crosses the network before the second token. So an
aggregated fleet has the lower TTFT, and serves more where prompts are most of the work.

The load is open loop, requests with tools and a good deal of fresh text (mean prompt 10,000 tokens, of which 60 % can
be cached, answers of 400 tokens); at 1x uncached prompts are 0.15 of what 8 workers compute, at 4x 0.6. Where all but a
few percent of each prompt is cached, as in a long session of an agent that is well placed, there is little to hold
tokens up, and little to gain.

Constants, all of the engine model (`warmroute_backend.costs.Costs`): 20,000 prefill tokens/s a worker,
chunks of 8,192; a step costs 5 ms, decoding 15 ms + 0.1 ms a sequence more (a reference queueing model, not a
measurement). Transfer: 2 ms + 400,000 tokens/s, which is 28 GB/s at 70 KB a token (MLA, bf16), half of a 400 Gb/s link;
Mooncake measured 164 GB/s over four such links. 8 workers of 3M KV tokens.
"""

from typing import Final

from warmroute_lab.replay.made_up import ToolCalls, tool_calls_trace
from warmroute_lab.replay.scenarios.scenario import Run, Scenario
from warmroute_lab.replay.setup import Setup

LOADS: Final = (1.0, 2.0, 3.0, 4.0)
SPLITS: Final = ((8, 0), (7, 1), (6, 2), (5, 3), (4, 4))
KV_TOKENS: Final = 3_000_000
CALLS: Final = ToolCalls(sessions=3700, within_s=885.0, output_median=300.0, output_sigma=0.8)


def scenario(calls: ToolCalls = CALLS) -> Scenario:
    """All runs of the table; other `calls` are for tests."""
    trace = tool_calls_trace(calls, "tool calls")
    runs = []
    for prefills, decodes in SPLITS:
        label = f"{prefills}:{decodes} prefill:decode" if decodes else f"{prefills} aggregated"
        fleet = Setup(prefills=prefills, decodes=decodes, kv_tokens=KV_TOKENS)
        runs += [Run(label, "warmroute", fleet, load) for load in LOADS]
    notes = ("Transfer of KV from prefill to decode: 2 ms + 400,000 tokens/s (28 GB/s at 70 KB a token).",)
    return Scenario(trace, tuple(runs), notes)
