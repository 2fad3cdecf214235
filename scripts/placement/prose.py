"""The standing text of the pages."""

from typing import Final

from scripts.placement.rule import HIT_SLACK, NEAR, P90_FACTOR

HEAD: Final = """\
# Placement

Hit ratios and latencies of warmroute's placement and of published ones, by `warmroute replay`. **All figures are those
of a queueing model, not of any GPU** ([the model](../reference/replay.md#what-is-simulated)). The decisions are made by
the same `core.Router` as in production, which sees what a proxy sees: its own turns, and the engines' load once a
second. `warmroute+events` also gets each worker's KV events, 0.1 s late. Baselines see everything, exactly and at once.

Where KV is short, admission by working set decides more than placement: [its rows](tight.md).
"""

RULE: Final = f"""\
A row is one traffic on one fleet, played at several seeds: the arrivals differ at each seed, and where the traffic is
made up all of it does. The median counts. **The rule**: the hit ratio is at least the best baseline's - {HIT_SLACK},
and the p90 of the TTFT is at most {P90_FACTOR} x the best p90 among the baselines whose hit ratio is within {NEAR} of
the best. (A policy that ignores caches may have a short tail at low load, and one that herds has a high hit ratio.)

Held back: a hash of a row's name chooses about a third of the rows. They were chosen before the last change of a rule,
and no constant was chosen by them, nor by any row at the seeds of this page. A table at other seeds had been seen
before; of what it showed only the order in prefill workers' caches and the begin of a prompt were changed
([decision 034](../decisions/034-homes.md)).
"""

REGIONS: Final = """\
4 regions of 4 replicas; 1,200 agents with growing context; each turn comes in at any region
([the scenario](../../proxy/warmroute_proxy/replay/scenarios/regions.py)). A header names the session: with it a turn is
served where the session lives. Baselines know nothing of regions: something before them sends such a turn there, and
it pays the same network as one that warmroute forwards. Down a column the placement differs, along a line the share
of sessions with the header.
"""

LIMITS: Final = """\
No figure here was measured on a GPU. Engines evict the least recently used blocks, and keep what is cached of a request
that waits, a promise that SGLang does not make. One router knows the fleet, except in the rows of regions. Closed-loop
sessions wait for their answers, so a bad policy also slows the traffic down that it is judged by. Made-up traces are
what their generators say and no recording; `toolagent` stands in for Mooncake's trace of that name.
"""

POLICIES: Final = """\
# Every policy, one run each

Each row is one run at seed 1, by `python -m scripts.placement single`; [the page](../../benchmarks/placement.md) has
draws. 1x, 2x, 4x: arrival times are divided by it (sessions of agents: only their starts). `--json FILE` adds all
figures.
"""

MODEL: Final = """\
# The model against another one

The other one is a simulator of nearly the same model, with published figures of four baselines. Made by
`python -m scripts.placement single`; `tests/simulation/` keeps the table.

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

GOALS: Final = """\
The goals come from the other simulator, in which only a whole prompt can be hit (above). That matters on synthetic:
with that rule warmroute has 0.6433 and 2.66 s at 4x.
"""

PD: Final = """\
# Prefill and decode apart

The same 8 GPUs, aggregated or split into prefill and decode workers; requests with tools and a good deal of fresh
text (mean prompt 10,000 tokens, of which 60 % can be cached; answers of 400 tokens), open loop: at 1x uncached
prompts are 0.15 of what 8 workers can compute, at 4x 0.6. In an aggregated worker a chunk of one prompt (0.41 s) holds
up the next token of each other answer; a decode worker's tokens come at the pace of its batch (Cloudflare: p90 of the
time per token from 100 ms with large variance to 20-30 ms). Constants: those above
(`warmroute_backend.engine.model.work.Costs`), and for the transfer of a prompt's KV 2 ms + 400,000 tokens/s: 28 GB/s at
70 KB a token (MLA in bf16), half of one 400 Gb/s link; Mooncake measured 164 GB/s over four (its SGLang benchmark,
Qwen3-235B). Links are not shared.
"""

SPLITS: Final = """\
The split with the lowest time per token among those whose TTFT p90 is less than twice the aggregated fleet's:
"""

AGGREGATED: Final = """\
Aggregated is better where the first token counts: every GPU prefills, and no KV crosses the network; and a split
whose prefill (or decode) side is too small for the load has no steady state, where the aggregated fleet still has. Of
a trace whose prompts are nearly all cached (long sessions of agents that are well placed) there is little to gain:
no long prompt is computed that could hold a token up.
"""

WAITING: Final = """\
# When engines are full

On the other pages, what an engine cannot run at once waits inside it, first come first served, with all policies
alike; and by the reference model nothing is evicted that is cached of a request which waits there, a promise that
SGLang does not make. In production such a request waits in the proxy ([admission](../../reference/admission.md),
[decision 019](../../decisions/019-waiting-for-a-place.md)), for the place that has its prompt, as long as waiting costs
less than computing the prompt elsewhere. Short prompts go first, as long as no other request waits too long for them.
That is `warmroute+queue`; engines then keep nothing of what waits. "32 at once": an engine runs 32 requests, not 512.
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

MADE_BY: Final = """\
Made by two commands, from the repository, with the public traces in a folder: Mooncake's `conversation_trace` and
`synthetic_trace` (kvcache-ai/Mooncake, `FAST25-release/traces`), and 355 Claude Code sessions reduced to lengths and
shared prefixes (callanjfox/kv-cache-tester). The first goes on where it was ended.

    .venv/bin/python -m scripts.placement draws --traces "$TRACES"
    .venv/bin/python -m scripts.placement page
"""

HEADER_GAIN: Final = """\
From left to right is the header's gain, with any placement inside. Between the names at one share is the placement's.\
"""

REGIONS_ONCE: Final = """\
The draws of these rows have not been played. These are single runs at seed 1, from before the last change of a rule.
"""

CHOSEN: Final = """\
**Caches that thrash** (Claude Code, 8 workers of 1.5 M and 1 M tokens). After three quarters of an hour the sessions
under way need more KV than the fleet has, and each one that returns evicts another. The policies differ in where they
send a session that no worker holds any more. `smg_event` takes the worker with the fewest requests, often one that
thrashes already. Ours takes the shortest prefill queue, often that of a worker whose cache still serves, and which then
thrashes too: with this choice `smg_event` falls towards our figures ([decision 034](../decisions/034-homes.md)). With a
price on requests ours comes near to `smg_event` at 1.5 M tokens, and loses at 1 M tokens, on 8 workers and on 16, which
are not overloaded. We keep the shortest queue: a fleet that is a minute behind needs more workers before a rule.

**Tool calls at 2x, bursts at 4x.** The best hit ratio is that of a hash of the prefix, which waits however long the
queue is: its tail is 8 and 28 times ours. The rule asks for 0.005 less than its hit ratio, and ours is 0.0003 to 0.0005
below that. On six prefill workers ours has the hit ratio, and a tail 1 % above 1.05 x that of llm-d's rule, whose hit
ratio is 0.012 lower. No constant was moved for so little, since these rows were held back, or are like those.

**Prefill workers that are overloaded, without events** (5:3 and 4:4). With KV events both rows hold. Without them the
proxy learns too late what was evicted ([how to turn them on](../reference/configuration.md)).
"""

MORE: Final = """\
- [Every row, every policy](../contribute/placement/rows.md), with the command of each row.
- [Every policy, one run each](../contribute/placement/policies.md): 26 policies on 18 rows, and against load.
- [Prefill and decode apart](placement/pd.md): time per token against load, for each split.
- [When engines are full](placement/waiting.md): waiting in the proxy, or in the engines.
- [The model against another one](placement/model.md): published rows reproduced, goals, and the speed of the replay.
"""
