#!/usr/bin/env python3
"""Check the structure of sdk, proxy, backend and scripts, and print a table: circles, sizes, names.

    scripts/check_structure.py            every check; exits with 1 if one fails
    scripts/check_structure.py --list     every function, file, class and folder that is near its limit, too

import-linter holds the direction of imports between rooms. This holds the rest of what keeps the tree readable:

- no circle of imports among modules; imports under `TYPE_CHECKING` and inside functions count
- a folder has at most 22 modules, a file 400 lines, a function 50 lines and 8 parameters, a class 20 attributes
- no element of a tuple by a number above 1: a structure of more than two values has names
- each package says in its docstring what it is for, and names its modules
- (vocabulary: `scripts/vocabulary.py`)

Plain records of a wire or ledger format (msgspec structures, named tuples, dataclasses) may have more attributes.
"""

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("sdk", "proxy", "backend")
MAX_MODULES: Final = 22
MAX_FILE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 50
MAX_PARAMETERS: Final = 8
MAX_ATTRIBUTES: Final = 20
MAX_INDEX: Final = 1
RECORDS: Final = frozenset({"Struct", "NamedTuple", "Frozen", "dataclass"})
SEQUENCES: Final[Mapping[str, str]] = {}
"""`file: expression` whose elements are indexed by number because it is a sequence of like values, and what it is."""


@dataclass(frozen=True)
class Finding:
    """One measured thing: what, where, how large, and the limit."""

    check: str
    where: str
    size: int
    limit: int

    @property
    def fails(self) -> bool:
        """Whether it is over the limit."""
        return self.size > self.limit


def modules() -> dict[str, Path]:
    """All modules of the sources by dotted name; a package by its own."""
    found = {}
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            parts = path.relative_to(ROOT / source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, known: Mapping[str, Path]) -> set[str]:
    """The modules of ours that a module names in any import."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in known else node.module)
    return found & known.keys()


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of modules that import each other: strongly connected components of two or more (Kosaraju)."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        _visit(start, graph, seen, order)
    reverse: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            reverse[target].add(name)
    seen = set()
    found = []
    for start in reversed(order):
        component: list[str] = []
        _visit(start, reverse, seen, component)
        if len(component) > 1:
            found.append(sorted(component))
    return found


def _visit(start: str, graph: Mapping[str, set[str]], seen: set[str], order: list[str]) -> None:
    """Add what can be reached from `start` to `order`, each after all that it reaches."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(sorted(graph.get(start, ()))))]
    while stack:
        name, targets = stack[-1]
        target = next((each for each in targets if each not in seen), None)
        if target is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(target)
            stack.append((target, iter(sorted(graph.get(target, ())))))


def measured(path: Path, tree: ast.Module, lines: int) -> Iterator[Finding]:
    """The sizes of one file and all that it defines."""
    where = path.relative_to(ROOT).as_posix()
    yield Finding("lines of a file", where, lines, MAX_FILE_LINES)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Finding("lines of a function", f"{where}:{node.lineno} {node.name}", length, MAX_FUNCTION_LINES)
            yield Finding("parameters", f"{where}:{node.lineno} {node.name}", _parameters(node), MAX_PARAMETERS)
        elif isinstance(node, ast.ClassDef) and not _is_record(node):
            count = len(_attributes(node))
            yield Finding("attributes of a class", f"{where}:{node.lineno} {node.name}", count, MAX_ATTRIBUTES)
        elif isinstance(node, ast.Subscript):
            index = node.slice.value if isinstance(node.slice, ast.Constant) else None
            text = f"{where}: {ast.unparse(node.value)}"
            if isinstance(index, int) and not isinstance(index, bool) and text not in SEQUENCES:
                yield Finding("index of an element", f"{where}:{node.lineno} {ast.unparse(node)}", index, MAX_INDEX)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many a caller can give: all but `self` and `cls`."""
    given = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(given) - (bool(given) and given[0] in {"self", "cls"})


def _is_record(node: ast.ClassDef) -> bool:
    """Whether a class is a plain record."""
    named = [*node.bases, *(d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)]
    return any(ast.unparse(each).split(".")[-1].split("[")[0] in RECORDS for each in named)


def _attributes(node: ast.ClassDef) -> set[str]:
    """The names that its methods set on `self`, and those that the class body annotates without a default."""
    found = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    for each in node.body:
        if (
            isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and "ClassVar" not in ast.unparse(each)
        ):
            found.add(each.target.id)
        elif isinstance(each, ast.Assign):
            names = {target.id for target in each.targets if isinstance(target, ast.Name)}
            found |= {name for name in names if not name.startswith("__") and not name.isupper()}
    return found


def unnamed(known: Mapping[str, Path]) -> list[str]:
    """Packages without a docstring of a sentence or two, and modules that their package's docstring does not name."""
    found = []
    for name, path in known.items():
        if path.name == "__init__.py" and path.parent.parent.name not in SOURCES:
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            if len(text.splitlines()) < 3:
                found.append(
                    f"{path.relative_to(ROOT)}: its docstring does not say what the package is for, and never does"
                )
            own = {other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == name}
            found += [
                f"{path.relative_to(ROOT)}: does not name {each}" for each in sorted(own) if f"{each}" not in text
            ]
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="show all that is over three quarters of its limit")
    asked = parser.parse_args()
    known = modules()
    trees = {name: ast.parse(path.read_text()) for name, path in known.items()}
    graph = {name: imported(tree, known) - {name} for name, tree in trees.items()}
    findings: list[Finding] = []
    for name, path in known.items():
        findings += measured(path, trees[name], len(path.read_text().splitlines()))
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        text = path.read_text()
        findings += measured(path, ast.parse(text), len(text.splitlines()))
    folders: dict[str, int] = defaultdict(int)
    for path in known.values():
        folders[path.parent.relative_to(ROOT).as_posix()] += 1
    findings += [Finding("modules of a folder", folder, count, MAX_MODULES) for folder, count in folders.items()]
    return _report(findings, circles(graph), unnamed(known), len(known), asked.list)


def _report(findings: list[Finding], found: list[list[str]], nameless: list[str], count: int, near: bool) -> int:
    """Print the table, then what is wrong; the exit status."""
    print(f"{'check':24} {'limit':>6} {'largest':>8} {'over':>5}   the largest")
    for check in dict.fromkeys(each.check for each in findings):
        of_check = [each for each in findings if each.check == check]
        largest = max(of_check, key=lambda each: each.size)
        over = sum(each.fails for each in of_check)
        print(f"{check:24} {largest.limit:6} {largest.size:8} {over:5}   {largest.where}")
    print(f"{'circles of imports':24} {0:6} {len(found):8} {len(found):5}   {count} modules")
    print(f"{'unnamed in its package':24} {0:6} {len(nameless):8} {len(nameless):5}")
    shown = [each for each in findings if each.fails or (near and each.size > 0.75 * each.limit > 1)]
    for each in sorted(shown, key=lambda each: (each.check, -each.size)):
        print(f"{'TOO MANY' if each.fails else 'near'}: {each.check}: {each.where}: {each.size}, at most {each.limit}")
    for circle in found:
        print(f"CIRCLE: {', '.join(circle)}")
    for text in nameless:
        print(f"UNNAMED: {text}")
    return int(any(each.fails for each in findings) or bool(found) or bool(nameless))


if __name__ == "__main__":
    sys.exit(main())
