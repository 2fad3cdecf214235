"""Runs the tests, for `scripts/test`, which makes the environment first.

    python -m scripts.tiers BEGAN [PYTEST-ARGUMENT...]   the main tier
    python -m scripts.tiers BEGAN full                   everything
    python -m scripts.tiers BEGAN stress [...]           the main tier on a machine that is slow (stress.py)

BEGAN is when `scripts/test` was called, in seconds since 1970.
"""

import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from scripts.tiers import stress
from scripts.tiers.running import Run
from scripts.tiers.showing import LOOK_S, Screen, table
from scripts.tiers.steps import Step, full_steps, main_steps


def main() -> int:
    """The command line; the exit status."""
    began_s, arguments = float(sys.argv[1]), sys.argv[2:]
    if arguments[:1] == ["stress"]:
        return stress.main(arguments[1:])
    if arguments[:1] == ["full"]:
        if arguments[1:]:
            sys.exit("usage: scripts/test full, without further arguments")
        return run(full_steps(), began_s)
    return run(main_steps(arguments), began_s)


def run(steps: Iterable[Step], began_s: float) -> int:
    """Run steps, show how they go, and say at the end what passed; the exit status."""
    screen = Screen(began_s)
    set_up_s = time.time() - began_s
    # Short: paths of sockets below it have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="wr.") as folder:
        running = Run(steps, Path(folder), screen.ended)
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
    return int(bool(running.failed))


if __name__ == "__main__":
    sys.exit(main())
