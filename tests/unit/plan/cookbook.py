"""Cells of SGLang's cookbook for 8 GPUs that say `verified: true`, and the flags that 0.5.23 has renamed.

GLM-5.1 has GLM-5's shape; GLM-5.2 has it too but for layers that share an index, so a plan of GLM-5 holds no more than
one of GLM-5.2. Cells of Qwen3.5 are of a hybrid family, which the planner refuses; of Kimi-K2.6 none
is verified.
"""

from typing import Final, NamedTuple

RENAMED: Final = {
    "--tp": "--tp-size",
    "--dp": "--attn-dp-size",
    "--enable-dp-attention": "",
    "--moe-a2a-backend deepep": "--ep-size",
}
"""DeepEP takes all GPUs. An empty name: the flag is gone, since what replaces another says the same
(`fields/parallel.py`)."""


_CONFIGS: Final = "docs_new/src/snippets/configs/zai-org"
SOURCE: Final = tuple(
    (name, f"https://github.com/sgl-project/sglang/blob/{commit}/{_CONFIGS}/{name}.jsx")
    for name, commit in (
        ("glm-5.2", "0415ca3571cc3272e9bcd3427e50f5f9b7452195"),
        ("glm-5.1", "905d7b3a523ca2bfca53c71a7d833392e76cd5c6"),
    )
)


class Cell(NamedTuple):
    """A cell's GPUs and flags."""

    gpus: str
    strategy: str
    flags: str


LOW: Final = "--tp 8 --mem-fraction-static 0.8"
HIGH: Final = "--tp 8 --dp 8 --enable-dp-attention --moe-a2a-backend deepep --mem-fraction-static 0.85"

CELLS: Final = (
    Cell("8xH200", "low-latency", LOW),
    Cell("8xH200", "balanced", HIGH),
    Cell("8xH200", "high-throughput", HIGH),
    Cell("8xB200", "low-latency", LOW),
    Cell("8xB200", "balanced", HIGH),
    Cell("8xB200", "high-throughput", HIGH),
    Cell("8xMI300X", "low-latency", LOW),
)


def renamed(cell: Cell) -> dict[str, str]:
    """The flags of a cell by their names in 0.5.23."""
    found = {}
    text = cell.flags
    for old, new in RENAMED.items():
        if " " in old and old in text:
            text = text.replace(old, "")
            found[new] = "8"
            found["--moe-a2a-backend"] = "deepep"
    words = text.split()
    for at, word in enumerate(words):
        if word.startswith("--"):
            name = RENAMED.get(word, word)
            if name:
                found[name] = words[at + 1]
    return found
