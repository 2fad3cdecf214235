"""What stands for the engines of a plan. Apart, since the command line names it at each start."""

from typing import Final, Literal

EngineKind = Literal["sglang", "embedded", "sglang-cpu"]
ENGINES: Final[tuple[EngineKind, ...]] = ("sglang", "embedded", "sglang-cpu")
