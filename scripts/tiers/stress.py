"""`scripts/test stress`: the main tests as on a slow, busy machine, to find tests that fail by chance.

Modules and tests run in random order, and hypothesis searches new examples. Each run prints the seed that repeats order
and examples. Some runs share the machine with busy loops, some have a single core, and in some all processes are
stopped for seconds now and then.
"""

import argparse
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from typing import BinaryIO, Final

from scripts.tiers.freezing import freezer
from scripts.tiers.running import signal_group
from scripts.tiers.steps import PYTHON, main_tests

BUSY: Final = "beside busy loops"
ONE_CORE: Final = "on one core"
FROZEN: Final = "with all processes stopped now and then"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/test stress", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders of tests (those of the main tier)")
    parser.add_argument("--runs", type=int, default=5, help="runs beside busy loops (%(default)s)")
    parser.add_argument("--loops", type=int, default=8, help="busy loops beside each of them (%(default)s)")
    parser.add_argument("--one-core", type=int, default=2, metavar="RUNS", help="runs on a single core (%(default)s)")
    is_root = int(os.geteuid() == 0)
    parser.add_argument("--frozen", type=int, default=is_root, metavar="RUNS", help="that stop, as root (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the first run; each further run adds 1 (random)")
    asked = parser.parse_args(arguments)
    seed = random.randrange(1_000_000) if asked.seed is None else asked.seed
    kinds = [*repeat(BUSY, asked.runs), *repeat(ONE_CORE, asked.one_core), *repeat(FROZEN, asked.frozen)]
    failed = [at for at, kind in enumerate(kinds, seed) if not _run(at, asked.paths, kind, asked.loops)]
    print(f"{len(kinds)} runs, {len(failed)} failed" + "".join(f"; seed {each}" for each in failed))
    return int(bool(failed))


def _run(seed: int, paths: Sequence[str], kind: str, loops: int) -> bool:
    print(f"== seed {seed}: {kind}", flush=True)
    chance = (f"--seed={seed}", "--hypothesis-profile", "stress")
    # few processes, so that the busy loops take most of the machine
    processes = max(2, loops) if kind == BUSY else 4
    command = main_tests(chance, paths, processes).command
    with tempfile.TemporaryDirectory(prefix="wr.") as folder, ExitStack() as stack:
        log = Path(folder) / "log"
        with log.open("wb") as file:
            if kind == FROZEN:
                group = stack.enter_context(freezer())
                done = group.watch(stack.enter_context(_started(command, file, group.enter)), seed)
            else:
                stack.enter_context(_busy(loops if kind == BUSY else 0))
                done = stack.enter_context(_started(command, file, _on_one_core if kind == ONE_CORE else None)).wait()
        said = log.read_text(errors="replace").rstrip()
    print(said if done else said.rpartition("\n")[2], flush=True)
    return done == 0


@contextmanager
def _started(
    command: Sequence[str], log: BinaryIO, before: Callable[[], None] | None
) -> "Iterator[subprocess.Popen[bytes]]":
    """A running command, whose process first calls `before`. The command's processes are ended with the block."""
    child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=before, process_group=0)  # noqa: PLW1509
    try:
        yield child
    finally:
        signal_group(child.pid, signal.SIGTERM)


def _on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


_LOOP: Final = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
"""The program of a busy loop. It ends when its parent process has ended, in whatever way."""


@contextmanager
def _busy(loops: int) -> Iterator[None]:
    children = [subprocess.Popen([PYTHON, "-c", _LOOP, str(os.getpid())]) for _ in range(loops)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()
