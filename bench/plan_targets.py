#!/usr/bin/env python3
"""Makes docs/benchmarks/plan-targets.md: 24 plans with targets, and the planner beside AIConfigurator and the cookbook.

.venv/bin/python -m bench.plan_targets            write the page
.venv/bin/python -m bench.plan_targets --check    exit with 1 if the page is not the one that would be written
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.unit.plan.aiconfigurator import ESTIMATES, VERSION, Estimate
from tests.unit.plan.cookbook import CELLS, SOURCE, Cell, renamed

from bench.plans import rooflined
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

Made by `python -m bench.plan_targets`. [The reference](../reference/plan.md) says how plans are searched and what
the columns mean. Figures are those of a queueing model with the planner's roofline, not measurements of a GPU.

## 24 plans

Each request has {INPUT_TOKENS:,} tokens, of which {CACHED:.0%} are cached, and {OUTPUT_TOKENS} of answer. Targets at
p90: 2 s to the first token, 30 ms for each token after it (`--ttft-p90 2s --time-per-token 30ms`). `maybe`: within
the roofline's error. `*` marks plans that no other beats in both tokens/s/GPU and ms/token.

| model | GPUs | requests/s | plan | TTFT s | ms/token | tokens/s/GPU | reaches | played |
|---|---|---|---|---|---|---|---|---|
"""

BESIDE: Final = f"""
## Beside AIConfigurator

[AIConfigurator](https://github.com/ai-dynamo/aiconfigurator) {VERSION} estimates a step from kernels that NVIDIA has
measured on each GPU. Its figures come from `aiconfigurator cli estimate --backend sglang` for the same shape and batch,
on a machine without a GPU. The published speeds are in [plans](plans.md).

| run | published | AIConfigurator | error | planner | error |
|---|---|---|---|---|---|
"""

POINTS: Final = (
    ("point", "AIConfigurator", "SGLang's cookbook", "this planner"),
    (
        "source of speeds",
        "kernels measured by GPU and framework version",
        "runs on GPUs, for cells that say `verified`",
        "a roofline with a few constants from published runs",
    ),
    (
        "latency under traffic",
        "steps of static batches",
        "none",
        "a queueing model of sessions with placement and caches",
    ),
    (
        "cached prefixes",
        "one number of cached tokens (`--prefix`)",
        "none",
        "found by playing sessions: GPU, host memory, shared store",
    ),
    (
        "search",
        "TP, PP, attention groups, EP, batch, P:D; thousands of points",
        "none: a table by GPU and strategy",
        "the same, and KV type, fraction, chunk, drafts, tiers, DCP; bounds leave at most 40 plays per step",
    ),
    (
        "memory",
        "weights, KV and activations by a model of each framework",
        "a fraction that ran",
        "SGLang's own rules; its resolver checks each fraction",
    ),
    (
        "output",
        "Dynamo, llm-d and plain commands",
        "a command",
        "units, LeaderWorkerSets, config of the proxy and the store, prices; each checked by its parser",
    ),
    (
        "GPUs and models",
        "those with measured kernels",
        "those of its pages",
        "any with data-sheet figures; families with a formula for their cache",
    ),
)

AFTER: Final = """
AIConfigurator knows kernels. On one node, its steps are closer than the planner's for small batches, and somewhat
further off for larger ones. Over InfiniBand it is off by half, and it has no data of DeepEP across nodes. The planner
plays how agents load caches and queues, and refuses what SGLang would refuse.

## Beside SGLang's cookbook

Cells of GLM-5 with `verified: true`, beside the plan for the same GPUs and fraction. Both divide the GPUs alike, and
`--check` finds no problem.
"""


def found(case: Case) -> Search:
    """The search of a case. Raises PlanError where nothing fits."""
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


def _cells(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"


def page() -> str:
    """The whole page."""
    lines = [HEAD + "\n".join(row(case) for case in CASES)]
    lines.append(BESIDE + "\n".join(estimate_row(each) for each in ESTIMATES) + "\n")
    lines.append("\n".join(_cells(each) for each in (POINTS[0], ("---",) * 4, *POINTS[1:])) + "\n" + AFTER)
    lines.append("| GPUs | strategy | TP / groups / EP there | here | fraction | tokens a rank here | problems |")
    lines += ["|---|---|---|---|---|---|---|", *(cell_row(cell) for cell in CELLS)]
    lines.append(f"\nSource: {', '.join(f'[{name}]({address})' for name, address in SOURCE)}.")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args()
    text = page()
    if arguments.check:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
