#!/usr/bin/env python3
"""Checks import cycles and sizes in sdk, proxy, backend, lab and scripts, and prints a table.

    scripts/check_structure.py            runs all checks; prints `ok`, or the number of faults with status 1
    scripts/check_structure.py --list     also lists what is above three quarters of its limit

import-linter checks the direction of imports between packages. This script checks the other rules that keep the tree
readable:

- modules do not import each other in a cycle; imports under `TYPE_CHECKING` and inside functions count
- a function has at most 50 lines and 8 parameters; a call with one argument on each line counts as one line; ruff
  checks the complexity
- an element of a tuple is not read by a number above 1: a structure of more than two values has named fields

Folders of more than 22 modules, files of more than 400 lines, and classes of more than 20 attributes (including those
of base classes in this tree) are only listed, so that somebody looks at them. A file is divided, or merged with another
one, at the border of a concept, and not because of its number of lines. `scripts/house.py` counts lines by part and
package.

`scripts/vocabulary.py` checks the words of identifiers. Plain records of a wire or ledger format (msgspec structures,
named tuples, dataclasses) may have more attributes. Functions whose signature another project has chosen may have more
parameters (`FOREIGN`).
"""

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeGuard

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("sdk", "proxy", "backend", "lab")
MAX_MODULES: Final = 22
MAX_FILE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 50
MAX_PARAMETERS: Final = 8
MAX_ATTRIBUTES: Final = 20
MAX_INDEX: Final = 1
LISTED: Final = frozenset({"lines of a file", "modules of a folder", "attributes of a class"})
"""Checks whose findings are listed and do not fail the script."""

NEAR: Final = 0.75
RECORDS: Final = frozenset({"Struct", "NamedTuple", "Frozen", "dataclass"})
INDEXABLE: Final = frozenset({"parents", "partition", "rpartition"})
"""Attributes and methods whose results are usually indexed by number: `path.parents[2]`, `text.partition(":")[2]`."""

FOREIGN: Final[Mapping[str, str]] = {
    "scripts/sglang_cpu/speculative.py build_tree_kernel_efficient_cpu": "stands in for a kernel of SGLang",
    "scripts/sglang_cpu/speculative.py decode_attention_cpu": "stands in for a kernel of SGLang",
    "scripts/sglang_cpu/speculative.py extend_attention_cpu": "stands in for a kernel of SGLang",
}
"""Functions whose parameters another project has chosen: file and name -> reason."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, set[str]]


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a file. It is cached, since several checks walk it."""
    return ast.parse(source)


@dataclass(frozen=True)
class Finding:
    """One measurement: what was measured, where, the value, and the limit."""

    check: str
    where: str
    size: int
    limit: int

    @property
    def fails(self) -> bool:
        """Whether the value is over its limit, in a check that can fail."""
        return self.is_over and self.check not in LISTED

    @property
    def is_over(self) -> bool:
        return self.size > self.limit


class Tree:
    """The modules of the sources under a root, by dotted name. A package's `__init__` has the package's name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths: dict[str, Path] = {}
        for source in SOURCES:
            for path in sorted((root / source).rglob("*.py")):
                parts = path.relative_to(root / source).with_suffix("").parts
                self.paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self.trees = {name: parsed(path.read_text()) for name, path in self.paths.items()}
        self._classes = {
            f"{module}.{node.name}": node
            for module, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }

    def graph(self) -> dict[str, set[str]]:
        """Module -> the modules that it imports anywhere."""
        return {name: self._imported(name) - {name} for name in self.trees}

    def _imported(self, module: str) -> set[str]:
        found = set()
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(module, node)
                names = {f"{source}.{alias.name}" for alias in node.names}
                found |= (names & self.paths.keys()) or {source}
                found |= {source} if names - self.paths.keys() else set()
        return found & self.paths.keys()

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = module.split(".")
        keep = len(package) - node.level + (self.paths[module].name == "__init__.py")
        return ".".join([*package[:keep], *([node.module] if node.module else [])])

    def attributes(self, module: str, node: ast.ClassDef) -> set[str]:
        """The attributes of a class, including those of its base classes in these sources."""
        found = own_attributes(node)
        for base in node.bases:
            home, parent = self._class(module, ast.unparse(base).partition("[")[0])
            if parent is not None and parent is not node:
                found |= self.attributes(home, parent)
        return found

    def _class(self, module: str, name: str) -> tuple[str, ast.ClassDef | None]:
        """A class by its name in a module, and the module that defines it."""
        if f"{module}.{name}" in self._classes:
            return module, self._classes[f"{module}.{name}"]
        first, _, inner = name.partition(".")
        for node in ast.walk(self.trees[module]):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if first == (alias.asname or alias.name) and isinstance(node, ast.ImportFrom):
                    source = self._absolute(module, node)
                    if inner and f"{source}.{alias.name}" in self.trees:
                        return self._class(f"{source}.{alias.name}", inner)
                    return self._class(source, alias.name) if source in self.trees else (module, None)
        return module, None


def circles(graph: Graph) -> list[list[str]]:
    """Sets of two or more modules that import each other: strongly connected components, by Kosaraju's algorithm."""
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


def _visit(start: str, graph: Graph, seen: set[str], order: list[str]) -> None:
    """Add the modules that can be reached from `start` to `order`, each module after all that it reaches."""
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


def lines_of(node: ast.expr | Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_listed(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether a node is a call with one argument on each line, as calls that make a record usually are."""
    if not isinstance(node, ast.Call):
        return False
    arguments = [*node.args, *(each.value for each in node.keywords)]
    return lines_of(node) == len(arguments) + 2 and all(lines_of(each) == 1 for each in arguments)


def measured(where: str, source: str) -> Iterator[Finding]:
    """The sizes of one file, its functions and its indices."""
    yield Finding("lines of a file", where, len(source.splitlines()), MAX_FILE_LINES)
    for node in ast.walk(parsed(source)):
        if isinstance(node, Function):
            at = f"{where}:{node.lineno} {node.name}"
            length = lines_of(node) - sum(lines_of(each) - 1 for each in ast.walk(node) if is_listed(each))
            yield Finding("lines of a function", at, length, MAX_FUNCTION_LINES)
            if f"{where} {node.name}" not in FOREIGN:
                yield Finding("parameters", at, parameters(node), MAX_PARAMETERS)
        elif isinstance(node, ast.Subscript) and not is_indexable(node.value):
            index = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if isinstance(index, int) and not isinstance(index, bool):
                yield Finding("index of an element", f"{where}:{node.lineno} {ast.unparse(node)}", index, MAX_INDEX)


def is_indexable(node: ast.expr) -> bool:
    """Whether an expression is an attribute, or a call of a method, of `INDEXABLE`."""
    node = node.func if isinstance(node, ast.Call) else node
    return isinstance(node, ast.Attribute) and node.attr in INDEXABLE


def parameters(node: Function) -> int:
    """The number of parameters that a caller can pass: all but `self` and `cls`."""
    given = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(given) - (bool(given) and given[0] in {"self", "cls"})


def is_record(node: ast.ClassDef) -> bool:
    named = [*node.bases, *(each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)]
    return any(ast.unparse(each).split(".")[-1].split("[")[0] in RECORDS for each in named)


def own_attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that methods of a class set on `self`, and the names that the class's body annotates or sets."""
    found = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found |= set() if "ClassVar" in ast.unparse(each) else {each.target.id}
        elif isinstance(each, ast.Assign):
            names = {target.id for target in each.targets if isinstance(target, ast.Name)}
            found |= {name for name in names if not name.startswith("__") and not name.isupper()}
    return found


def findings(tree: Tree) -> Iterator[Finding]:
    """All measurements, whether over their limits or not."""
    folders: dict[str, int] = defaultdict(int)
    for module, path in tree.paths.items():
        where = path.relative_to(tree.root).as_posix()
        folders[path.parent.relative_to(tree.root).as_posix()] += 1
        for node in ast.walk(tree.trees[module]):
            if isinstance(node, ast.ClassDef) and not is_record(node):
                count = len(tree.attributes(module, node))
                yield Finding("attributes of a class", f"{where}:{node.lineno} {node.name}", count, MAX_ATTRIBUTES)
    for path in (*tree.paths.values(), *sorted((tree.root / "scripts").rglob("*.py"))):
        yield from measured(path.relative_to(tree.root).as_posix(), path.read_text())
    for folder, count in folders.items():
        yield Finding("modules of a folder", folder, count, MAX_MODULES)


def main(root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="show also what is above three quarters of its limit")
    tree = Tree(root)
    return _report(list(findings(tree)), circles(tree.graph()), near=parser.parse_args().list)


def _report(found: Iterable[Finding], loops: list[list[str]], *, near: bool) -> int:
    """Print the table, then what is wrong. Returns the exit status."""
    by_check: dict[str, list[Finding]] = defaultdict(list)
    for each in found:
        by_check[each.check].append(each)
    print(f"{'check':24} {'limit':>6} {'largest':>8} {'over':>5}   the largest")
    for check, each_found in by_check.items():
        largest = max(each_found, key=lambda each: each.size)
        over = sum(each.is_over for each in each_found)
        print(f"{check:24} {largest.limit:6} {largest.size:8} {over:5}   {largest.where}")
    print(f"{'circles of imports':24} {0:6} {len(loops):8} {len(loops):5}")
    faults = len(loops)
    for check in sorted(by_check):
        for each in sorted(by_check[check], key=lambda each: -each.size):
            faults += each.fails
            if each.is_over or (near and each.size > NEAR * each.limit > 1):
                mark = "TOO MANY" if each.fails else "look at" if each.is_over else "near"
                print(f"{mark}: {each.check}: {each.where}: {each.size}, at most {each.limit}")
    for loop in loops:
        print(f"CIRCLE: {', '.join(loop)}")
    print(f"faults: {faults}" if faults else "ok")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
