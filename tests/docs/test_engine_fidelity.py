"""The table of differences is whole, and no test of the contract makes a difference that is not in it."""

import ast
from pathlib import Path

import pytest
from tests.contract.differences import SHOWN_BY, rows

CONTRACT = Path(__file__).parents[1] / "contract"


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(path.read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def tells_apart(function: ast.FunctionDef, helpers: set[str]) -> bool:
    """Whether a function looks at which subject it has, itself or through a helper that does."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "kind")
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in helpers)
        for node in ast.walk(function)
    )


@pytest.mark.parametrize(("row", "name"), list(zip(rows(), SHOWN_BY, strict=True)), ids=list(SHOWN_BY))
def test_a_row_says_what_differs_and_why(row: list[str], name: str) -> None:
    what, sglang, embedded, why = row
    assert what.startswith(name)
    assert sglang != embedded
    assert why


def test_every_difference_has_a_test_and_every_test_that_makes_one_has_a_row() -> None:
    made = set()
    for path in CONTRACT.rglob("test_*.py"):
        found = functions(path)
        helpers = {name for name, function in found.items() if tells_apart(function, set()) and name[:5] != "test_"}
        tests = (name for name, function in found.items() if name[:5] == "test_" and tells_apart(function, helpers))
        made |= {f"{path.relative_to(CONTRACT)}::{name}" for name in tests}
    recorder = "test_golden.py::test_an_answer_has_the_shape_of_the_recorded_one"  # it records from one subject
    assert made - {recorder} == set(SHOWN_BY.values())
