"""`python -m tests.chaos`: a run by hand. Exits with 1 where something does not hold."""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import uvloop

from .audit import audit, growth_kib
from .run import Findings, Run


def main() -> int:
    """Run, print the figures, and what does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat its faults")
    parser.add_argument("--folder", type=Path, help="where logs and ledger are kept; else a temporary one")
    parser.add_argument("--processes", type=int, default=1, help="of the proxy")
    args = parser.parse_args()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    folder = args.folder or Path(tempfile.mkdtemp(prefix="warmroute-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, folder {folder}", flush=True)
    run = Run(
        seed, args.requests, args.concurrency, folder, lambda text: print(f"  {text}", flush=True), args.processes
    )
    found = uvloop.run(run.go())
    problems = audit(found)
    print(figures(found))
    for problem in problems:
        print(f"WRONG: {problem}")
    print(f"seed {seed}: {f'{len(problems)} problems' if problems else 'everything holds'}")
    return 1 if problems else 0


def figures(found: Findings) -> str:
    """What happened, in a few lines."""
    ends = Counter(seen.end for seen in found.seen)
    errors = Counter(f"{seen.status} {seen.detail}" for seen in found.seen if seen.end == "error")
    outcomes = Counter(row["outcome"] for row in found.rows)
    first, second = growth_kib(found)
    peak = max((rss for life in found.rss for _, rss in life), default=0)
    return "\n".join(
        [
            f"clients   {dict(ends)}",
            f"errors    {dict(errors.most_common())}",
            f"rows      {dict(outcomes)}",
            f"kills     open {[len(ids) for ids in found.open_at_kill]}, turned away {found.turned_away}",
            f"retried   {sum(row['rids'].count(',') > 0 for row in found.rows)}",
            f"continued {sum('continued' in json.loads(row['usage'])['warmroute'] for row in found.rows)}",
            f"orphans   {sum(found.still_working.values())}",
            f"fd        {found.fd_base} -> {found.fd_end}",
            f"memory    peak {peak} KiB; last life {first:+} KiB, then {second:+} KiB: {_tenths(found)}",
            f"time      {found.wall_s:.0f} s",
        ]
    )


def _tenths(found: Findings) -> list[int]:
    """The memory of the last life at each tenth of its samples, in MiB."""
    samples = found.rss[-1]
    return [samples[at * (len(samples) - 1) // 10][1] // 1024 for at in range(11)] if samples else []


if __name__ == "__main__":
    sys.exit(main())
