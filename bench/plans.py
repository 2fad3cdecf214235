#!/usr/bin/env python3
"""Makes docs/benchmarks/plans.md: five plans as the command prints them, and the formulas against published figures.

.venv/bin/python -m bench.plans            write the page
.venv/bin/python -m bench.plans --check    exit with 1 if the page is not the one that would be written
"""

import argparse
import contextlib
import io
import shlex
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from tests.unit.plan.published import (
    ACCEPTED,
    ACCEPTED_SOURCE,
    CAPACITIES,
    PIPELINE,
    SCALINGS,
    SIZES,
    SPEEDS,
    Capacity,
    Scaling,
    Size,
    Speed,
)

from warmroute_backend.plan.cache import cell_bytes
from warmroute_backend.plan.hardware import GIB, GPUS
from warmroute_backend.plan.memory import EngineShape, memory
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.speculation import PUBLISHED_STEPS, Draft, accepted_tokens
from warmroute_backend.plan.speed import STEP_S, Load, decode_step_s, prefill_tokens_per_s
from warmroute_cli.main import main as warmroute

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "plans.md"


class Shown(NamedTuple):
    """A command, its title, and what to say of it."""

    title: str
    command: str
    text: str


SHOWN: Final = (
    Shown(
        "Kimi K2.5 on 8 H200",
        "warmroute plan --model kimi-k2.5 --gpus 8xH200 --input 60000 --output 400",
        "At one request per second with 60,000 tokens, the pool is the limit, and what it evicts comes back. Host\n"
        "memory of each attention group alone is too slow for that; a shared store keeps each prefix once for both.",
    ),
    Shown(
        "Kimi K2.5 on 8 H100",
        "warmroute plan --model kimi-k2.5 --gpus 8xH100 --input 60000 --output 400",
        "Exit status 2. [Cloudflare](https://blog.cloudflare.com/high-performance-llms/) runs this model on 8 H100\n"
        "in its own engine, with more than 30 GiB left for KV. 637 GiB less 554 GiB of weights are 83 GiB, of which\n"
        "that engine may take 6.6 GiB on each GPU. SGLang's rule keeps 10 GiB and more on each, and loads\n"
        "73 GiB there.",
    ),
    Shown(
        "DeepSeek V3.2 on 8 B200, with EAGLE and HiCache",
        "warmroute plan --model deepseek-v3.2 --gpus 8xB200 --speculation on --hicache on",
        "",
    ),
    Shown(
        "gpt-oss-120b on 8 H100, as 4+4",
        "warmroute plan --model gpt-oss-120b --gpus 8xH100 --pd 4+4 --input 20000 --output 500 --requests-per-s 4",
        "Without `--pd 4+4` the plan is one engine of eight GPUs: at this traffic a pair answers later.",
    ),
    Shown(
        "Llama 4 Scout on 2 H200",
        "warmroute plan --model llama-4-scout --gpus 2xH200",
        "Cloudflare counts 56 GiB as more than 1.2 million tokens: 49,152 bytes each, for the 12 layers that see\n"
        "everything. SGLang also has a pool for the 36 layers that see a chunk of 8,192, by default with 0.8 tokens\n"
        "for each of the other (`--swa-full-tokens-ratio`). So 56 GiB would be 360,000 tokens, 1.06 million with\n"
        "0.05 and 1.19 million with 0.01. SGLang also keeps 13 GiB of each GPU out of the static memory: 40 GiB are\n"
        "left, not 56.",
    ),
)

HEAD: Final = """# Plans

Made by `python -m bench.plans`. [The reference](../reference/plan.md) says how a plan is made; every figure has its
formula and source in the docstrings of `backend/warmroute_backend/plan`. Latencies are those of a queueing model with
the planner's roofline: they compare plans, and promise nothing about a GPU.

## Formulas against what was published

Sizes of KV pools: tokens times bytes of a token, against the size that the engine logged.

"""

CAPACITY_HEAD: Final = """
Capacities: what a start with these flags gave, against the plan's weights, context, slack and cell together.

"""


def size_row(size: Size) -> str:
    found = size.tokens * cell_bytes(size.model, size.kv_type, size.tp, raw_rows=size.raw_rows) / GIB
    return (
        f"| {size.what} | {size.tokens:,} | {size.gib:.2f} | {found:.2f} | {found / size.gib - 1:+.2%} "
        f"| [source]({size.source}) |"
    )


def capacity_error(capacity: Capacity) -> float:
    return planned(capacity) / capacity.tokens - 1


def planned(capacity: Capacity) -> int:
    shape = EngineShape("aggregated", capacity.tp, capacity.attention_dp, 8192, 512, 512, capacity.kv_type, 1)
    return memory(GPUS[capacity.gpu], known_model(capacity.model), shape, capacity.fraction).tokens


def capacity_row(capacity: Capacity) -> str:
    source = f"[source]({capacity.source})" if capacity.source.startswith("https://") else capacity.source
    where = f"{capacity.what}, {capacity.tp} {capacity.gpu}, {capacity.fraction:.3f}"
    return (
        f"| {where} | {capacity.tokens:,} | {planned(capacity):,} | {capacity_error(capacity):+.2%} "
        f"| {capacity.why or 'none'} | {source} |"
    )


SPEED_HEAD: Final = """
Speeds: a decode step with scheduling, or prompt tokens a second of a node, by the roofline. Rows that a constant is
from say so; the others were not fitted to, so their errors are those of the formula. Speeds depend on versions of
kernels and are off by more than memory: plans are compared by them, and a latency of a plan is that uncertain.

"""


def rooflined(speed: Speed) -> float:
    """What the planner computes for a published speed, in its unit."""
    model, gpu = known_model(speed.model), GPUS[speed.gpu]
    batch = max(1, speed.batch)
    deepep = speed.redundant_experts > 0
    shape = EngineShape(
        "decode" if speed.batch else "prefill", speed.tp, speed.attention_dp, 8192 * speed.attention_dp,
        batch * speed.attention_dp, batch, speed.kv_type, 64, draft_tokens=0 if speed.two_batches else 1,
        all_to_all="deepep" if deepep else "none", redundant_experts=speed.redundant_experts,
    )  # fmt: skip
    load = Load(speed.input_tokens, speed.input_tokens, speed.output_tokens)
    if speed.batch:
        return (decode_step_s(gpu, model, shape, load, batch) + STEP_S) * 1e3
    return prefill_tokens_per_s(gpu, model, shape, load) * shape.attention_dp / max(1, shape.tp // gpu.per_node)


def scaled(scaling: Scaling) -> float:
    """What the planner computes for a published ratio."""
    gpu, model = GPUS[scaling.gpu], known_model(scaling.model)
    load = Load(scaling.tokens, scaling.tokens, 1)
    base = EngineShape("prefill", min(scaling.tp, gpu.per_node), 1, scaling.chunk_tokens, 1, 1, "bf16", 64)
    shape = replace(base, tp=scaling.tp, pp=scaling.pp)
    return prefill_tokens_per_s(gpu, model, shape, load) / prefill_tokens_per_s(gpu, model, base, load)


def speed_row(speed: Speed) -> str:
    found = rooflined(speed)
    digits, unit = (1, "ms") if speed.batch else (0, "tokens/s")
    return (
        f"| {speed.what} | {speed.published:,.{digits}f} {unit} | {found:,.{digits}f} {unit} "
        f"| {found / speed.published - 1:+.0%} | {'yes' if speed.is_fitted else 'no'} | [source]({speed.source}) |"
    )


def scaling_row(scaling: Scaling) -> str:
    found = scaled(scaling)
    return (
        f"| {scaling.what}, {scaling.gpu} | {scaling.published:.2f} times | {found:.2f} times "
        f"| {found / scaling.published - 1:+.0%} | {'yes' if scaling.is_fitted else 'no'} | [source]({PIPELINE}) |"
    )


def speeds() -> str:
    lines = ["| run | published | by roofline | error | fitted | |", "|---|---|---|---|---|---|"]
    lines += [speed_row(each) for each in SPEEDS]
    lines += [scaling_row(each) for each in SCALINGS]
    held_out = [abs(rooflined(each) / each.published - 1) for each in SPEEDS if not each.is_fitted]
    held_out += [abs(scaled(each) / each.published - 1) for each in SCALINGS if not each.is_fitted]
    return (
        f"{SPEED_HEAD}"
        + "\n".join(lines)
        + (
            f"\n\nOf the {len(held_out)} that are not fitted: median error {statistics.median(held_out):.0%}, "
            f"largest {max(held_out):.0%}.\n"
        )
    )


ACCEPTED_HEAD: Final = """
Drafts: tokens that a verified step brings, for MiniMax-M3 with EAGLE-3 on coding prompts of SPEED-Bench. The planner
computes other numbers of drafts from the length at three.

| drafts of a step | published | computed | error |
|---|---|---|---|
"""


def accepted() -> str:
    draft = Draft("EAGLE3", "", 1, 0, ACCEPTED[PUBLISHED_STEPS], "")
    rows = []
    for steps, published in ACCEPTED.items():
        found = accepted_tokens(draft, steps)
        rows.append(f"| {steps} | {published:.2f} | {found:.2f} | {found / published - 1:+.0%} |")
    return ACCEPTED_HEAD + "\n".join(rows) + f"\n\nSource: [InferenceX]({ACCEPTED_SOURCE}).\n"


def checks() -> str:
    errors = [
        abs(size.tokens * cell_bytes(size.model, size.kv_type, size.tp, raw_rows=size.raw_rows) / GIB / size.gib - 1)
        for size in SIZES
    ]
    errors += [abs(capacity_error(each)) for each in CAPACITIES]
    lines = ["| log | tokens | GiB published | GiB by formula | error | |", "|---|---|---|---|---|---|"]
    lines += [size_row(size) for size in SIZES]
    text = HEAD + "\n".join(lines) + "\n" + CAPACITY_HEAD
    lines = ["| start | tokens published | tokens planned | error | cause | |", "|---|---|---|---|---|---|"]
    lines += [capacity_row(each) for each in CAPACITIES]
    return text + "\n".join(lines) + f"\n\nMedian error of all {len(errors)}: {statistics.median(errors):.2%}.\n"


def output(command: str) -> str:
    """What a command prints, both streams."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        warmroute(shlex.split(command)[1:])
    return out.getvalue().strip()


def page() -> str:
    """The whole page."""
    parts = [checks(), speeds(), accepted()]
    for shown in SHOWN:
        text = f"\n{shown.text}\n" if shown.text else ""
        parts.append(f"\n## {shown.title}\n{text}\n```text\n$ {shown.command}\n{output(shown.command)}\n```\n")
    return "".join(parts)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    text = page()
    if parser.parse_args().check:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
