"""The standing text of the page."""

from typing import Final

from scripts.placement.rule import HIT_SLACK, NEAR, P90_FACTOR

HEAD: Final = """\
# Placement

Hit ratios and latencies of warmroute's placement and of others, on public traces and on made-up ones, by `warmroute
replay`. **All figures are those of a queueing model, not of any GPU**: 20,000 uncached prompt tokens/s a worker in
chunks of 8,192; a step costs 5 ms, and 15 ms + 0.1 ms a sequence when it decodes; LRU caches; 3,000,000 KV tokens a
worker where nothing else is said. [The reference](../reference/replay.md) says what is simulated. The decisions are
made by the same `core.Router` as in production, which sees what a proxy sees: its own turns, and the engines' load
once a second. Baselines see everything, exactly and at once; each names its source in
`proxy/warmroute_proxy/replay/baselines/`.

Made by one command, from the repository, with numpy (`pip install -e '.[dev]'`) and the public traces in a folder:
Mooncake's `conversation_trace` and `synthetic_trace` (kvcache-ai/Mooncake, `FAST25-release/traces`), and 355 Claude
Code sessions reduced to lengths and shared prefixes (callanjfox/kv-cache-tester):

    .venv/bin/python -m scripts.placement --traces "$TRACES"

Each table says the command of its rows alone; `--json FILE` adds all figures. 1x, 2x, 4x: arrival times are divided
by it (sessions of agents: only their starts).
"""

GOALS: Final = """\
The goals come from the other simulator, in which only a whole prompt can be hit (above). That matters on synthetic:
with that rule warmroute has 0.6433 and 2.66 s at 4x.
"""

RULE: Final = f"""\
The rule, on every row: hit at least the best baseline's - {HIT_SLACK}, and TTFT p90 at most {P90_FACTOR} x the best
p90 among the baselines whose hit is within {NEAR} of the best one's. (What ignores caches may have a short tail at
low load, and what herds a high hit ratio: neither is a yardstick alone.)
"""

MISSED: Final = """\
What the rows of tools at 4x lose, by their decisions, as a share of all input tokens (`toolagent`; `bursty`): 0.004
(0.001) a tool prompt that is computed at one more worker, 0.001 (0.001) a session's own history that is computed again
elsewhere, both by some 300 of 12,000 requests that go around a queue behind somebody's long prompt; 0.001 (0.010) what
was predicted and had been evicted. The best hit ratio is that of a hash of the prefix, which waits instead: minutes at
p90. `bursty` at 4x is short of memory: while a worker prefills without a pause a token of an answer takes 0.4 s, so
that answers under way hold most of its cache, and histories are evicted within half a minute, at all workers alike.
Placement can do little about that: with prices half as high again 0.600 to 0.601 of the 0.6014 that the rule needs, and
other rows lose their p90. `toolagent` at 4x, `bursty` at 1x and `short` at 4x hold with nothing to spare
([decision 018](../decisions/018-price-of-computing-again.md) says how often, when arrivals are moved by some ms).
"""

REGIONS: Final = """\
Cloudflare wrote on 16 April 2026 that the share of cached input tokens rose from 60 % to 80 % at peak times when its
heaviest users sent a session affinity header, which takes a session to the region that has its tensors. Here: 4
regions of 4 replicas, 3,500,000 KV tokens each; 1,200 agents that start within an hour, with growing context (20 to
60 turns, a shared prompt of 12,288 tokens, mean prompt 58,000); each turn comes in at any region. The header is all
that differs between the rows of warmroute: without it a turn is served where it comes in. The first quarter of the
arrivals is left out. The rows of LMetric are the same with a placement inside the regions that knows nothing of them
(the header then takes a turn to its region before any proxy sees it). How much of the sessions fits into the caches
decides where all of this lies.
"""

PD: Final = """\
The same 8 GPUs, aggregated or split into prefill and decode workers; requests with tools and a good deal of fresh
text (mean prompt 10,000 tokens, of which 60 % can be cached; answers of 400 tokens), open loop: at 1x uncached
prompts are 0.15 of what 8 workers can compute, at 4x 0.6. In an aggregated worker a chunk of somebody's prompt (0.41
s) holds up everybody's next token; a decode worker's tokens come at the pace of its batch (Cloudflare: p90 of the
time per token from 100 ms with large variance to 20-30 ms). Constants: those above
(`warmroute_backend.engine.model.work.Costs`), and for the transfer of a prompt's KV 2 ms + 400,000 tokens/s: 28 GB/s at
70 KB a token (MLA in bf16), half of one 400 Gb/s link; Mooncake measured 164 GB/s over four (its SGLang benchmark,
Qwen3-235B). Links are not shared.
"""

REPRODUCTION: Final = """\
Figures of another simulator of nearly the same model, for four baselines; `tests/simulation/` keeps them: hit within
0.005, p90 within 10 %, but for the hit of one row: synthetic, N=8, 4x, smg_event, with 0.647 for 0.640.

That row is not a matter of a draw: 20 draws each of how ties are broken and of how arrivals are spread within a
timestamp give 0.646 to 0.649. The models differ, as the other one's rows tell, in when a prompt can be hit. Here a
chunk can be as soon as its step has ended, as in SGLang, which puts each chunk into its radix tree; there only a whole
prompt can be. It shows where long prompts with a common prefix queue up at one worker. With that rule
all 12 synthetic hits are within 0.002 of the published ones: round robin, which has no ties to break, goes from 0.1984,
0.1976 and 0.2103 to 0.1960, 0.1930 and 0.2055 (published 0.196, 0.193, 0.206), and this row to 0.6395 (the same
draws: 0.639 to 0.642). Its p90 is then 3.6 to 4.8 s by the draw, 4.0 s in the mean, for 3.93 s.
"""

AGGREGATED: Final = """\
Aggregated is better where the first token counts: every GPU prefills, and no KV crosses the network; and a split
whose prefill (or decode) side is too small for the load has no steady state, where the aggregated fleet still has. Of
a trace whose prompts are nearly all cached (long sessions of agents that are well placed) there is little to gain:
nobody computes what could hold a token up.
"""

WAITING: Final = """\
In the tables above, what an engine cannot run at once waits inside it, first come first served, with all policies
alike; and by the reference model nothing is evicted that is cached of a request which waits there, a promise that
SGLang does not make. In production it waits in the proxy ([admission](../reference/admission.md),
[decision 019](../decisions/019-waiting-for-a-place.md)), for the place that has its prompt as long as that is worth it,
and what computes little goes first, if nobody waits too long for it. That is `warmroute+queue`, for which nobody keeps
anything. "32 at once": an engine runs so many requests, and not 512.
"""

SPEED: Final = """\
A fresh process with the production core, on one core; the quickest of three, with reading the trace. The wall time is
that of a machine that others use too, and differs from day to day by a factor of 1.7: code with 6 % more instructions
than today's has taken 2.37 s for the first row on one day and 4.3 s on another. DynoSim took 7 to 18 s of wall time for
as many requests as that row on the same kind of machine.
"""

JUMPED: Final = """\
Simulated step by step: every step that computes part of a prompt. Jumped over, with equal results: runs of steps that
only decode, a multiplication for each run. Not made at all: prompts (ids of blocks stand for them), and figures for
single tokens.
"""

LIMITS: Final = """\
One run of each row, of a model: no figure here was measured on a GPU. One router knows the fleet, except where a row
says otherwise; engines evict the least recently used blocks; time per token is a mean over an answer, and does not
show a single long gap. Closed-loop sessions wait for their answers, so a bad policy also slows the traffic down that
it is judged by. The made-up traces are what their generators say and no recording; `toolagent` stands in for the
Mooncake trace of that name, which was not at hand.
"""

SPLITS: Final = """\
The split with the lowest time per token among those whose TTFT p90 is less than twice the aggregated fleet's:
"""
