#!/usr/bin/env python3
"""Writes docs/benchmarks/plan-targets.md: 24 plans with latency targets, beside AIConfigurator's and the cookbook's.

.venv/bin/python -m bench.plan_targets            write the page
.venv/bin/python -m bench.plan_targets --check    exit with 1 if the page is not the one that would be written
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.unit.plan.aiconfigurator import ESTIMATES, VERSION, Estimate
from tests.unit.plan.cookbook import CELLS, SOURCE, Cell, renamed

from bench.plans import command_line, rooflined
from warmroute_backend.plan.argv import argv
from warmroute_backend.plan.check import problems
from warmroute_backend.plan.choose import make_plan
from warmroute_backend.plan.deployment import Traffic
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.request import PlanRequest
from warmroute_cli.plan.inputs import average_trace
from warmroute_cli.plan.search import Search, search
from warmroute_cli.plan.sized_page import front
from warmroute_cli.plan.targets import Targets

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "plan-targets.md"
INPUT_TOKENS: Final = 20_000
OUTPUT_TOKENS: Final = 400
CACHED: Final = 0.9
TARGETS: Final = Targets(ttft_p90_s=2.0, token_p90_s=0.03)
OBJECTIVES: Final = {"low-latency": "latency", "balanced": "throughput", "high-throughput": "throughput"}


class Case(NamedTuple):
    """A model, its GPUs and its load in requests a second."""

    model: str
    gpus: str
    requests_per_s: float


CASES: Final = (
    Case("kimi-k2.5", "8xH100", 1),
    Case("kimi-k2.5", "8xH200", 1),
    Case("kimi-k2.5", "2x8xH200", 2),
    Case("kimi-k2.5", "8xB200", 4),
    Case("kimi-k2.5-nvfp4", "8xB200", 4),
    Case("kimi-k2-instruct", "2x8xH200", 2),
    Case("deepseek-r1", "8xH200", 1),
    Case("deepseek-r1", "4x8xH200", 6),
    Case("deepseek-r1", "2x8xH100", 1),
    Case("deepseek-v3.1", "8xB200", 4),
    Case("deepseek-v3.2", "8xH200", 1),
    Case("deepseek-v3.2", "8xB200", 4),
    Case("glm-4.6", "8xH100", 2),
    Case("glm-4.7", "8xH200", 4),
    Case("glm-5", "8xB200", 2),
    Case("qwen3-235b-2507", "8xH100", 4),
    Case("qwen3-coder-480b", "8xH200", 2),
    Case("qwen3-30b-2507", "2xH100", 4),
    Case("minimax-m2", "8xH100", 4),
    Case("minimax-m2", "4xH200", 4),
    Case("gpt-oss-120b", "8xH100", 8),
    Case("gpt-oss-120b", "1xH200", 1),
    Case("llama-3.3-70b", "4xH100", 1),
    Case("llama-4-scout", "2xH200", 1),
)

HEAD: Final = f"""# Plans with targets

The page has 24 deployments that [`warmroute plan`](../reference/plan.md) chooses for latency targets, and compares the
planner with AIConfigurator and with SGLang's cookbook. `python -m bench.plan_targets` makes the page. Figures are those
of a queueing model whose step times come from a roofline, not measurements of a GPU.

## 24 plans

Each request has a prompt of {INPUT_TOKENS:,} tokens, of which {CACHED:.0%} are cached, and an answer of {OUTPUT_TOKENS}
tokens. The targets at p90 are 2 s to the first token and 30 ms for each token after it (`--ttft-p90 2s --time-per-token
30ms`).

- *Plan*: the engines, and in which options they differ from the planner's defaults. *Groups*: the number of
  data-parallel attention groups of an engine. *Drafts of 5*: five draft steps before each verification. *Store*: a
  shared KV store. *Chunk*: the prefill chunk in tokens.
- *TTFT*, *ms/token*: p90. *Tokens/s/GPU*: answer tokens at full load ([columns](../reference/plan.md#traffic)).
- *Reaches*: whether the plan reaches both targets; `maybe` if the roofline's error could change the answer.
- *Played*: the number of plans that the search simulated.
- `*`: of the plans simulated for this row, no other has both more tokens/s/GPU and fewer ms/token.

| model | GPUs | requests/s | plan | TTFT s | ms/token | tokens/s/GPU | reaches | played |
|---|---|---|---|---|---|---|---|---|
"""

BESIDE: Final = f"""
## Beside AIConfigurator

[AIConfigurator](https://github.com/ai-dynamo/aiconfigurator) {VERSION} estimates the time of an engine's step from
kernels that NVIDIA has measured on each GPU. Its figures come from `aiconfigurator cli estimate --backend sglang`, on a
machine without a GPU, for the deployment and batch of each published run. [Plans](plans.md) names the sources of the
published speeds. *Fitted* means that a constant of the planner comes from this run, so the planner's error for this run
says nothing.

| run: time of a step | published | AIConfigurator | its error | planner | its error |
|---|---|---|---|---|---|
"""

POINTS: Final = (
    ("property", "AIConfigurator", "SGLang's cookbook", "this planner"),
    (
        "source of speeds",
        "kernels measured for each GPU and framework version",
        "runs on GPUs, for entries marked `verified`",
        "a roofline with a few constants from published runs",
    ),
    (
        "latency under traffic",
        "only step times of static batches",
        "none",
        "a queueing model of sessions with placement and caches",
    ),
    (
        "cached prefixes",
        "one number of cached tokens (`--prefix`)",
        "none",
        "found by simulating sessions with caches in GPU memory, host memory and a shared store",
    ),
    (
        "search",
        "TP, PP, attention groups, EP, batch, prefill:decode; thousands of combinations",
        "none: a table with an entry for each GPU and strategy",
        (
            "as AIConfigurator, and KV type, memory fraction, chunk, drafts, tiers, DCP; "
            "at most 40 simulations in each step of the search"
        ),
    ),
    (
        "memory",
        "weights, KV and activations, from a model of each framework",
        "a memory fraction with which SGLang ran",
        "SGLang's own rules; tests compare the fractions with those that SGLang computes",
    ),
    (
        "output",
        "files for Dynamo and llm-d, and plain commands",
        "a command",
        "systemd units, LeaderWorkerSets, configs of proxy and store, prices; each checked by the parser of its format",
    ),
    (
        "GPUs and models",
        "GPUs and models with measured kernels",
        "GPUs and models on its pages",
        "any GPU with data-sheet figures; model families whose KV size the planner can compute",
    ),
)

AFTER: Final = """
On one node, AIConfigurator's step times are closer to the published ones than the planner's for small batches, and
somewhat further off for larger ones. Over InfiniBand, AIConfigurator's times are off by half, and it has no data on
DeepEP across nodes. The planner also simulates how agents fill caches and queues, and refuses a deployment that SGLang
would refuse.

## Beside SGLang's cookbook

SGLang's cookbook has launch flags for each model, GPU and strategy. The table compares its entries for GLM-5 that have
`verified: true` with the plan for the same GPUs and memory fraction. In every row, the cookbook and the planner divide
the GPUs in the same way, and `warmroute plan --check` finds no problem.
"""


def found(case: Case) -> Search:
    """The planner's search for a case. Raises PlanError if no plan fits."""
    traffic = Traffic(INPUT_TOKENS, OUTPUT_TOKENS, case.requests_per_s, CACHED)
    request = PlanRequest(known_model(case.model), parse_cluster(case.gpus), traffic=traffic)
    return search(request, average_trace(traffic), TARGETS)


def row(case: Case) -> str:
    head = f"| {case.model} | {case.gpus} | {case.requests_per_s:g}"
    try:
        result = found(case)
    except PlanError as error:
        return f"{head} | none: {str(error).partition(': ')[2].partition(':')[0]} | | | | no | 0 |"
    best = result.best
    sizing = best.sizing
    assert not problems(best.plan), case
    star = " *" if best in front(result) else ""
    return (
        f"{head} | {sizing.division}{star} | {sizing.ttft_p90_s:.2f} | {sizing.token_p90_s * 1e3:.1f} "
        f"| {sizing.tokens_per_s_gpu:,.0f} | {TARGETS.reached(sizing)} | {len(result.played)} |"
    )


def estimate_row(estimate: Estimate) -> str:
    ours, speed = rooflined(estimate.speed), estimate.speed
    theirs = "no data | "
    if estimate.ms is not None:
        theirs = f"{estimate.ms:.1f} ms | {estimate.ms / speed.published - 1:+.0%}"
    fitted = ", fitted" if speed.is_fitted else ""
    return (
        f"| {speed.what} | {speed.published:.1f} ms | {theirs} "
        f"| {ours:.1f} ms | {ours / speed.published - 1:+.0%}{fitted} |"
    )


def cell_row(cell: Cell) -> str:
    flags = renamed(cell)
    request = PlanRequest(
        known_model("glm-5"),
        parse_cluster(cell.gpus),
        objective=OBJECTIVES[cell.strategy],  # type: ignore[arg-type]
        fraction=float(flags["--mem-fraction-static"]),
        all_to_all=flags.get("--moe-a2a-backend", "none"),  # type: ignore[arg-type]
    )
    made = make_plan(request)
    command = argv(made, made.engines[0])
    words = [flags.get(flag, "1") for flag in DIVISION]
    ours = [command[command.index(flag) + 1] for flag in DIVISION]
    return (
        f"| {cell.gpus} | {cell.strategy} | {' / '.join(words)} | {' / '.join(ours)} "
        f"| {flags['--mem-fraction-static']} | {made.memory(made.engines[0]).tokens:,} | {len(problems(made))} |"
    )


DIVISION: Final = ("--tp-size", "--attn-dp-size", "--ep-size")
CELL_HEAD: Final = (
    "GPUs", "strategy", "TP / groups / EP in the cookbook", "in the plan", "memory fraction",
    "KV tokens of each attention group in the plan", "problems",
)  # fmt: skip


def _cells(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"


def page() -> str:
    """The whole page."""
    lines = [HEAD + "\n".join(row(case) for case in CASES)]
    lines.append(BESIDE + "\n".join(estimate_row(each) for each in ESTIMATES) + "\n")
    lines.append("\n".join(_cells(each) for each in (POINTS[0], ("---",) * 4, *POINTS[1:])) + "\n" + AFTER)
    lines.append(_cells(CELL_HEAD))
    lines += ["|---|---|---|---|---|---|---|", *(cell_row(cell) for cell in CELLS)]
    lines.append(f"\nSource: {', '.join(f'[{name}]({address})' for name, address in SOURCE)}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(command_line(__doc__, PAGE, page))
