"""Verified recipes of SGLang's cookbook: the plan agrees that they fit, and divides the GPUs as they do."""

import pytest
from tests.unit.plan.cookbook import CELLS, Cell, renamed
from tests.unit.plan.plans import plan

from warmroute_backend.plan.argv import argv

OBJECTIVES = {"low-latency": "latency", "balanced": "throughput", "high-throughput": "throughput"}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.gpus} {cell.strategy}")
def test_a_verified_cell_is_planned_alike(cell: Cell) -> None:
    flags = renamed(cell)
    made = plan("glm-5", cell.gpus, objective=OBJECTIVES[cell.strategy], fraction=float(flags["--mem-fraction-static"]))
    assert len(made.engines) == 1
    command = argv(made, made.engines[0])
    for flag in ("--tp-size", "--attn-dp-size", "--ep-size"):
        assert command[command.index(flag) + 1] == flags.get(flag, "1"), flag
