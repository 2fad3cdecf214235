#!/usr/bin/env python3
"""Writes docs/benchmarks/plans.md: five plans as the command prints them, and the formulas against published figures.

.venv/bin/python -m bench.plans            write the page
.venv/bin/python -m bench.plans --check    exit with 1 if the page is not the one that would be written
"""

import argparse
import contextlib
import io
import math
import shlex
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from tests.unit.plan.aiconfigurator import PAIRS, VERSION, Pair
from tests.unit.plan.published import (
    ACCEPTED,
    ACCEPTED_SOURCE,
    CAPACITIES,
    LLM_D,
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
from warmroute_backend.plan.memory import EngineShape, default_fraction, memory
from warmroute_backend.plan.model import CacheKind
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.speculation import PUBLISHED_STEPS, Draft, accepted_tokens
from warmroute_backend.plan.speed import STEP_S, Load, decode_step_s, prefill_tokens_per_s
from warmroute_backend.plan.words import KvType
from warmroute_cli.main import main as warmroute

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "plans.md"


class Shown(NamedTuple):
    """A command, its title, and the page's text about it."""

    title: str
    command: str
    text: str


SHOWN: Final = (
    Shown(
        "Kimi K2.5 on 8 H200",
        "warmroute plan --model kimi-k2.5 --gpus 8xH200 --input 60000 --output 400 --requests-per-s 0.5",
        "One request of 60,000 tokens arrives every two seconds, and the KV pool is the limit. Eight sessions of\n"
        "65,536 tokens stay cached in GPU memory, and 46 in host memory.",
    ),
    Shown(
        "Kimi K2.5 on 8 H100",
        "warmroute plan --model kimi-k2.5 --gpus 8xH100 --input 60000 --output 400",
        "The command finds no plan and exits with status 2.\n"
        "[Cloudflare](https://blog.cloudflare.com/high-performance-llms/) runs this model on 8 H100 in an engine that\n"
        "Cloudflare has written, with more than 30 GiB left for KV. The eight GPUs have 637 GiB. The weights take 554\n"
        "GiB of them, which leaves 83 GiB. With 30 GiB of KV, Cloudflare's engine can use 6.6 GiB of each GPU for all\n"
        "other needs. SGLang's rule keeps 10 GiB or more of each GPU free, and SGLang loads 73 GiB of weights there.",
    ),
    Shown(
        "DeepSeek V3.2 on 8 B200, with EAGLE and HiCache",
        "warmroute plan --model deepseek-v3.2 --gpus 8xB200 --speculation on --hicache on",
        "",
    ),
    Shown(
        "gpt-oss-120b on 8 H100, as 4+4",
        "warmroute plan --model gpt-oss-120b --gpus 8xH100 --pd 4+4 --input 20000 --output 500 --requests-per-s 4",
        "`--pd 4+4` asks for a prefill engine and a decode engine of four GPUs each. Without this option, the plan is\n"
        "one engine of eight GPUs, since two engines answer later at this traffic.",
    ),
    Shown(
        "Llama 4 Scout on 2 H200",
        "warmroute plan --model llama-4-scout --gpus 2xH200",
        "Cloudflare writes that 56 GiB of KV memory hold more than 1.2 million tokens. This figure counts 49,152\n"
        "bytes per token, for the 12 layers that see the whole context. SGLang also has a pool for the 36 layers that\n"
        "see only a chunk of 8,192 tokens. By default, this second pool has 0.8 tokens for each token of the first\n"
        "pool (`--swa-full-tokens-ratio`). So 56 GiB would hold 360,000 tokens, or 1.06 million with a ratio of 0.05\n"
        "and 1.19 million with 0.01. SGLang also keeps 13 GiB of each GPU out of the static memory, so 40 GiB are\n"
        "left, not 56.",
    ),
)

HEAD: Final = """# Plans

The page compares the formulas of [`warmroute plan`](../reference/plan.md) with published figures, and shows five plans
as the command prints them. `python -m bench.plans` makes the page. The docstrings of `backend/warmroute_backend/plan`
have the formula and source of each figure. Latencies are those of a queueing model whose step times come from a
roofline. They compare plans, and promise nothing about a GPU.

## Formulas against what was published

**Sizes of KV pools.** The published size is the size that an engine logged. The formula's size is the number of tokens
in that log, times the formula's bytes per token. *Groups* are data-parallel attention groups of an engine. *Raw rows*
are fp8 KV without scales ([memory](../reference/plan.md#memory)).

"""

UNKNOWN_FLAGS: Final = f"""
One log is left out, since it does not name the engine's flags. In this log, GLM-5.2-FP8 on 8 B200 has room for about
1.16 million tokens, or about 14 sessions of 80,000 tokens
([llm-d]({LLM_D})). With SGLang's fraction and the MTP layer,
the plan has {{planned:,}} tokens.
"""

CAPACITY_HEAD: Final = """
**Capacities.** The published figure is the number of KV tokens that an engine reported after its start with the GPUs
and memory fraction of the row. The planned figure follows from the whole plan: weights, CUDA or ROCm context, memory
that SGLang keeps free (slack), and bytes per token.

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
**Speeds.** Figures in ms are the times of a decode step with scheduling. Figures in tokens/s are prompt tokens per
second and node. Figures in *times* compare the prompt tokens per second of several nodes or pipeline stages with those
of one. The shares of the GPU's peak that the roofline assumes come from measured kernels, which `kernels.py` names.
Only two kinds of constants come from the runs below: the time of a layer, and the time of crossing nodes. `left out` is
the row's error if the constants come from other rows only, or "none" if no other row has that constant. Speeds depend
on versions of kernels, so their errors are larger than those of memory. Plans are compared by these speeds, and a
plan's latency is as uncertain as the speeds are.

"""


def rooflined(speed: Speed) -> float:
    """The planner's figure for a published speed, in the unit of that speed."""
    model, gpu = known_model(speed.model), GPUS[speed.gpu]
    if speed.weight_format:
        model = replace(model, weight_format=speed.weight_format, checkpoint_bytes=0)
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


def left_out(speed: Speed) -> float | None:
    """The error of the planner's figure, if its constants are not taken from the published figure. None if a constant
    has no other source.
    """
    if not speed.is_fitted:
        return rooflined(speed) / speed.published - 1
    others = [each for each in SPEEDS if each.layer_of and each.layer_of == speed.layer_of and each is not speed]
    if not others:
        return None
    more = statistics.mean((each.published - rooflined(each)) / known_model(each.model).layers for each in others)
    return (rooflined(speed) + more * known_model(speed.model).layers) / speed.published - 1


def band(*, of_prompts: bool) -> float:
    """The error that 8 of 10 errors of `left_out` do not exceed. Errors are factors, so that a figure that is half as
    high counts as much as one that is twice as high."""
    errors = sorted(
        max(1 + error, 1 / (1 + error)) - 1
        for each in SPEEDS
        if (each.batch == 0) == of_prompts and (error := left_out(each)) is not None
    )
    return errors[max(0, math.ceil(0.8 * len(errors)) - 1)]


def scaled(scaling: Scaling) -> float:
    """The planner's figure for a published ratio."""
    gpu, model = GPUS[scaling.gpu], known_model(scaling.model)
    load = Load(scaling.tokens, scaling.tokens, 1)
    base = EngineShape("prefill", min(scaling.tp, gpu.per_node), 1, scaling.chunk_tokens, 1, 1, "bf16", 64)
    shape = replace(base, tp=scaling.tp, pp=scaling.pp)
    return prefill_tokens_per_s(gpu, model, shape, load) / prefill_tokens_per_s(gpu, model, base, load)


def speed_row(speed: Speed) -> str:
    found = rooflined(speed)
    digits, unit = (1, "ms") if speed.batch else (0, "tokens/s")
    error = left_out(speed)
    return (
        f"| {speed.what} | {speed.published:,.{digits}f} {unit} | {found:,.{digits}f} {unit} "
        f"| {found / speed.published - 1:+.0%} | {'none' if error is None else f'{error:+.0%}'} "
        f"| [source]({speed.source}) |"
    )


def scaling_row(scaling: Scaling) -> str:
    found = scaled(scaling)
    return (
        f"| {scaling.what}, {scaling.gpu} | {scaling.published:.2f} times | {found:.2f} times "
        f"| {found / scaling.published - 1:+.0%} "
        f"| {'none' if scaling.is_fitted else f'{found / scaling.published - 1:+.0%}'} | [source]({PIPELINE}) |"
    )


def speeds() -> str:
    lines = ["| run | published | by roofline | error | left out | |", "|---|---|---|---|---|---|"]
    lines += [speed_row(each) for each in SPEEDS]
    lines += [scaling_row(each) for each in SCALINGS]
    errors = [abs(error) for each in SPEEDS if (error := left_out(each)) is not None]
    errors += [abs(scaled(each) / each.published - 1) for each in SCALINGS if not each.is_fitted]
    return (
        f"{SPEED_HEAD}"
        + "\n".join(lines)
        + (
            f"\n\nOf the {len(errors)} errors in `left out`, the median is {statistics.median(errors):.0%} and the "
            f"largest {max(errors):.0%}. Eight of ten are within a factor of {1 + band(of_prompts=True):.2f} for\n"
            f"prompts and {1 + band(of_prompts=False):.2f} for steps. If errors of this size decide whether a plan "
            "reaches its targets, the command\nprints `maybe`. Two rows are far outside: GLM-4.6 and GLM-5 on 8 B200. "
            "The cause is not published. Both engines ran an\nolder SGLang, and GLM-5 ran in the week of its release.\n"
        )
        + beside()
    )


BESIDE: Final = """
**Compared with AIConfigurator.** The measured kernels behind the roofline come from AIConfigurator, whose version
{version} adds up their times for each shape. The planner and AIConfigurator both estimate one prompt of the given
length alone, and one decode step of 32 sequences with answers of 512 tokens.

| model | GPUs | tokens | prompt, ms | by AIConfigurator | difference | step, ms | by AIConfigurator | difference |
|---|---|--:|--:|--:|--:|--:|--:|--:|
"""


def beside() -> str:
    """The table of sixteen pairs of model and GPU, by the planner and by AIConfigurator."""
    return BESIDE.format(version=VERSION) + "\n".join(_beside_row(each) for each in PAIRS) + "\n"


def estimated(pair: Pair) -> tuple[float, float]:
    """Milliseconds of a prompt and of a step by the planner."""
    gpu, model = GPUS[pair.gpu], known_model(pair.model)
    kv: KvType = "fp8_e4m3" if gpu.is_blackwell and model.kind is CacheKind.SPARSE else "bf16"
    prefill = EngineShape("prefill", pair.gpus, 1, 8192, 1, 1, kv, 64)
    decode = replace(prefill, role="decode", running_requests=pair.batch, graph_batch=pair.batch)
    load = Load(pair.tokens, pair.tokens, pair.output_tokens)
    prompt_s = pair.tokens / prefill_tokens_per_s(gpu, model, prefill, load)
    return prompt_s * 1e3, (decode_step_s(gpu, model, decode, load, pair.batch) + STEP_S) * 1e3


def _beside_row(pair: Pair) -> str:
    prompt, step = estimated(pair)
    cells = [f"{pair.model} | {pair.gpus} {pair.gpu} | {pair.tokens:,}"]
    for ours, theirs in ((prompt, pair.prompt_ms), (step, pair.step_ms)):
        cells.append(f"{ours:,.1f} | " + ("none |" if theirs is None else f"{theirs:,.1f} | {ours / theirs - 1:+.0%}"))
    return f"| {' | '.join(cells)} |"


ACCEPTED_HEAD: Final = """
**Drafts.** The figures are the tokens of a step in which drafts are verified, for MiniMax-M3 with EAGLE-3 on coding
prompts of SPEED-Bench. The planner starts from the published figure for three drafts, and computes the figures for
other numbers of drafts from it.

| drafts per step | tokens per step, published | tokens per step, computed | error |
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
    lines = ["| model, GPUs, memory fraction | tokens published | tokens planned | error | cause of the error | |"]
    lines.append("|---|---|---|---|---|---|")
    lines += [capacity_row(each) for each in CAPACITIES]
    median = f"{statistics.median(errors):.2%}"
    text += "\n".join(lines) + f"\n\nThe median error of these {len(errors)} sizes and capacities is {median}.\n"
    return text + UNKNOWN_FLAGS.format(planned=_glm_52_tokens())


def _glm_52_tokens() -> int:
    gpu, model = GPUS["B200"], known_model("glm-5.2")
    shape = EngineShape(
        "aggregated", 8, 1, 16_384, 64, 64, "fp8_e4m3", 64, draft_layers=1, draft_tokens=4, draft_is_mtp=True
    )
    return memory(gpu, model, shape, default_fraction(gpu, model, shape)).tokens


def output(command: str) -> str:
    """What a command prints to stdout and stderr."""
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


def command_line(about: str | None, file: Path, page: Callable[[], str]) -> int:
    """Write a page, or compare it."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    text = page()
    if check:
        return int(file.read_text() != text)
    file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(command_line(__doc__, PAGE, page))
