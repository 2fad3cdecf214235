"""Every regular expression of the proxy takes time in proportion to its text: none can be made to hold the event loop.

They are found in the modules themselves, so a new one is tried too. Each is given texts that are made from its own
parts, repeated; one long text must cost about as much as short ones of the same bytes in total.
"""

import ast
import importlib
import itertools
import re
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import warmroute.contract
import warmroute_proxy

_constants: Any = importlib.import_module("re._constants")
_parser: Any = importlib.import_module("re._parser")

LONG: Final = 2_048
PARTS: Final = 16
MOST: Final = 4.0
"""Times the cost of short texts; a quadratic pattern has 16."""

Pattern = re.Pattern[Any]


def sources() -> Iterator[tuple[str, Path]]:
    """Modules that say `re.`, and their files."""
    for package in (warmroute_proxy, warmroute.contract):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            if "import re\n" in path.read_text():
                yield ".".join((package.__name__, *path.relative_to(root).with_suffix("").parts)), path


class Used(NamedTuple):
    """A pattern, and the methods that the proxy calls."""

    pattern: Pattern
    methods: frozenset[str]


METHODS: Final = frozenset({"search", "fullmatch", "sub"})


def patterns() -> dict[str, Used]:
    """All patterns that stand in modules, by where they are."""
    found: dict[str, Used] = {}
    for module, path in sources():
        tree = ast.parse(path.read_text())
        for name, value in vars(importlib.import_module(module)).items():
            for at, pattern in enumerate(_inside(value)):
                if not any(pattern == used.pattern for used in found.values()):
                    found[f"{module}.{name}[{at}]"] = Used(pattern, _methods(tree, name) or METHODS)
    return found


def _methods(tree: ast.Module, name: str) -> frozenset[str]:
    """The methods of what has this name; none where it is used elsewhere, or inside something else."""
    if not name.startswith("_"):
        return frozenset()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    found = {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == name}
    return frozenset(found & {"search", "fullmatch", "match", "sub", "finditer", "findall", "split"})


def _inside(value: object) -> Iterator[Pattern]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _inside(each)
    elif isinstance(value, dict):
        yield from _inside(list(value.values()))


ALL: Final = patterns()


def _samples(tree: Any) -> Iterator[str]:
    """Texts that parts of a parsed pattern match, and beginnings of them."""
    whole = ""
    for code, argument in tree:
        name = str(code)
        if name == "LITERAL":
            part = chr(argument)
        elif name == "NOT_LITERAL":
            part = "a" if argument != ord("a") else "b"
        elif name == "IN":
            part = _of_set(argument)
        elif name == "ANY":
            part = "a"
        elif name == "BRANCH":
            inner = [list(_samples(each)) for each in argument[1]]
            yield from itertools.chain.from_iterable(inner)
            part = inner[0][-1]
        elif name in {"SUBPATTERN", "ATOMIC_GROUP"}:
            inner_samples = list(_samples(argument[-1] if name == "SUBPATTERN" else argument))
            yield from inner_samples
            part = inner_samples[-1]
        elif name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            least, _, body = argument
            repeated = list(_samples(body))
            yield from repeated
            part = repeated[-1] * max(least, 1)
        else:
            part = ""  # a place: a beginning, an end, what stands before
        yield part
        whole += part
        yield whole
    yield whole


def _of_set(items: list[tuple[Any, Any]]) -> str:
    negated = str(items[0][0]) == "NEGATE"
    if negated:
        taken = {chr(argument) for code, argument in items[1:] if str(code) == "LITERAL"}
        return next(char for char in "a 0!" if char not in taken)
    code, argument = items[0]
    if str(code) == "LITERAL":
        return chr(argument)
    if str(code) == "RANGE":
        return chr(argument[0])
    return {_constants.CATEGORY_DIGIT: "0", _constants.CATEGORY_SPACE: " ", _constants.CATEGORY_WORD: "a"}[argument]


def attacks(pattern: Pattern, size: int) -> Iterator[Any]:
    """Texts of this size in which parts of the pattern are repeated, behind what matches the pattern's beginning."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    samples = {each for each in _samples(_parser.parse(source, pattern.flags)) if each} | set(' \n\t"\\0a')
    begins = {"", *sorted(samples, key=len)[-3:]}
    for begin, repeated, end in itertools.product(sorted(begins), sorted(samples), ("", "\0")):
        text = (begin + repeated * (size // len(repeated)))[:size] + end
        yield text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")


def cost_s(used: Used, texts: list[Any]) -> float:
    """CPU seconds of all ways in which the proxy uses a pattern."""
    pattern = used.pattern
    empty = "" if isinstance(pattern.pattern, str) else b""
    calls = [partial(pattern.sub, empty) if name == "sub" else getattr(pattern, name) for name in used.methods]
    began = time.process_time()
    for text in texts:
        for call in calls:
            deque(found if isinstance(found := call(text), Iterator) else (), 0)
    return time.process_time() - began


def worst(used: Used) -> float:
    """The greatest ratio of one long text to short ones of the same bytes in total."""
    found = 0.0
    for long, short in zip(attacks(used.pattern, LONG), attacks(used.pattern, LONG // PARTS), strict=True):
        floor_s = 0.0005  # a clock's step is no ratio
        ratio = MOST
        for _ in range(3):  # a cache that is cold is no ratio, either
            ratio = min(ratio, cost_s(used, [long]) / max(cost_s(used, [short] * PARTS), floor_s))
            if ratio < MOST / 2:
                break
        found = max(found, ratio)
        if found >= MOST:
            break
    return found


@pytest.mark.parametrize("where", ALL)
def test_a_pattern_is_linear(where: str) -> None:
    assert worst(ALL[where]) < MOST


@pytest.mark.parametrize(
    "quadratic", [r"[ \t]*<current_date>[^<\n]{1,40}</current_date>\n?", r"a+b", r"\s+$", r"(?:a|b)*c"]
)
def test_one_that_is_not_would_be_found(quadratic: str) -> None:
    assert worst(Used(re.compile(quadratic), METHODS)) >= MOST


def test_patterns_stand_in_modules_where_this_finds_them() -> None:
    """None is made inside a function, or passed as a text."""
    hidden = []
    for module, path in sources():
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
        inside = {id(each) for function in functions for each in ast.walk(function)}
        for node in ast.walk(tree):
            call = node.func if isinstance(node, ast.Call) else None
            if not isinstance(call, ast.Attribute) or not isinstance(call.value, ast.Name) or call.value.id != "re":
                continue
            if call.attr != "compile" or id(node) in inside:
                hidden.append(f"{module}: {ast.unparse(call)}")
    assert hidden == []
