"""Verified recipes of SGLang's cookbook: the plan agrees that they fit, and divides the GPUs as they do."""

import pytest
from tests.unit.plan.cookbook import CELLS, Cell, renamed
from tests.unit.plan.plans import plan

from warmroute_backend.plan.argv import argv
from warmroute_backend.plan.check import problems

OBJECTIVES = {"low-latency": "latency", "balanced": "throughput", "high-throughput": "throughput"}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.gpus} {cell.strategy}")
def test_a_verified_cell_is_planned_alike(cell: Cell) -> None:
    flags = renamed(cell)
    all_to_all = flags.get("--moe-a2a-backend", "none")
    fraction = float(flags["--mem-fraction-static"])
    made = plan("glm-5", cell.gpus, objective=OBJECTIVES[cell.strategy], fraction=fraction, all_to_all=all_to_all)
    assert problems(made) == []
    assert len(made.engines) == 1
    command = argv(made, made.engines[0])
    assert ("--moe-a2a-backend" in command) == (all_to_all == "deepep")
    for flag in ("--tp-size", "--attn-dp-size", "--ep-size"):
        assert command[command.index(flag) + 1] == flags.get(flag, "1"), flag
