"""Prints how large the project is, by part: lines, lines of code, files, and how much a reader of one module must know.

    python -m scripts.house            prints the tables of docs/contribute/house.md; it never fails a run
    python -m scripts.house --rooms    also prints lines and modules of each package, and how many modules are short

A *closure* is all modules that a module imports, directly or through other modules; imports inside functions and under
`TYPE_CHECKING` count. A *trace* counts the files of one part of the tree that contain a word, such as the name of an
API (outside of the API's folders), a term of the cost, a key of the configuration or a limit.
"""

import argparse
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from scripts.check_structure import ROOT, Graph, Tree

PARTS: Final[Mapping[str, str]] = {
    "sdk": "sdk",
    "proxy": "proxy/warmroute_proxy",
    "the command": "proxy/warmroute_cli",
    "backend": "backend",
    "lab": "lab",
    "scripts": "scripts",
    "bench": "bench",
    "tests": "tests",
    "tests/field": "tests/field",
}
SOURCES: Final = frozenset({"sdk", "proxy", "the command", "backend", "lab"})
CLOSURES: Final = (
    "warmroute_proxy.server.endpoint",
    "warmroute_proxy.server.request.inference_request",
    "warmroute_proxy.core.placement.router",
)
TRACES: Final[Mapping[str, str]] = {
    "an API: Gemini": r"gemini|GEMINI|Gemini",
    "a term of the cost: churn_s": r"\bchurn_s\b",
    "a key of the config: tls_client_ca": r"\btls_client_ca\b",
    "a limit: tokens_per_minute": r"\btokens_per_minute\b",
}
FEW_LINES: Final = 60
OUTSIDE: Final = re.compile(r"gemini")
"""Matches the paths of an API's folders and files, which a trace leaves out."""


class Size(NamedTuple):
    files: int
    lines: int
    code: int
    docstrings: int


def size(paths: Iterable[Path]) -> Size:
    """The size of files. Lines of code are those that are neither blank, nor a comment, nor part of a docstring."""
    files = lines = code = docstrings = 0
    for path in paths:
        text = path.read_text()
        of_code, of_docstrings = lines_of_code(text)
        files, lines = files + 1, lines + len(text.splitlines())
        code, docstrings = code + of_code, docstrings + of_docstrings
    return Size(files, lines, code, docstrings)


def lines_of_code(text: str) -> tuple[int, int]:
    """The number of a module's lines that are code, and of those in docstrings (statements that are only a string)."""
    code: set[int] = set()
    docstrings: set[int] = set()
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            begins = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            is_docstring = begins and token.type == tokenize.STRING
            (docstrings if is_docstring else code).update(range(token.start[0], token.end[0] + 1))
            begins = False
    return len(code - docstrings), len(docstrings)


def files_of(part: str) -> list[Path]:
    """The modules of a part, without those of another part inside its folder."""
    inner = [ROOT / folder for folder in PARTS.values() if folder.startswith(f"{PARTS[part]}/")]
    return [
        path
        for path in sorted((ROOT / PARTS[part]).rglob("*.py"))
        if not any(path.is_relative_to(folder) for folder in inner)
    ]


def closure(graph: Graph, module: str) -> set[str]:
    found: set[str] = set()
    todo = [module]
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += graph[name]
    return found


def traced(pattern: str) -> int:
    """How many modules of the sources contain a word, outside of the paths of `OUTSIDE`."""
    word = re.compile(pattern)
    return sum(
        bool(word.search(path.read_text()))
        for part in SOURCES
        for path in files_of(part)
        if not OUTSIDE.search(path.relative_to(ROOT).as_posix())
    )


def print_rooms(tree: Tree) -> None:
    """Print lines and modules of each package, and how many of the modules are short."""
    rooms: dict[str, list[int]] = defaultdict(list)
    for name, path in tree.paths.items():
        depth = 2 + (name.split(".")[:2] == ["warmroute_proxy", "server"] or ".core." in f"{name}.")
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        rooms[".".join(package.split(".")[:depth])].append(len(path.read_text().splitlines()))
    print(f"\n| room | files | under {FEW_LINES} lines | lines |\n|---|--:|--:|--:|")
    for room, lines in sorted(rooms.items()):
        print(f"| {room} | {len(lines)} | {sum(each < FEW_LINES for each in lines)} | {sum(lines):,} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rooms", action="store_true", help="also lines and modules of each package")
    asked = parser.parse_args()
    print("| part | files | lines | code | docstrings |\n|---|--:|--:|--:|--:|")
    sizes = {part: size(files_of(part)) for part in PARTS}
    total = Size(*(sum(sizes[part][column] for part in SOURCES) for column in range(len(Size._fields))))
    for name, each in (*sizes.items(), ("sdk to lab", total)):
        print(f"| {name} | {each.files:,} | {each.lines:,} | {each.code:,} | {each.docstrings:,} |")
    tree = Tree(ROOT)
    graph = tree.graph()
    print("\n| closure of | modules | lines |\n|---|--:|--:|")
    for module in CLOSURES:
        found = closure(graph, module)
        lines = size(tree.paths[name] for name in found).lines
        print(f"| `{module.removeprefix('warmroute_proxy.')}` | {len(found)} | {lines:,} |")
    print("\n| trace | files |\n|---|--:|")
    for name, pattern in TRACES.items():
        print(f"| {name} | {traced(pattern)} |")
    if asked.rooms:
        print_rooms(tree)


if __name__ == "__main__":
    main()
