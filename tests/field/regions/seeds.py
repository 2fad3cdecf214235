"""Many seeds of the run, one after the other, by hand: a table of what held. Minutes for each.

python -m tests.field.regions.seeds 50                      seeds 1 to 50, as root
python -m tests.field.regions.seeds 50 --kept seeds.json    goes on where an earlier one was ended

A seed that does not hold is named with its problems, and its folder is kept. Exits with 1 where there is one.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

HEAD: Final = (
    "| seed | holds | tries | no whole answer | of these, nothing broken | at home | hit ratio | time, s |",
    "|---:|---|---:|---:|---|---:|---:|---:|",
)
SEED_S: Final = 1500.0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.field.regions.seeds", description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed (%(default)s)")
    parser.add_argument("--kept", type=Path, help="a file for the results, as JSON; seeds in it are not run again")
    args = parser.parse_args()
    results: dict[str, Any] = json.loads(args.kept.read_text()) if args.kept and args.kept.exists() else {}
    seeds = range(args.first, args.first + args.count)
    print("\n".join(HEAD), flush=True)
    for seed in seeds:
        if str(seed) not in results:
            results[str(seed)] = of_seed(seed)
            if args.kept:
                args.kept.write_text(json.dumps(results, indent=1) + "\n")
        print(row(seed, results[str(seed)]), flush=True)
    asked = [results[str(seed)] for seed in seeds]
    print(summary(asked))
    return int(any(each["problems"] for each in asked))


def of_seed(seed: int) -> dict[str, Any]:
    """Run a seed: its figures and problems."""
    folder = Path(tempfile.mkdtemp(prefix=f"warmroute-regions-{seed}-"))
    figures = folder / "figures.json"
    command = [sys.executable, "-m", "tests.field.regions", "--seed", str(seed), "--figures", str(figures)]
    try:
        run = subprocess.run(
            [*command, "--folder", str(folder / "run")], check=False, capture_output=True, text=True, timeout=SEED_S
        )
        text, code = run.stdout + run.stderr, run.returncode
    except subprocess.TimeoutExpired as expired:
        text, code = f"{expired}", 1
    (folder / "output").write_text(text)
    problems = [line.removeprefix("WRONG: ") for line in text.splitlines() if line.startswith("WRONG: ")]
    if code and not problems:
        problems = [f"it ended with {code}: {text.splitlines()[-1] if text else 'no word'}"]
    found = json.loads(figures.read_text()) if figures.exists() else {}
    if problems:
        print(*problems, f"logs and ledgers: {folder}", sep="\n", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return {"problems": problems, **found}


def row(seed: int, found: Mapping[str, Any]) -> str:
    """The line of a seed."""
    if "tries" not in found:
        return f"| {seed} | no | | | | | | |"
    holds = "no" if found["problems"] else "yes"
    calm = ", ".join(f"{count} x {what}" for what, count in found["calm_errors"].items()) or "0"
    lost = found["tries"] - found["whole"]
    hit = found["calm"]["hit"]
    return f"| {seed} | {holds} | {found['tries']} | {lost} | {calm} | {found['at_home']} | {hit} | {found['wall_s']} |"


def summary(results: Sequence[Mapping[str, Any]]) -> str:
    """A line on all of them."""
    held = sum(not each["problems"] for each in results)
    tries = sum(each.get("tries", 0) for each in results)
    faults = sum(len(each.get("faults", ())) for each in results)
    return f"\n{held} of {len(results)} seeds hold: {faults} faults, {tries} tries."


if __name__ == "__main__":
    sys.exit(main())
