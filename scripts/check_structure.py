#!/usr/bin/env python3
"""Check the structure of sdk, proxy, backend, lab and scripts, and print a table: circles, sizes.

    scripts/check_structure.py            every check; ends with `ok`, or with the number of faults and status 1
    scripts/check_structure.py --list     also what is above three quarters of its limit

import-linter holds the direction of imports between packages. This holds the rest of what keeps the tree readable:

- no circle of imports among modules; imports under `TYPE_CHECKING` and inside functions count
- a function has at most 50 lines and 8 parameters; a call with an argument a line counts as one line; ruff holds how
  complex it is
- no element of a tuple by a number above 1: a structure of more than two values has names

Folders of more than 22 modules, files of more than 400 lines, and classes of more than 20 attributes, those of their
base classes in this tree included, are listed, to be looked at. A file is cut, or merged with another one, where
concepts end and not where lines do. `scripts/house.py` counts lines by part and room.

Words of identifiers are checked by `scripts/vocabulary.py`. Plain records of a wire or ledger format (msgspec
structures, named tuples, dataclasses) may have more attributes. Signatures of other projects may have more parameters
(`FOREIGN`).
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
"""Checks that fail nothing."""

NEAR: Final = 0.75
RECORDS: Final = frozenset({"Struct", "NamedTuple", "Frozen", "dataclass"})
INDEXABLE: Final = frozenset({"parents", "partition", "rpartition"})
"""What Python programs index by number: `path.parents[2]`, `text.partition(":")[2]`."""

FOREIGN: Final[Mapping[str, str]] = {
    "scripts/sglang_cpu/speculative.py build_tree_kernel_efficient_cpu": "stands in for a kernel of SGLang",
    "scripts/sglang_cpu/speculative.py decode_attention_cpu": "stands in for a kernel of SGLang",
    "scripts/sglang_cpu/speculative.py extend_attention_cpu": "stands in for a kernel of SGLang",
}
"""`file function: reason` of functions whose parameters another project has chosen."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, set[str]]


@cache
def parsed(source: str) -> ast.Module:
    """The tree of a file, which several checks walk."""
    return ast.parse(source)


@dataclass(frozen=True)
class Finding:
    """One measured thing: what, where, how large, and the limit."""

    check: str
    where: str
    size: int
    limit: int

    @property
    def fails(self) -> bool:
        """Whether it is over a limit that holds."""
        return self.is_over and self.check not in LISTED

    @property
    def is_over(self) -> bool:
        return self.size > self.limit


class Tree:
    """The modules of the sources under a root, by dotted name; a package by its own."""

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
        """Which modules each module imports, in any way."""
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
        """The attributes of a class, with those of its base classes in these sources."""
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


def _visit(start: str, graph: Graph, seen: set[str], order: list[str]) -> None:
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


def lines_of(node: ast.expr | Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_listed(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether it is a call with an argument a line, as records made by name are."""
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
    """How many a caller can give: all but `self` and `cls`."""
    given = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(given) - (bool(given) and given[0] in {"self", "cls"})


def is_record(node: ast.ClassDef) -> bool:
    named = [*node.bases, *(each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)]
    return any(ast.unparse(each).split(".")[-1].split("[")[0] in RECORDS for each in named)


def own_attributes(node: ast.ClassDef) -> set[str]:
    """The names that the methods of a class set on `self`, and those that its body annotates or sets."""
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
    """Everything that is measured, over its limit or not."""
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
    """Print the table, then what is wrong; the exit status."""
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
