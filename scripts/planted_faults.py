"""Plants faults in the decisions of the proxy, one at a time, and counts how many of them the tests catch.

    python -m scripts.planted_faults                           200 faults: hours on two cores
    python -m scripts.planted_faults --faults 40 --seed 1      a sample; a larger sample of the seed contains it
    python -m scripts.planted_faults --near usage intake       two subjects, only by their tests inside one process
    python -m scripts.planted_faults --since before.jsonl      also lists what was caught then and is missed now

A fault is one change of the syntax tree: a comparison that is reversed, a number that is one higher, a branch that is
never taken, `and` in place of `or`, a result that is lost. The program copies the tree, changes one file of the copy,
and runs the tests of the file's subject until one fails. The *near* tests of a subject run inside one process. Only
faults that the near tests miss are tried on the *far* tests, which start processes. Tests that take too long count as
having caught the fault.

`scripts/planted_faults.toml` names the files and tests of each subject. Each verdict is a line of the file `--results`,
so that an interrupted run continues with the next fault. A verdict is valid only for the text of the file at that time.
After a change of tests, use another file of results. Some faults change nothing that a user could see, and no test can
catch them.
"""

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from scripts.check_structure import ROOT, SOURCES

PLANTED: Final = "proxy/warmroute_proxy"
COPIED: Final = (*SOURCES, "tests", "scripts", "bench", "docs", "deploy", "pyproject.toml", "README.md", "CHANGELOG.md")
LONGEST_S: Final = 600
FLIPPED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Subject(NamedTuple):
    """Files in which faults are planted, and the tests that should catch them."""

    files: list[str]
    near: list[str]
    far: list[str]


SUBJECTS: Final = {
    name: Subject(**table) for name, table in tomllib.loads((ROOT / "scripts/planted_faults.toml").read_text()).items()
}


class Fault(NamedTuple):
    """A change of one place of a file."""

    file: str
    line: int
    column: int
    kind: str
    before: str
    text: str
    """The text of the whole file with the fault."""

    @property
    def name(self) -> str:
        digest = sha256(self.before.encode()).hexdigest()[:12]
        return f"{self.file}:{self.line}:{self.column} {self.kind} {digest}"


def changed(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """The faults that can be planted in a node: the kind, the expression that is replaced, and the new one."""
    match node:
        case ast.Compare(left, [operator], [right]):
            yield "comparison", node, ast.Compare(left, [FLIPPED[type(operator)]()], [right])
        case ast.BoolOp(operator, values):
            yield "and/or", node, ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.Constant(int() | float() as number) if not isinstance(number, bool):
            yield "number", node, ast.Constant(number + 1)
        case ast.If(test) if not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
            yield "branch", test, ast.Constant(value=False)
        case ast.Return(ast.Constant(bool() as value) as result):
            yield "result", result, ast.Constant(not value)
        case ast.Return(ast.expr() as result) if not isinstance(result, ast.Constant):
            yield "result", result, ast.Constant(value=None)


def faults_of(root: Path, file: str) -> Iterator[Fault]:
    """All faults that can be planted in a file, in the order of its lines. Annotations are skipped, since they decide
    nothing.
    """
    source = (root / file).read_text()
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    annotations = {
        inner
        for node in ast.walk(tree)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if annotation is not None
        for inner in ast.walk(annotation)
    }
    for node in ast.walk(tree):
        for kind, old, new in () if node in annotations else changed(node):
            assert old.end_lineno is not None
            assert old.end_col_offset is not None
            begin = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            text = source.encode()[:begin] + f"({ast.unparse(new)})".encode() + source.encode()[end:]
            yield Fault(file, old.lineno, old.col_offset, kind, source, text.decode())


class Copy:
    """A copy of the tree, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times = count(1_000_000_000)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, folder / name)

    def sample(self, subject: Subject, faults: int, seed: int) -> list[Fault]:
        """A random sample of `faults` faults of a subject. A larger sample begins with the smaller ones of its seed."""
        paths = sorted(path for each in subject.files for path in (self._folder / PLANTED).glob(f"{each}.py"))
        files = [path.relative_to(self._folder).as_posix() for path in paths]
        found = [fault for file in files for fault in faults_of(self._folder, file)]
        random.Random(seed).shuffle(found)
        return found[:faults]

    def verdict(self, subject: Subject, fault: Fault, near: bool) -> str:
        """Plant a fault, and return which tests caught it (`caught`)."""
        self._write(fault.file, fault.text)
        found = self.caught(subject, near)
        self._write(fault.file, fault.before)
        return found

    def caught(self, subject: Subject, near: bool) -> str:
        """Which tests fail in the copy as it is now: `near`, `far`, or none (`missed`). `not near`: the near tests pass
        and the far tests were not run.
        """
        if not self._passes(subject.near):
            return "near"
        if near:
            return "not near"
        return "missed" if self._passes(subject.far) else "far"

    def _write(self, file: str, text: str) -> None:
        """Write a file with a new modification time in whole seconds. Python recognises outdated bytecode by that time
        alone.
        """
        path = self._folder / file
        path.write_text(text)
        os.utime(path, times=(time := next(self._times), time))

    def _passes(self, tests: list[str]) -> bool:
        options = ["-x", "-q", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *options, *(f"tests/{each}" for each in tests)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(self._folder / part) for part in SOURCES)}
        with subprocess.Popen(
            command, cwd=self._folder, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                return process.wait(LONGEST_S) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                with contextlib.suppress(ProcessLookupError):  # end also the processes that the tests started
                    os.killpg(process.pid, signal.SIGKILL)


def read_results(path: Path) -> dict[str, str]:
    """The verdicts, by the name of a fault, which includes a digest of the file's text."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {each["fault"]: each["verdict"] for each in map(json.loads, lines)}


def run(subjects: Sequence[str], asked: argparse.Namespace) -> dict[str, dict[str, str]]:
    """The verdicts of each subject."""
    known = read_results(asked.results)
    found: dict[str, dict[str, str]] = {name: {} for name in subjects}
    with tempfile.TemporaryDirectory(prefix="planted.") as folder, asked.results.open("a") as results:
        copy = Copy(Path(folder))
        for place, name in enumerate(subjects):
            share = (asked.faults + len(subjects) - 1 - place) // len(subjects)
            sound = False
            for fault in copy.sample(SUBJECTS[name], share, asked.seed):
                if known.get(fault.name, "not near") == "not near" and not (asked.near and fault.name in known):
                    sound = sound or copy.caught(SUBJECTS[name], asked.near) in {"not near", "missed"}
                    if not sound:
                        sys.exit(f"The tests of {name} fail without a fault. See scripts/planted_faults.toml.")
                    known[fault.name] = copy.verdict(SUBJECTS[name], fault, asked.near)
                    results.write(json.dumps({"fault": fault.name, "verdict": known[fault.name]}) + "\n")
                    results.flush()
                    print(f"{known[fault.name]:9}{fault.name}", flush=True)
                found[name][fault.name] = known[fault.name]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)}; default: all")
    parser.add_argument("--faults", type=int, default=200, help="how many, over all subjects (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument("--near", action="store_true", help="leave out tests that start processes")
    parser.add_argument("--results", type=Path, default=ROOT / ".pytest_cache/planted_faults.jsonl", metavar="FILE")
    parser.add_argument("--since", type=Path, metavar="FILE", help="results to compare with")
    asked = parser.parse_args()
    if unknown := set(asked.subjects) - SUBJECTS.keys():
        parser.error(f"no subjects: {', '.join(sorted(unknown))}")
    asked.results.parent.mkdir(exist_ok=True)
    found = run(asked.subjects or list(SUBJECTS), asked)
    print("\n| subject | near tests | far tests | missed |\n|---|--:|--:|--:|")
    for name, verdicts in found.items():
        each = list(verdicts.values())
        near, far = each.count("near"), each.count("far")
        print(f"| {name} | {near} | {far} | {len(each) - near - far} |")
    if asked.since is not None:
        before = read_results(asked.since)
        caught = {"near", "far"}
        lost = [key for v in found.values() for key in v if v[key] not in caught and before.get(key) in caught]
        print("caught before, missed now:", *(lost or ["none"]), sep="\n")
        sys.exit(bool(lost))


if __name__ == "__main__":
    main()
