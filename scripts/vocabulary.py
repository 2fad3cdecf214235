#!/usr/bin/env python3
"""Checks the words of identifiers against docs/reference/glossary.md.

    scripts/vocabulary.py            lists the identifiers to rename; exits with 1 if there is one
    scripts/vocabulary.py --all      lists every place at which an identifier with such a word is defined

The third column of the glossary lists words that are not used for a term. This script collects all identifiers that
`sdk`, `proxy` and `backend` define (modules, classes, functions, parameters, attributes, variables), divides them into
words, and reports each identifier that contains a word of that column, or the word's plural.

A word with `(noun)` is allowed in names of functions and modules, in which it is a verb. A word with `(alone)` is
allowed beside another word of the identifier.
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("sdk", "proxy", "backend", "lab")
GLOSSARY: Final = ROOT / "docs" / "reference" / "glossary.md"
SHOWN: Final = 3
EXCUSED: Final[Mapping[str, str]] = {
    "bootstrap_room": "SGLang's name",
    "keyed_answer_bytes": "a key of the config file",
    "keyed_outlive_s": "a key of the config file",
    "keyed_replay_s": "a key of the config file",
    "keyed_total_bytes": "a key of the config file",
    "serving/bootstrap.py: room": "SGLang's bootstrap rooms; nothing else is in that module",
    "model/prompt.py: part": "OpenAI's word for the pieces of a message's content",
    "engines/kv_events.py: frame": "the parts of a ZeroMQ message",
    "events/kv_publisher.py: frame": "the parts of a ZeroMQ message",
    "replicas/record.py: frame": "the units of a decision record",
    "replicas/recorder.py: frame": "the units of a decision record",
    "ledger/recording.py: frame": "the units of a decision record",
    "replay/record.py: frame": "the units of a decision record",
    "http/frames.py: frame": "what a WebSocket's messages come in",
    "http/websocket.py: frame": "what a WebSocket's messages come in",
    "http/frames.py: part": "the pieces of a message that comes in several frames",
    "contract/identity.py: part": "OpenAI's word for the pieces of a message's content",
    "prompt/canonical.py: part": "OpenAI's word for the pieces of a message's content",
    "prompt/fingerprint.py: part": "OpenAI's word for the pieces of a message's content",
}
"""Exceptions: an identifier (even as a part of a longer one), or the end of a path and a word -> the reason."""

_ROW: Final = re.compile(r"^\| (?P<term>[^|]+) \| [^|]+ \|(?P<banned>[^|]*)\|$", re.MULTILINE)
_BANNED: Final = re.compile(r"`(?P<word>\w+)`(?: \((?P<use>noun|alone)\))?")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Banned(NamedTuple):
    """A word that is not used, the word to use instead, and its exception: "noun", "alone" or ""."""

    word: str
    instead: str
    use: str


class Definition(NamedTuple):
    """An identifier, what it names (module, class, function, variable), and where it is defined."""

    name: str
    kind: str
    path: str
    line: int


def words(identifier: str) -> list[str]:
    """The words of an identifier in snake case or camel case, in lower case."""
    return [word.lower() for word in _WORD.findall(identifier)]


def glossary(text: str) -> list[Banned]:
    return [
        Banned(found["word"], row["term"].strip(), found["use"] or "")
        for row in _ROW.finditer(text)
        for found in _BANNED.finditer(row["banned"])
    ]


def definitions(path: str, source: str) -> Iterator[Definition]:
    """Every identifier that a module defines, beginning with the module's name."""
    file = Path(path)
    yield Definition(file.parent.name if file.stem == "__init__" else file.stem, "module", path, 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Definition(node.name, "function", path, node.lineno)
        elif isinstance(node, ast.ClassDef):
            yield Definition(node.name, "class", path, node.lineno)
        elif isinstance(node, ast.arg):
            yield Definition(node.arg, "variable", path, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Definition(node.id, "variable", path, node.lineno)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield Definition(node.attr, "variable", path, node.lineno)


def breaks(banned: Banned, definition: Definition, excused: Iterable[str] = ()) -> bool:
    """Whether an identifier contains a banned word without an exception."""
    found = words(definition.name)
    if banned.use == "noun" and definition.kind in {"function", "module"}:
        return False
    if found != [banned.word] and (banned.use == "alone" or not {banned.word, f"{banned.word}s"} & set(found)):
        return False
    return not any(_excuses(each, banned.word, definition) for each in excused)


def _excuses(entry: str, word: str, definition: Definition) -> bool:
    """Whether an entry of `EXCUSED` allows a word in an identifier."""
    path, separator, allowed = entry.partition(": ")
    if separator:
        return definition.path.endswith(path) and allowed == word
    name = f"_{'_'.join(words(definition.name))}_"
    return word in words(entry) and (f"_{entry}_" in name or f"_{entry}s_" in name)


def offenders(
    table: Iterable[Banned], found: Iterable[Definition], excused: Iterable[str] = EXCUSED
) -> dict[Banned, list[Definition]]:
    """The identifiers to rename, by banned word, in the order of the glossary."""
    by_word: dict[Banned, list[Definition]] = defaultdict(list)
    known = list(found)
    for banned in table:
        for definition in known:
            if breaks(banned, definition, excused):
                by_word[banned].append(definition)
    return by_word


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="show every definition, one a line")
    parsed = parser.parse_args()
    table = glossary(GLOSSARY.read_text())
    if not table:
        sys.exit(f"{GLOSSARY.relative_to(ROOT)}: no table with words in its third column")
    found = [
        definition
        for source in SOURCES
        for path in sorted((ROOT / source).rglob("*.py"))
        for definition in definitions(path.relative_to(ROOT).as_posix(), path.read_text())
    ]
    by_word = offenders(table, found)
    print(f"{'word':12} {'instead':20} {'number':>6}   where")
    for banned, places in by_word.items():
        word = f"{banned.word} ({banned.use})" if banned.use else banned.word
        shown = dict.fromkeys(f"{each.path}:{each.line} {each.name}" for each in places)
        first = "" if parsed.all else ", ".join(list(shown)[:SHOWN])
        print(f"{word:12} {banned.instead:20} {len(shown):6}   {first}")
        for each in shown if parsed.all else ():
            print(f"    {each}")
    print(f"{len(found)} definitions, {len(table)} words, {sum(map(len, by_word.values()))} to rename")
    return int(bool(by_word))


if __name__ == "__main__":
    sys.exit(main())
