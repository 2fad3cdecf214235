"""`python -m bench budget`: compares the instructions of requests and chunks with those of a base commit.

`budget.toml` beside this file names the base commit, and gives a reason for each workload that may cost more than at
the base. Both trees run on this interpreter with the same dependencies. A workload above its limit fails. If the base
or callgrind is missing, the command prints a line about it and exits with status 0.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from bench.instructions import WORKLOADS, CannotCount, NotInstalled, count
from bench.proxies import ROOT

FILE: Final = Path(__file__).with_name("budget.toml")
PACKAGES: Final = ("sdk", "proxy", "backend")


def limits(document: dict[str, Any]) -> dict[str, float]:
    """How many times the base's cost each workload may cost. Raises: ValueError, if a raised limit lacks a reason."""
    found = dict.fromkeys(document["workloads"], 1.0 + document["tolerance"])
    for each in document.get("raise", []):
        if not str(each.get("reason", "")).strip():
            raise ValueError(f"the raise of {each['workload']} has no reason")
        found[each["workload"]] += each["share"]
    return found


def tree_of(commit: str, folder: Path) -> bool:
    """Write the packages of a commit into a folder. False if the repository does not have the commit."""
    made = subprocess.run(["git", "archive", commit, *PACKAGES], cwd=ROOT, capture_output=True, check=False)
    if made.returncode:
        return False
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return True


def main(argv: list[str]) -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(prog="python -m bench budget", description=__doc__)
    document = tomllib.loads(FILE.read_text())
    parser.add_argument("--base", default=document["base"], metavar="COMMIT", help="(%(default).12s)")
    parser.add_argument("--workloads", default=",".join(document["workloads"]), help="(%(default)s)")
    asked = parser.parse_args(argv)
    allowed = limits(document)
    over = []
    with tempfile.TemporaryDirectory(prefix="warmroute-base-") as name:
        base = Path(name)
        if not tree_of(asked.base, base):
            print(f"not compared: this repository has no commit {asked.base[:12]}")
            return 0
        names = asked.workloads.split(",")
        workloads = [WORKLOADS[name]() for name in names]
        try:
            with ThreadPoolExecutor() as pool:
                before, now = pool.map(lambda tree: count(tree, workloads), (base, ROOT))
        except CannotCount as error:
            print(f"not compared: {error}")
            return int(not isinstance(error, NotInstalled))
    print(f"{'instructions':<18}{'base':>14}{'here':>14}{'limit':>10}")
    for name, base_cost, cost in zip(names, before, now, strict=True):
        limit = allowed[name]
        print(f"{name:<18}{base_cost:>14,.0f}{cost:>14,.0f}{limit:>10.3f}  x {cost / base_cost:.3f}")
        if cost > limit * base_cost:
            over.append(name)
    if over:
        print(f"above the limit: {', '.join(over)}; spend less, or give a reason in {FILE.relative_to(ROOT)}")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
