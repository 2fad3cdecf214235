"""Runs test files in several pytest processes that take files from one list, so that each file is imported only once.

    python -m scripts.tiers.workers [--count 4] [--seed N] [--cpu-limit 2] [PYTEST-OPTION...] -- PATH...

With xdist, each worker imports all files: four workers would spend 40 s of CPU on imports before the first test of
`scripts/test`. All tests of a file run in one process, which starts the servers of its fixtures once. A path may be a
folder, a file or the id of a test. With a seed, files and tests run in random order. The plugin of the processes is
`scripts.tiers.taking`.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from scripts.tiers.steps import COMPUTING, WAITING
from scripts.tiers.taking import CPU_SETTING, FILES_SETTING, PREFERS_SETTING

NOTHING_COLLECTED: Final = 5
"""Pytest's exit status if no test was selected."""

NOTE: Final = "note: "
"""The beginning of lines that are shown even if all tests passed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.tiers.workers", description=__doc__, allow_abbrev=False)
    parser.add_argument("--count", type=int, default=4, help="of processes (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the random order")
    parser.add_argument("--cpu-limit", type=float, metavar="S", help="name the files that use more")
    at = sys.argv.index("--")
    asked, options = parser.parse_known_args(sys.argv[1:at])
    ignored = [Path(each.partition("=")[2]) for each in options if each.startswith("--ignore=")]
    files = files_of(sys.argv[at + 1 :], ignored)
    if asked.seed is not None:
        random.Random(asked.seed).shuffle(files)
        options += ["-p", "randomly", f"--randomly-seed={asked.seed}", f"--hypothesis-seed={asked.seed}"]
    with tempfile.TemporaryDirectory(prefix="wr.") as folder:
        workers = Workers(Path(folder), files, options)
        status = workers.run(min(asked.count, len(files)))
        if asked.cpu_limit is not None:
            for cpu_s, file in workers.above(asked.cpu_limit):
                print(f"{NOTE}{file}: {cpu_s:.1f} s of CPU, more than {asked.cpu_limit:g}")
    return status


def files_of(paths: Sequence[str], ignored: Iterable[Path] = ()) -> list[str]:
    """The test files of paths. Long files come first, so that a file that takes long does not start last."""
    found: dict[str, int] = {}
    for path in paths:
        if Path(path).is_dir():
            inside = (each for each in Path(path).rglob("test_*.py") if not any(map(each.is_relative_to, ignored)))
            found |= {str(each): each.stat().st_size for each in inside}
        else:
            found[path] = Path(file_of(path)).stat().st_size
    return sorted(found, key=lambda each: (-found[each], each))


def file_of(path: str) -> str:
    return path.partition("::")[0]


class Workers:
    """The pytest processes of one call. `folder`: for the files that the processes share."""

    def __init__(self, folder: Path, files: Sequence[str], options: Sequence[str]) -> None:
        self._folder, self._listed, self._cpu = folder, folder / "files", folder / "cpu"
        self._files = files
        self._listed.write_text("".join(f"{each}\n" for each in dict.fromkeys(map(file_of, files))))
        self._cpu.touch()
        self._options = options
        self._lock = threading.Lock()
        self._statuses: list[int] = []

    def run(self, count: int) -> int:
        """Run the processes, and print the output of each. Returns the worst exit status."""
        # Tests that wait leave a core idle, so one process begins with files whose tests compute.
        preferred = (COMPUTING, *[WAITING] * (count - 1))
        threads = [threading.Thread(target=self._work, args=each) for each in enumerate(preferred)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return max(set(self._statuses) - {NOTHING_COLLECTED}, default=NOTHING_COLLECTED)

    def above(self, limit_s: float) -> list[tuple[float, str]]:
        """The files that used more CPU time than the limit, in falling order."""
        lines = (line.split(maxsplit=1) for line in self._cpu.read_text().splitlines())
        return sorted(((float(cpu_s), file) for cpu_s, file in lines if float(cpu_s) > limit_s), reverse=True)

    def _work(self, at: int, preferred: Sequence[str]) -> None:
        settings = {FILES_SETTING: self._listed, PREFERS_SETTING: ",".join(preferred), CPU_SETTING: self._cpu}
        # A separate folder of temporary files, since a pytest that ends deletes older folders of other runs.
        own = (f"--basetemp={self._folder / str(at)}", "-q", "-p", "scripts.tiers.taking")
        command = (sys.executable, "-m", "pytest", *own, *self._options, *self._files)
        environment = {**os.environ, **{name: str(value) for name, value in settings.items()}}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False)
        with self._lock:
            self._statuses.append(done.returncode)
            sys.stdout.buffer.write(done.stdout)
            sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
