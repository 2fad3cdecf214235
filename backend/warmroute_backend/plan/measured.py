"""The page of a plan as text, and a GPU with the shares of its peaks that `python -m scripts.gpu` has measured."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from warmroute_backend.plan.deployment import Plan, PlannedEngine
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import GIB, Gpu
from warmroute_backend.plan.kernels import kernels
from warmroute_backend.plan.memory import EngineShape, requests_held
from warmroute_backend.plan.model import CacheKind, unplanned
from warmroute_backend.plan.tiers import host_tokens, store_tokens

SESSION_TOKENS = (16_384, 65_536, 131_072)

WIDTH: Final = 80
"""The width of a reason in columns."""


def page(plan: Plan, more: Iterable[str] = ()) -> str:
    """The page of a plan. `more`: further sections at its end, such as the sizing."""
    sections = [_title(plan), _engines(plan)]
    if plan.model.kind is CacheKind.UNKNOWN:
        sections.append(unplanned(plan.model.name, plan.model.architecture))
    else:
        sections += [_memory(plan), _warm(plan)]
    sections += [_choices(plan), *more] if plan.choices else more
    return "\n\n".join(sections) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as text. The first column is aligned left, the other columns right."""
    lines = [tuple(heads), *map(tuple, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _title(plan: Plan) -> str:
    lines = [f"{plan.model.name} on {plan.cluster}, for {plan.objective}", f"checkpoint: {plan.model.path}"]
    if plan.traffic is not None:
        found = plan.traffic
        lines.append(
            f"traffic: {found.requests_per_s:g} requests/s of {found.input_tokens:,} tokens in and "
            f"{found.output_tokens:,} out, {found.cached_share:.0%} of a prompt cached"
        )
    return "\n".join(lines)


def _engines(plan: Plan) -> str:
    heads = ("engine", "node", "GPUs", "TP", "groups", "EP", "fraction", "chunk", "running", "context")
    rows = []
    for engine in plan.engines:
        shape = engine.shape
        last_gpu = engine.first_gpu + engine.gpus_each_node - 1
        nodes = str(engine.node) if engine.nodes == 1 else f"{engine.node}-{engine.node + engine.nodes - 1}"
        gpus = str(engine.first_gpu) if last_gpu == engine.first_gpu else f"{engine.first_gpu}-{last_gpu}"
        rows.append(
            (
                engine.name, nodes, gpus, _stages(shape), str(shape.attention_dp), _experts(engine),
                f"{engine.fraction:.3f}", f"{shape.chunk_tokens:,}", str(shape.running_requests),
                f"{engine.context_tokens:,}",
            )
        )  # fmt: skip
    return "Engines\n" + table(heads, rows)


def _stages(shape: EngineShape) -> str:
    return str(shape.tp) if shape.pp == 1 else f"{shape.tp} PP {shape.pp}"


def _experts(engine: PlannedEngine) -> str:
    return str(engine.ep) if engine.shape.all_to_all == "none" else f"{engine.ep} DeepEP"


def _memory(plan: Plan) -> str:
    heads = ("engine", "total", "free", "weights", "slack", "pool", "B/token", "per rank", "tokens")
    rows = []
    for engine in plan.engines:
        found = plan.memory(engine)
        rows.append(
            (
                engine.name, f"{found.total / GIB:.1f}", f"{found.free_before_weights / GIB:.1f}",
                f"{found.weights / GIB:.1f}", f"{found.slack / GIB:.1f}", f"{found.pool / GIB:.1f}",
                f"{found.cell:,.0f}", f"{found.tokens:,}", f"{found.tokens * engine.ranks:,}",
            )
        )  # fmt: skip
    return "Memory: GiB on each GPU, bytes of a token, tokens\n" + table(heads, rows)


def warm_sessions(plan: Plan, tokens: int) -> dict[str, int]:
    """How many sessions of `tokens` tokens stay cached in each tier, over all engines that keep prefixes. A session
    that is also in a higher tier counts in both tiers."""
    found = {"device": 0, "host": 0, "store": store_tokens(plan) // tokens}
    for engine in plan.engines:
        if engine.role != "decode":
            found["device"] += requests_held(plan.memory(engine), plan.model, engine.shape, tokens) * engine.ranks
            found["host"] += host_tokens(plan, engine) // tokens * engine.ranks
    return found


def _warm(plan: Plan) -> str:
    rows = [
        (f"{tokens:,}", *(f"{count:,}" for count in warm_sessions(plan, tokens).values())) for tokens in SESSION_TOKENS
    ]
    return "Sessions that stay warm\n" + table(("tokens each", "GPU memory", "host memory", "shared store"), rows)


def _choices(plan: Plan) -> str:
    lines = ["Choices"]
    for choice in plan.choices:
        lines.append(_filled(f"{choice.topic}: {choice.value}"))
        lines.append(_filled(choice.because[:1].upper() + choice.because[1:], indent="    "))
    return "\n".join(lines)


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


MOST: Final = 1.05
"""The largest share of a peak that is accepted: a larger value was measured wrongly, or on another GPU."""
_FIGURES: Final = (
    ("bf16_share", "bf16_tflops", "bf16_tflops", "products, bf16"),
    ("fp8_share", "fp8_tflops", "fp8_tflops", "products, fp8"),
    ("attention_share", "attention_tflops", "bf16_tflops", "attention of prompts"),
    ("read_share", "read_gb_s", "bandwidth_gb_s", "reading memory"),
)
"""For each measured share: its field of a GPU, its key in the file, the GPU's field of the peak, and its name."""


def measured_gpu(document: Mapping[str, Any], gpus: Mapping[str, Gpu], where: str) -> Gpu:
    """The GPU that a file of `python -m scripts.gpu` is about, with its measured shares. Raises PlanError if the file
    has no measurements, or an unknown GPU.
    """
    table = document.get("measured")
    if not isinstance(table, Mapping):
        raise PlanError(f"{where}: it has no table [measured], as `python -m scripts.gpu` writes it.")
    if table.get("note"):
        raise PlanError(f"{where}: {table['note']}.")
    gpu = _known(str(table.get("device", "")), gpus)
    if gpu is None:
        raise PlanError(f"{where}: {table.get('device')!r} is not a known GPU; give its peaks in a --hardware file.")
    shares = {}
    for field, key, peak, _ in _FIGURES:
        value, most = table.get(key), getattr(gpu, peak)
        if value is None or not most:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most * MOST:
            raise PlanError(f"{where}: measured.{key} is {value!r}, and the peak of {gpu.name} is {most:g}.")
        shares[field] = value / most
    return replace(gpu, **shares)


def _known(device: str, gpus: Mapping[str, Gpu]) -> Gpu | None:
    """The GPU with the longest name whose words are all in the device's name."""
    fits = [gpu for gpu in gpus.values() if gpu.is_named(device)]
    return max(fits, key=lambda gpu: len(gpu.name), default=None)


def comparison(gpu: Gpu) -> Iterator[str]:
    """A line for each measured share, beside the constant that it replaces."""
    found = kernels(gpu)
    constants = (found.dense.get("bf16"), found.dense.get("fp8"), found.attention, found.read)
    for (field, _, _, words), constant in zip(_FIGURES, constants, strict=True):
        share = getattr(gpu, field)
        if share and constant:
            measured = f"{gpu.name}, {words}: measured {share:.0%} of the peak"
            yield f"{measured}, {constant:.0%} planned without ({share / constant - 1:+.0%})"
