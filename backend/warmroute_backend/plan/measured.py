"""What `python -m scripts.gpu` has measured on one GPU, in place of the constants of its generation."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import Gpu
from warmroute_backend.plan.kernels import kernels

MOST: Final = 1.05
"""Of a peak: more has been measured wrongly, or on another GPU."""
_FIGURES: Final = (
    ("bf16_share", "bf16_tflops", "bf16_tflops", "products, bf16"),
    ("fp8_share", "fp8_tflops", "fp8_tflops", "products, fp8"),
    ("attention_share", "attention_tflops", "bf16_tflops", "attention of prompts"),
    ("read_share", "read_gb_s", "bandwidth_gb_s", "reading memory"),
)
"""Field of a GPU, key of the file, the peak, words."""


def measured_gpu(document: Mapping[str, Any], gpus: Mapping[str, Gpu], where: str) -> Gpu:
    """The GPU of a file with its measured shares. Raises PlanError where it has none, or of no known GPU."""
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
    """The GPU of the longest name of which all words are in that of the device."""
    words = device.upper().replace("-", " ").split()
    fits = [gpu for gpu in gpus.values() if all(word in words for word in gpu.name.upper().split("-"))]
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
