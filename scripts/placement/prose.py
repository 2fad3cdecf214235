"""The standing text of the pages."""

from typing import Final

from scripts.placement.rule import HIT_SLACK, NEAR, P90_FACTOR

HEAD: Final = """\
# Placement

This page compares hit ratios and latencies of warmroute's placement with published policies, by `warmroute replay`.
**All figures are those of a queueing model, not of any GPU** ([the model](../reference/replay.md#what-is-simulated)).
The `core.Router` of production makes the decisions. The router sees what a proxy sees: its own turns, and the engines'
load once a second. `warmroute+events` also gets each worker's KV events, 0.1 s late. Baselines see everything, exactly
and at once.

Where KV is short, admission by working set decides more than placement: [its rows](tight.md).
"""

RULE: Final = f"""\
A row is one traffic on one fleet, played at several seeds: the arrivals differ at each seed, and where the traffic is
made up all of it does. The median counts. **The rule** has two parts. The hit ratio is at most {HIT_SLACK} below the
best baseline's. The p90 of the TTFT is at most {P90_FACTOR} x the best p90 among the baselines whose hit ratio is
within {NEAR} of the best. (A policy that ignores caches may have a short tail at low load, and one that herds has a
high hit ratio.)

Held back: a hash of a row's name chooses about a third of the rows. They were chosen before the last change of a rule,
and no constant was chosen by them, nor by any row at the seeds of this page. A table at other seeds had been seen
before; of what it showed only the order in prefill workers' caches and the begin of a prompt were changed
([decision 034](../decisions/034-homes.md)).
"""

REGIONS: Final = """\
4 regions of 4 replicas serve 1,200 agents with growing context. Each turn comes in at any region ([the
scenario][regions]). A header names the session: with it, a turn is served where the session lives. Baselines know
nothing of regions: a layer before them forwards such a turn, and it pays the same network as one that warmroute
forwards. Down a column the placement differs, along a line the share of sessions with the header.

[regions]: https://github.com/warmroute/warmroute/blob/main/proxy/warmroute_proxy/replay/scenarios/regions.py
"""

LIMITS: Final = """\
No figure here was measured on a GPU. Engines evict the least recently used blocks, but no cached block of a waiting
request, a promise that SGLang does not make.  One router knows the fleet, except in the rows of regions. Closed-loop
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

For four baselines, hit ratios are within 0.005 and p90 within 10 % of the other simulator's figures, which
`tests/simulation/` keeps. The exception is the hit ratio of synthetic, N=8, 4x, smg_event: 0.647 for 0.640.

That row is not a matter of a draw: 20 draws each of how ties are broken and of how arrivals are spread within a
timestamp give 0.646 to 0.649. According to the other one's rows, the models differ in when a prompt can be hit. Here a
chunk can be hit as soon as its step has ended, as in SGLang, which puts each chunk into its radix tree. In the other
model, only a whole prompt can be hit. The difference shows if long prompts with a common prefix queue up at one worker.
With the other model's rule, all 12 synthetic hits are within 0.002 of the published ones. Round robin, which has no
ties to break, goes from 0.1984, 0.1976 and 0.2103 to 0.1960, 0.1930 and 0.2055 (published 0.196, 0.193, 0.206). This
row goes to 0.6395 (the same draws: 0.639 to 0.642), and its p90 to 3.6 to 4.8 s by the draw, 4.0 s in the mean, for
3.93 s.
"""

GOALS: Final = """\
The goals come from the other simulator, in which only a whole prompt can be hit (above). With that rule, warmroute has
0.6433 and 2.66 s on synthetic at 4x.
"""

PD: Final = """\
# Prefill and decode apart

The same 8 GPUs run aggregated, or split into prefill and decode workers. Requests have tools and much new text: a mean
prompt of 10,000 tokens, of which 60 % can be cached, and answers of 400 tokens. They arrive in an open loop: at 1x,
uncached prompts take 0.15 of the capacity of 8 workers, at 4x 0.6. In an aggregated worker, a chunk of one prompt (0.41
s) delays the next token of every other answer. A decode worker's tokens come at the pace of its batch: Cloudflare
reports a p90 of the time per token of 20-30 ms, after 100 ms with large variance. The constants are those of the model
(`warmroute_backend.engine.model.work.Costs`). The transfer of a prompt's KV takes 2 ms + 400,000 tokens/s. At 70 KB per
token (MLA in bf16), this is 28 GB/s, half of one 400 Gb/s link; Mooncake measured 164 GB/s over four (its SGLang
benchmark, Qwen3-235B). Links are not shared.
"""

SPLITS: Final = """\
The split with the lowest time per token among those whose TTFT p90 is less than twice the aggregated fleet's:
"""

AGGREGATED: Final = """\
The aggregated fleet is better for the first token: every GPU prefills, and no KV crosses the network. A split whose
prefill or decode side is too small for the load has no steady state, while the aggregated fleet still has one. If
nearly all prompt tokens are cached (long, well placed sessions of agents), a split gains little, since no long prompt
delays a token.
"""

WAITING: Final = """\
# When engines are full

On the other pages, requests beyond an engine's capacity wait inside it, first come first served, with all policies
alike. The reference model evicts no cached block of a waiting request, a promise that SGLang does not make. In
production, such a request waits in the proxy ([admission](../../reference/admission.md), [decision
019](../../decisions/019-waiting-for-a-place.md)), for the engine that has its prompt, as long as waiting costs less
than computing the prompt elsewhere. Short prompts go first, within a bound for the others. The policy `warmroute+queue`
plays this; engines then keep nothing of waiting requests. "32 at once": an engine runs 32 requests, not 512.
"""

SPEED: Final = """\
A fresh process with the production core, on one core; the quickest of three, with reading the trace. The machine is
shared, and its wall times differ from day to day by a factor of 1.7. Code with 6 % more instructions than today's took
2.37 s for the first row on one day and 4.3 s on another.  DynoSim took 7 to 18 s of wall time for as many requests as
that row on the same kind of machine.
"""

JUMPED: Final = """\
Simulated step by step: every step that computes part of a prompt. Jumped over, with equal results: runs of steps that
only decode, a multiplication for each run. Not made at all: prompts (ids of blocks stand for them), and figures for
single tokens.
"""

MADE_BY: Final = """\
Two commands make the page, with the public traces in a folder. The traces are Mooncake's `conversation_trace` and
`synthetic_trace` (kvcache-ai/Mooncake, `FAST25-release/traces`), and 355 Claude Code sessions reduced to lengths and
shared prefixes (callanjfox/kv-cache-tester). The first command continues where it was ended.

    .venv/bin/python -m scripts.placement draws --traces "$TRACES"
    .venv/bin/python -m scripts.placement page
"""

HEADER_GAIN: Final = """\
Columns show the header's gain, with any placement inside. Rows show the placement's gain at one share.\
"""

REGIONS_ONCE: Final = """\
The draws of these rows have not been played. These are single runs at seed 1, from before the last change of a rule.
"""

CHOSEN: Final = """\
**Caches that thrash** (Claude Code, 8 workers of 1.5 M and 1 M tokens). After three quarters of an hour, the running
sessions need more KV than the fleet has, and each one that returns evicts another. The policies differ in where they
send a session that no worker holds any more. `smg_event` takes the worker with the fewest requests, often one that
thrashes already. Ours takes the shortest prefill queue, often that of a worker whose cache still serves, and which then
thrashes too: with this choice `smg_event` falls towards our figures ([decision 034](../decisions/034-homes.md)). With a
price on requests ours comes near to `smg_event` at 1.5 M tokens, and loses at 1 M tokens, on 8 workers and on 16, which
are not overloaded. We keep the shortest queue: a fleet that is a minute behind needs more workers before a rule.

**Tool calls at 2x, bursts at 4x.** The best hit ratio is that of a hash of the prefix, which waits however long the
queue is: its tail is 8 and 28 times ours. The rule asks for 0.005 less than its hit ratio, and ours is 0.0003 to 0.0005
below that. On six prefill workers ours has the hit ratio, and a tail 1 % above 1.05 x that of llm-d's rule, whose hit
ratio is 0.012 lower. No constant was moved for so little, since these rows were held back, or are like those.

**Prefill workers that are overloaded, without events** (5:3 and 4:4). With KV events both rows hold. Without them, the
proxy learns of evictions too late ([how to turn them on](../reference/configuration.md)).
"""

MORE: Final = """\
- [Every row, every policy](../contribute/placement/rows.md), with the command of each row.
- [Every policy, one run each](../contribute/placement/policies.md): 26 policies on 18 rows, and against load.
- [Prefill and decode apart](placement/pd.md): time per token against load, for each split.
- [When engines are full](placement/waiting.md): waiting in the proxy, or in the engines.
- [The model against another one](placement/model.md): published rows reproduced, goals, and the speed of the replay.
"""
