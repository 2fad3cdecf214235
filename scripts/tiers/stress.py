"""`scripts/test stress`: the main tier as a slow, busy machine would run it, to find tests that fail by chance.

Modules and tests run in random order, hypothesis searches anew, and each run prints the seed that repeats both. Some
runs share the machine with busy loops, the others have a single core.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scripts.tiers.steps import COMPUTING, MAIN_ONLY, PYTHON, WAITING, pytest


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/test stress", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders of tests (those of the main tier)")
    parser.add_argument("--runs", type=int, default=5, help="runs beside busy loops (%(default)s)")
    parser.add_argument("--loops", type=int, default=8, help="busy loops beside each of them (%(default)s)")
    parser.add_argument("--one-core", type=int, default=2, metavar="RUNS", help="runs on a single core (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the first run; each further run adds 1 (random)")
    asked = parser.parse_args(arguments)
    seed = random.randrange(1_000_000) if asked.seed is None else asked.seed
    failed = []
    for number in range(asked.runs + asked.one_core):
        beside = asked.loops if number < asked.runs else 0
        if not _run(seed + number, asked.paths, beside):
            failed.append(seed + number)
    print(f"{asked.runs + asked.one_core} runs, {len(failed)} failed" + "".join(f"; seed {each}" for each in failed))
    return int(bool(failed))


def _run(seed: int, paths: Sequence[str], loops: int) -> bool:
    """One run; whether it passed."""
    print(f"== seed {seed}: " + (f"beside {loops} busy loops" if loops else "on one core"), flush=True)
    chance = (
        "-p",
        "randomly",
        f"--randomly-seed={seed}",
        f"--hypothesis-seed={seed}",
        "--hypothesis-profile",
        "stress",
    )
    one_core = None if loops else (lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
    asked = paths or (*MAIN_ONLY, *WAITING, *COMPUTING)
    command = pytest(*asked, *chance, processes=loops or 4)  # with fewer, the loops take most of the machine
    with tempfile.TemporaryDirectory(prefix="wr.") as folder, _busy(loops):
        log = Path(folder) / "log"
        with log.open("wb") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, preexec_fn=one_core)
        said = log.read_text(errors="replace").rstrip()
    print(said if done.returncode else said.rpartition("\n")[2], flush=True)
    return done.returncode == 0


_LOOP: Final = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
"""Ends with its parent, however and whenever that ends."""


@contextmanager
def _busy(loops: int) -> Iterator[None]:
    children = [subprocess.Popen([PYTHON, "-c", _LOOP, str(os.getpid())]) for _ in range(loops)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
