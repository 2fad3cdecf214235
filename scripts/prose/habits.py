#!/usr/bin/env python3
"""Check the English of docstrings, comments, help and messages by scripts/prose/habits.yml; textlint checks the docs.

    scripts/prose/habits.py            the places to reword; exits with 1 if there is one
    scripts/prose/habits.py --where    every "where" in code and docs: it often stands for "if"

A text with a space in it counts as a message; names, paths and the like have none. "where" is counted and printed. It
is right for a place, so only its number is held: `MOST_WHERE`, which is lowered with each rewriting.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent.parent
HABITS: Final = ROOT / "scripts" / "prose" / "habits.yml"
SOURCES: Final = ("sdk", "proxy", "backend", "lab", "scripts")
MOST_WHERE: Final = {"code": 183, "docs": 77}
_WHERE: Final = re.compile(r"\b[Ww]here\b")
_INDENT: Final = re.compile(r"[ \t]*\n[ \t]*")
_FENCE: Final = re.compile(r"^ *```.*?^ *```$|<!--.*?-->", re.DOTALL | re.MULTILINE)


class Habit(NamedTuple):
    """A pattern, and the advice for its places."""

    pattern: re.Pattern[str]
    advice: str


class Text(NamedTuple):
    """A docstring, comment or message, and the line where it begins."""

    path: str
    line: int
    text: str


def habits() -> list[Habit]:
    """The rules, which textlint's prh reads, too; its patterns are written /.../."""
    rules = yaml.safe_load(HABITS.read_text())["rules"]
    return [Habit(re.compile(rule["pattern"][1:-1]), rule["prh"]) for rule in rules]


def texts(path: str, source: str) -> Iterator[Text]:
    """The docstrings, comments and messages of a module. Comments on consecutive lines are one text."""
    in_templates: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            in_templates.update(node.values)
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield Text(path, node.lineno, "".join(map(str, parts)))
        elif node not in in_templates and isinstance(node, ast.Constant) and " " in str(node.value):
            yield Text(path, node.lineno, _INDENT.sub("\n", str(node.value)))
    comment: list[str] = []
    began = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if comment and (line != last + 1 or token.line.lstrip()[0] != "#"):
            yield Text(path, began, " ".join(comment))
            comment = []
        began = began if comment else line
        comment.append(token.string.lstrip("# "))
        last = line
    if comment:
        yield Text(path, began, " ".join(comment))


def offences(known: Sequence[Habit], found: Text) -> Iterator[str]:
    """The places in a text, each with the advice."""
    for habit in known:
        for match in habit.pattern.finditer(found.text):
            line = found.line + found.text.count("\n", 0, match.start())
            yield f"{found.path}:{line}: {' '.join(match[0].split())!r}: {habit.advice}"


def _all_texts() -> list[Text]:
    paths = [path for source in SOURCES for path in sorted((ROOT / source).rglob("*.py"))]
    return [text for path in paths for text in texts(path.relative_to(ROOT).as_posix(), path.read_text())]


def _pages() -> list[Text]:
    paths = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [Text(path.relative_to(ROOT).as_posix(), 1, _FENCE.sub("", path.read_text())) for path in paths]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--where", action="store_true", help='show every "where"')
    parsed = parser.parse_args()
    known, code = habits(), _all_texts()
    found = [offence for text in code for offence in offences(known, text)]
    print("\n".join(found), end="\n" if found else "")
    counts = {}
    for name, read in (("code", code), ("docs", _pages())):
        places = [(text, match) for text in read for match in _WHERE.finditer(text.text)]
        counts[name] = len(places)
        for text, match in places if parsed.where else ():
            line = text.line + text.text.count("\n", 0, match.start())
            print(f"{text.path}:{line}: {' '.join(text.text[max(0, match.start() - 40) : match.end() + 40].split())}")
    shown = ", ".join(f"{count} in {name} ({MOST_WHERE[name]} at most)" for name, count in counts.items())
    print(f'{len(code)} texts, {len(found)} to reword; "where": {shown}')
    return int(bool(found) or any(count > MOST_WHERE[name] for name, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
