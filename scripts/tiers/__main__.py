"""Runs the tests for `scripts/test`, after `scripts/test` has made the environment.

    python -m scripts.tiers BEGAN [PYTEST-ARGUMENT...]   the main tests, or all tests of some paths
    python -m scripts.tiers BEGAN full                   the tests that CI runs for each change
    python -m scripts.tiers BEGAN nightly [STEP...]      the tests that `full` leaves out
    python -m scripts.tiers BEGAN stress [...]           the main tests as on a slow machine (stress.py)

BEGAN is the time at which `scripts/test` was called, in seconds since 1970.
"""

import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from scripts.tiers import nightly, stress
from scripts.tiers.running import RUN_LIMIT_S, Run
from scripts.tiers.showing import LOOK_S, Screen, table
from scripts.tiers.steps import Step, full_steps, main_steps, nightly_steps

VALUED: Final = frozenset({"-k", "-m", "-p", "-n", "-o", "-c", "-W", "-r", "--deselect", "--ignore", "--durations"})
"""Options of pytest whose value is the next argument, which is then not a path."""

NIGHT_S: Final = 4 * 3600.0
"""The time that `scripts/test nightly` may take."""


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: started processes end, too
    began_s, arguments = float(sys.argv[1]), sys.argv[2:]
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "stress":
        return stress.main(rest)
    if command == "full":
        if rest:
            _refuse(f"scripts/test full takes no argument, and got {' '.join(rest)}")
        return _status(run(full_steps(), began_s))
    if command == "nightly":
        try:
            ran = run(nightly_steps(rest), began_s, NIGHT_S)
        except KeyError as error:
            names = ", ".join(step.name for step in nightly_steps())
            _refuse(f"scripts/test nightly has no step {error}; it has {names}")
        if not rest:
            nightly.record(ran, time.time() - began_s)
        return _status(ran)
    options, paths = split(arguments)
    if missing := [each for each in paths if not Path(each.partition("::")[0]).exists()]:
        _refuse(f"no such file or folder: {', '.join(missing)}")
    return _status(run(main_steps(options, paths), began_s))


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide arguments into pytest's options with their values, and paths."""
    options: list[str] = []
    paths: list[str] = []
    for at, each in enumerate(arguments):
        is_option = each.startswith("-") or (at > 0 and arguments[at - 1] in VALUED)
        (options if is_option else paths).append(each)
    return options, paths


def _refuse(problem: str) -> NoReturn:
    print(f"scripts/test: {problem}", file=sys.stderr)
    sys.exit(2)


def _status(ran: Run) -> int:
    return int(bool(ran.failed))


def run(steps: Iterable[Step], began_s: float, limit_s: float = RUN_LIMIT_S) -> Run:
    """Run steps, show their progress, and print the results."""
    screen = Screen(began_s)
    set_up_s = time.time() - began_s
    # A short name: paths of sockets below it have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="wr.") as folder:
        running = Run(steps, Path(folder), screen.ended, limit_s)
        running.start()
        try:
            while not running.wait(LOOK_S):
                screen.moving(running)
        except KeyboardInterrupt:
            running.stop()
            running.wait(10.0)
        screen.line("")
        screen.line(table(running, set_up_s, began_s))
    for failed in running.failed:
        print(f"FAILED: {failed.step.name}", file=sys.stderr)
    return running


if __name__ == "__main__":
    sys.exit(main())
