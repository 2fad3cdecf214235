"""The architecture page leads through the code: its steps name functions, and its rooms name all modules."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/contribute/architecture.md"
SOURCES = "https://github.com/warmroute/warmroute/blob/main/"
STEP = re.compile(r"^\| (\d) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)
PACKAGES = sorted(path.parent for path in ROOT.glob("*/warmroute*/__init__.py"))


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


def test_every_module_is_reached_from_the_page_or_from_its_package() -> None:
    page = set(linked(PAGE.read_text()))
    reached = {path for path in page if path.name != "__init__.py"}
    todo = [path for path in page if path.name == "__init__.py"]
    while todo:
        package = todo.pop()
        reached.add(package)
        text = ast.get_docstring(ast.parse(package.read_text())) or ""
        for path in package.parent.glob("*.py"):
            if re.search(rf"\b{path.stem}\b", text):
                reached.add(path)
        rooms = set(package.parent.glob("*/__init__.py")) - reached
        todo += [room for room in rooms if re.search(rf"\b{room.parent.name}\b", text)]
    every = {path for folder in PACKAGES for path in folder.rglob("*.py") if path.name != "__main__.py"}
    lost = sorted(path.relative_to(ROOT).as_posix() for path in every - reached)
    assert not lost
