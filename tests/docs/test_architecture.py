"""The architecture page leads through the code: its steps name functions."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/contribute/architecture.md"
SOURCES = "https://github.com/warmroute/warmroute/blob/main/"
STEP = re.compile(r"^\| (\d) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)


def linked(text: str) -> list[Path]:
    """The files of the repository that a text links to."""
    return [ROOT / target for target in re.findall(rf"\]\({SOURCES}([^)#]+)\)", text)]


def functions(path: Path) -> set[str]:
    """The functions and methods of a module, methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def test_a_request_takes_eight_steps_in_at_most_ten_files() -> None:
    steps = STEP.findall(PAGE.read_text())
    assert [number for number, *_ in steps] == list("12345678")
    assert len({path for *_, files in steps for path in linked(files)}) <= 10


def test_each_step_names_functions_of_its_files() -> None:
    for number, _, named, files in STEP.findall(PAGE.read_text()):
        defined = set[str]().union(*map(functions, linked(files)))
        missing = set(re.findall(r"`([\w.]+)`", named)) - defined
        assert not missing, f"step {number}: {missing}"
