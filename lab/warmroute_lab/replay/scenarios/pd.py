"""The same GPUs, aggregated or split into prefill and decode workers (PD): time per token and TTFT against load.

An aggregated worker computes a chunk of a prompt (8,192 tokens, 0.41 s) in the same step as the next token of all
sequences, so the chunk delays these tokens. A decode worker never computes prompts, so its tokens come at the pace of
its batch (Cloudflare, 16 April 2026: the p90 of the time per token fell from 100 ms with large variance to 20-30 ms).
The split has a cost: some GPUs cannot prefill, and the KV of each prompt crosses the network before the client gets the
first token.
So an aggregated fleet has the lower TTFT, and serves more requests if prompts are most of the work.

The load is open loop: requests with tools and much new text (mean prompt 10,000 tokens, of which 60 % can be cached,
answers of 400 tokens). At 1x, uncached prompts take 0.15 of what 8 workers can compute; at 4x, 0.6. If all but a few
percent of each prompt is cached, as in a long agent session on a warm worker, prompts delay few tokens, and a split
gains little.

The constants are those of the engine model (`warmroute_backend.costs.Costs`), a reference queueing model and not a
measurement: 20,000 prefill tokens/s a worker, chunks of 8,192; a step costs 5 ms, and decoding 15 ms + 0.1 ms a
sequence more. A transfer starts after 2 ms, with 400,000 tokens/s. This rate is 28 GB/s at 70 KB a token (MLA, bf16),
about half of a 400 Gb/s link; Mooncake measured 164 GB/s over four such links. There are 8 workers of 3M KV tokens.
"""

from typing import Final

from warmroute_lab.replay.made_up import ToolCalls, tool_calls_trace
from warmroute_lab.replay.scenarios.scenario import Run, Scenario
from warmroute_lab.replay.setup import Setup

LOADS: Final = (1.0, 2.0, 3.0, 4.0)
SPLITS: Final = ((8, 0), (7, 1), (6, 2), (5, 3), (4, 4))
KV_TOKENS: Final = 3_000_000
CALLS: Final = ToolCalls(sessions=3700, within_s=885.0, output_median=300.0, output_sigma=0.8)


def scenario(calls: ToolCalls) -> Scenario:
    """The trace and runs of the table."""
    trace = tool_calls_trace(calls, "tool calls")
    runs = []
    for prefills, decodes in SPLITS:
        label = f"{prefills}:{decodes} prefill:decode" if decodes else f"{prefills} aggregated"
        fleet = Setup(prefills=prefills, decodes=decodes, kv_tokens=KV_TOKENS)
        runs += [Run(label, "warmroute", fleet, load) for load in LOADS]
    notes = ("Transfer of KV from prefill to decode: 2 ms + 400,000 tokens/s (28 GB/s at 70 KB a token).",)
    return Scenario(trace, tuple(runs), notes)
