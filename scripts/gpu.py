"""Measures a GPU's speed with PyTorch alone, to replace the planner's constants; takes less than 8 minutes.

    python -m scripts.gpu --out measured.toml          on a GPU without an engine, by a Python that has torch
    python -m scripts.gpu --toy                        tiny sizes on a CPU, to try the program; its figures are useless
    warmroute plan --measured measured.toml ...        plans with the figures in place of the constants

The program measures the bandwidth of memory, products with weights at the shapes of five models (bf16, and fp8 and int4
if this torch has them), attention of prompts and of decode steps after 2k to 128k tokens, and a layer of each
architecture with random weights. Measurements for which time or memory is too short are left out and named. Only torch
and the standard library are needed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

LIMIT_S: Final = 450.0
REPEATS: Final = 7
PROMPT: Final = 8_192
CONTEXTS: Final = tuple(1 << bits for bits in range(11, 18))
BATCH: Final = 32


@dataclass(frozen=True)
class Shape:
    """The shape of the part of a model that is on one GPU. `latent`: whether attention is MLA. `experts`: the number of
    experts; `active`: how many of them a token uses."""

    model: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    experts: int = 0
    active: int = 0
    latent: bool = False
    window: int = 0

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Name of a weight -> its rows and columns."""
        width = self.heads * self.head_dim
        return {
            "qkv": (width + 2 * self.kv_heads * self.head_dim, self.hidden),
            "out": (self.hidden, width),
            "up": (2 * self.width, self.hidden),
            "down": (self.hidden, self.width),
        }


SHAPES: Final = (
    Shape("llama-3.3-70b, 4 GPUs", 8192, 16, 2, 128, 7168),
    Shape("qwen3-235b, 4 GPUs", 4096, 16, 1, 128, 384, 128, 8),
    Shape("deepseek-r1, 8 GPUs", 7168, 16, 16, 128, 256, 256, 8, latent=True),
    Shape("gpt-oss-120b, 4 GPUs", 2880, 16, 2, 64, 720, 128, 4, window=128),
    Shape("qwen3-32b, 2 GPUs", 5120, 32, 4, 128, 12800),
)
"""A model of each architecture that the planner knows, and a second dense model."""

TOY: Final = Shape("a toy", 64, 2, 1, 16, 64, 4, 2, latent=True, window=16)


@dataclass(frozen=True)
class Measurement:
    """The result `value` of measuring `what`, in `unit`."""

    what: str
    value: float
    unit: str


@dataclass
class Bench:
    """A device, its measurements so far, and the limit of time."""

    torch: Any
    device: str
    limit_s: float
    repeats: int = REPEATS
    found: list[Measurement] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _begun_s: float = field(default_factory=time.perf_counter)

    def seconds(self, run: Callable[[], object]) -> float:
        """The median time of some runs, after a first run that compiles and warms up."""
        run()
        times = []
        for _ in range(self.repeats):
            self._wait()
            begun_s = time.perf_counter()
            run()
            self._wait()
            times.append(time.perf_counter() - begun_s)
        return statistics.median(times)

    def _wait(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def measure(self, what: str, make: Callable[[], Callable[[], object]], amount: float, unit: str) -> None:
        """Time the function that `make` returns. `amount`: its work in 1e12 operations (for TFLOPS) or 1e9 bytes (for
        GB/s); not used for ms.
        """
        if time.perf_counter() - self._begun_s > self.limit_s:
            self.left_out.append(f"{what}: no time is left")
            return
        try:
            taken_s = self.seconds(make())
        except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError) as error:
            self.left_out.append(f"{what}: {str(error).splitlines()[0][:100] if str(error) else type(error).__name__}")
            return
        value = taken_s * 1e3 if unit == "ms" else amount / taken_s
        self.found.append(Measurement(what, value, unit))


def measure_bandwidth(bench: Bench, size: int) -> None:
    torch = bench.torch

    def reads() -> Callable[[], object]:
        values = torch.zeros(size // 2, dtype=torch.bfloat16, device=bench.device)
        return values.sum  # type: ignore[no-any-return]

    bench.measure("memory, reading", reads, size / 1e9, "GB/s")


def measure_products(bench: Bench, shape: Shape, tokens: int) -> None:
    """Measure each product with `tokens` tokens of a prompt, and with the tokens of a decode step."""
    for name, (rows, columns) in shape.products.items():
        for count in (tokens, min(tokens, BATCH)):
            for kind, make in _formats(bench, rows, columns, count).items():
                what = f"{shape.model}: {name} {kind}, {count} tokens"
                bench.measure(what, make, 2 * rows * columns * count / 1e12, "TFLOPS")


def _formats(bench: Bench, rows: int, columns: int, count: int) -> dict[str, Callable[[], Callable[[], object]]]:
    torch, device = bench.torch, bench.device

    def bf16() -> Callable[[], object]:
        given = torch.randn(count, columns, dtype=torch.bfloat16, device=device)
        weight = torch.randn(rows, columns, dtype=torch.bfloat16, device=device)
        return lambda: given @ weight.T

    def fp8() -> Callable[[], object]:
        given = torch.randn(count, columns, device=device).to(torch.float8_e4m3fn)
        weight = torch.randn(rows, columns, device=device).to(torch.float8_e4m3fn)
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(given, weight.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    def int4() -> Callable[[], object]:
        group = 32
        given = torch.randn(count, columns, dtype=torch.bfloat16, device=device)
        packed = torch.randint(0, 255, (rows, columns // 2), dtype=torch.uint8, device=device)
        weight = torch._convert_weight_to_int4pack(packed, 8)
        scales = torch.ones(columns // group, rows, 2, dtype=torch.bfloat16, device=device)
        return lambda: torch._weight_int4pack_mm(given, weight, group, scales)

    return {"bf16": bf16, "fp8": fp8, "int4": int4}


def measure_attention(bench: Bench, shape: Shape, context: int, batch: int) -> None:
    """Measure attention over a whole prompt of `context` tokens, and in a step of `batch` sequences of that length."""
    torch, device = bench.torch, bench.device
    attend = torch.nn.functional.scaled_dot_product_attention

    def tensors(count: int, tokens: int, heads: int) -> Any:
        return torch.randn(count, heads, tokens, shape.head_dim, dtype=torch.bfloat16, device=device)

    def prompt() -> Callable[[], object]:
        queries = tensors(1, context, shape.heads)
        keys, values = tensors(1, context, shape.kv_heads), tensors(1, context, shape.kv_heads)
        return lambda: attend(queries, keys, values, is_causal=True, enable_gqa=True)

    def step() -> Callable[[], object]:
        queries = tensors(batch, 1, shape.heads)
        keys, values = tensors(batch, context, shape.kv_heads), tensors(batch, context, shape.kv_heads)
        return lambda: attend(queries, keys, values, enable_gqa=True)

    operations = 2 * shape.heads * shape.head_dim * context**2 / 1e12
    bench.measure(f"{shape.model}: attention of a prompt of {context}", prompt, operations, "TFLOPS")
    read = batch * context * 2 * shape.kv_heads * shape.head_dim * 2 / 1e9
    bench.measure(f"{shape.model}: attention of a step after {context}, batch {batch}", step, read, "GB/s")


def measure_layer(bench: Bench, shape: Shape, tokens: int, batch: int) -> None:
    """Measure a layer with random weights in bf16: attention over a prompt, then the feed-forward block."""
    for count in (tokens, batch):
        bench.measure(f"{shape.model}: a layer, {count} tokens", partial(_layer, bench, shape, count), 0, "ms")


def _layer(bench: Bench, shape: Shape, count: int) -> Callable[[], object]:
    torch, device = bench.torch, bench.device
    relu, attend = torch.nn.functional.silu, torch.nn.functional.scaled_dot_product_attention

    def weight(*sizes: int) -> Any:
        return torch.randn(*sizes, dtype=torch.bfloat16, device=device) * 0.02

    made = {
        name: weight(*sizes) for name, sizes in shape.products.items() if shape.experts == 0 or name in {"qkv", "out"}
    }
    rank = min(512, shape.hidden // 2)
    down, up = weight(rank, shape.hidden), weight(2 * shape.kv_heads * shape.head_dim, rank)
    router = weight(max(1, shape.experts), shape.hidden)
    gates = weight(shape.experts, shape.hidden, 2 * shape.width) if shape.experts else None
    backs = weight(shape.experts, shape.width, shape.hidden) if shape.experts else None
    given = weight(count, shape.hidden)
    width, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    mask = None
    if shape.window:
        at = torch.arange(count, device=device)
        behind = at[:, None] - at[None, :]
        mask = (behind >= 0) & (behind < shape.window)

    def attention(values: Any) -> Any:
        mixed = values @ made["qkv"].T
        keys = (values @ down.T) @ up.T if shape.latent else mixed[:, width:]
        parts = [
            part.view(1, count, -1, shape.head_dim).transpose(1, 2)
            for part in (mixed[:, :width], keys[:, :kv], keys[:, kv : 2 * kv])
        ]
        found = attend(*parts, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return values + found.transpose(1, 2).reshape(count, width) @ made["out"].T

    def block(values: Any) -> Any:
        if gates is None or backs is None:
            both = values @ made["up"].T
            return values + (relu(both[:, : shape.width]) * both[:, shape.width :]) @ made["down"].T
        chosen = (values @ router.T).topk(shape.active).indices.flatten()
        each = -(-count * shape.active // shape.experts)  # as if tokens were spread evenly over experts
        order = chosen.argsort()[: each * shape.experts]
        rows = values[order.clamp(max=count * shape.active - 1) // shape.active]
        rows = torch.nn.functional.pad(rows, (0, 0, 0, each * shape.experts - len(rows)))
        both = torch.bmm(rows.view(shape.experts, each, shape.hidden), gates)
        found = torch.bmm(relu(both[..., : shape.width]) * both[..., shape.width :], backs)
        return values + found.sum() / count

    return lambda: block(attention(given))


def run(bench: Bench, shapes: tuple[Shape, ...], *, toy: bool) -> None:
    """Measure everything, beginning with what the planner reads."""
    tokens = 64 if toy else PROMPT
    batch = 4 if toy else BATCH
    measure_bandwidth(bench, 1 << (20 if toy else 32))
    for shape in shapes:
        measure_products(bench, shape, tokens)
    for context in (128, 256) if toy else CONTEXTS:
        measure_attention(bench, shapes[0], context, 2 if toy else max(1, BATCH * PROMPT // context))
    for shape in shapes:
        measure_layer(bench, shape, tokens, batch)


def figures(found: list[Measurement]) -> dict[str, float]:
    """The figures that the planner reads (`warmroute_backend.plan.measured`): the median over the products of a prompt
    by format, the best figure of attention, and the bandwidth of memory.
    """
    rates = [each for each in found if each.unit == "TFLOPS"]
    largest = max((_tokens(each.what) for each in rates), default=0)
    made = {}
    for kind in ("bf16", "fp8", "int4"):
        values = [each.value for each in rates if f" {kind}," in each.what and _tokens(each.what) == largest]
        if values:
            made[f"{kind}_tflops"] = statistics.median(values)
    attention = [each.value for each in rates if "attention of a prompt" in each.what]
    if attention:
        made["attention_tflops"] = max(attention)
    reading = next((each.value for each in found if each.what == "memory, reading"), None)
    return made if reading is None else {**made, "read_gb_s": reading}


def _tokens(what: str) -> int:
    return int(what.rpartition(", ")[2].split()[0]) if what.endswith("tokens") else 0


def text_of(device: str, version: str, bench: Bench, *, toy: bool) -> str:
    """The text of the TOML file. Strings are written as JSON, which is also valid in TOML."""
    note = "tiny sizes on a CPU: no GPU was used, and nothing here is for plans" if toy else ""
    lines = ["[measured]", f"device = {json.dumps(device)}", f"torch = {json.dumps(version)}"]
    lines.append(f"note = {json.dumps(note)}")
    lines.append(f"left_out = {json.dumps(bench.left_out)}")
    lines += [f"{name} = {value:.6g}" for name, value in figures(bench.found).items()]
    for each in bench.found:
        lines += ["", "[[measurement]]", f"what = {json.dumps(each.what)}", f"value = {each.value:.6g}"]
        lines.append(f"unit = {json.dumps(each.unit)}")
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("measured.toml"))
    parser.add_argument("--toy", action="store_true", help="tiny sizes on a CPU, to try the program")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="start no measurement after this time")
    arguments = parser.parse_args(words)
    import torch  # type: ignore[import-not-found]

    if not arguments.toy and not torch.cuda.is_available():
        print("torch finds no GPU here: nothing is measured; --toy tries the program on a CPU", file=sys.stderr)
        return 2
    device = "cpu" if arguments.toy else torch.cuda.get_device_name(0)
    bench = Bench(torch, "cpu" if arguments.toy else "cuda", arguments.limit_s, 1 if arguments.toy else REPEATS)
    with torch.inference_mode():
        run(bench, (TOY,) if arguments.toy else SHAPES, toy=arguments.toy)
    arguments.out.write_text(text_of(device, torch.__version__, bench, toy=arguments.toy))
    for each in bench.found:
        print(f"{each.what:70} {each.value:12.2f} {each.unit}")
    for text in bench.left_out:
        print(f"left out: {text}")
    if arguments.toy:
        print("no GPU was used: these are tiny sizes on a CPU")
    print(
        f"written: {arguments.out}; `warmroute plan --measured {arguments.out} --list` compares it with the constants"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
