"""`python -m tests.field.regions`: a run by hand, as root. Exits with 1 where something does not hold."""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from .audit import audit, calm_turns
from .measured import measured
from .namespaces import missing, reentered
from .processes import REGIONS
from .run import Findings, Run
from .schedule import KINDS, Fault, schedule

_INSIDE: Final = "WARMROUTE_TEST_INSIDE_NAMESPACES"


def main() -> int:
    """Run, print what happened, and what does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.field.regions", description=__doc__)
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat its faults")
    parser.add_argument("--faults", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--turns", type=int, default=0, help="more turns at the end, where nothing breaks")
    parser.add_argument("--folder", type=Path, help="where logs and ledgers are kept; else a temporary one")
    parser.add_argument("--policy", choices=("cost", "round_robin"), default="cost")
    parser.add_argument("--enters", choices=("anywhere", "hashed", "first"), default="anywhere")
    parser.add_argument(
        "--beside",
        metavar="COMMIT",
        help="the proxies of one region run this commit instead, and are replaced by this one's at the end",
    )
    parser.add_argument(
        "--engine",
        choices=("embedded", "sglang"),
        default="embedded",
        help="sglang: a real one on the CPU in each region, without the fault `overload`; after scripts/sglang install",
    )
    parser.add_argument("--figures", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--moves", action="store_true", help="print the turns that left home without a fault")
    args = parser.parse_args()
    lacking = missing()
    if lacking:
        print(lacking)
        return 2
    if _INSIDE not in os.environ:
        command = reentered([sys.executable, "-m", "tests.field.regions", *sys.argv[1:]])
        os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})
    seed = random.randrange(10**6) if args.seed is None else args.seed
    folder = args.folder or Path(tempfile.mkdtemp(prefix="warmroute-regions-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, folder {folder}", flush=True)
    real = args.engine == "sglang"
    faults = schedule(seed, REGIONS, [kind for kind in args.faults if not (real and kind == "overload")])
    checkout = _checked_out(args.beside, folder / "beside") if args.beside else None
    if checkout is not None:
        faults.append(Fault("upgrade", REGIONS[-1]))
    run = Run(
        seed, folder, _say, faults, turns=args.turns, policy=args.policy, enters=args.enters, checkout=checkout,
        real=real,
    )  # fmt: skip
    found = asyncio.run(run.go())
    print(figures(found))
    if args.moves:
        print("\n".join(moves(found)))
    if args.figures:
        args.figures.write_text(json.dumps(measured(found)))
    problems = audit(found, affinity=args.policy == "cost")
    for problem in problems:
        print(f"WRONG: {problem}")
    print(f"seed {seed}: {f'{len(problems)} problems' if problems else 'everything holds'}")
    return 1 if problems else 0


def _checked_out(commit: str, folder: Path) -> Path:
    """The files of a commit."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], check=True, input=archive)
    return folder.resolve()


def moves(found: Findings) -> list[str]:
    """The turns that were not served where the one before was, though neither met a fault."""
    lines = []
    for number, before, asked in calm_turns(found):
        if before.seen.home != asked.seen.home:
            turn = asked.turn
            hinted = "hinted" if turn.hints else "stock"
            named = "named" if turn.named else "unnamed"
            lines.append(
                f"try {number}: turn {turn.ask.number} of {turn.tenant}, {named}, {hinted}: {before.region} ->"
                f" {before.seen.home}, then {asked.region} -> {asked.seen.home}: {asked.seen.usage}"
            )
    return lines


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def figures(found: Findings) -> str:
    """What happened, in a few lines."""
    ends = Counter(asked.seen.end for asked in found.tried)
    errors = Counter(f"{asked.seen.status} {asked.seen.detail}" for asked in found.tried if asked.seen.end != "whole")
    rows = [row for rows in found.files.values() for row in rows]
    outcomes = Counter(row["outcome"] for row in rows)
    forwarded = sum(bool(row["forwarded_from"]) for row in rows)
    usages = [json.loads(row["usage"]) for row in rows if row["outcome"] == "completed"]
    cached = sum((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for usage in usages)
    prompt = sum(usage["prompt_tokens"] for usage in usages) or 1
    return "\n".join(
        [
            f"clients   {dict(ends)}, {found.unreached} found nobody",
            f"errors    {dict(errors.most_common(12))}",
            f"rows      {dict(outcomes)}, {forwarded} forwarded",
            f"hits      {cached / prompt:.4f} of {prompt} tokens",
            f"time      {found.wall_s:.0f} s",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
