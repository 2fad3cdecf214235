"""`python -m tests.field.chaos`: a run by hand. Exits with 1 where something does not hold."""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import uvloop

from .audit import audit, growth_kib
from .replica_audit import audit_replicas, cut_by_kill, overshoot_nanousd
from .replicas import ReplicaFindings, Replicas
from .run import Findings, Run


def main() -> int:
    """Run, print the figures, and what does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.field.chaos", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat its faults")
    parser.add_argument("--folder", type=Path, help="where logs and ledger are kept; else a temporary one")
    parser.add_argument("--processes", type=int, default=1, help="of the proxy")
    parser.add_argument("--replicas", type=int, help="so many proxies on one PostgreSQL and one Redis, which break")
    parser.add_argument("--away", type=float, default=0.0, metavar="S", help="with them: the database is gone so long")
    args = parser.parse_args()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    folder = args.folder or Path(tempfile.mkdtemp(prefix="warmroute-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, folder {folder}", flush=True)
    if args.replicas:
        together = Replicas(seed, args.requests, args.concurrency, folder, _say, args.replicas, args.away)
        of_replicas = uvloop.run(together.go())
        problems, text = audit_replicas(of_replicas, args.requests), replica_figures(of_replicas)
    else:
        found = uvloop.run(Run(seed, args.requests, args.concurrency, folder, _say, args.processes).go())
        problems, text = audit(found), figures(found)
    print(text)
    for problem in problems:
        print(f"WRONG: {problem}")
    print(f"seed {seed}: {f'{len(problems)} problems' if problems else 'everything holds'}")
    return 1 if problems else 0


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def _of_clients(found: Findings) -> list[str]:
    """What clients and rows say, in both kinds of runs."""
    ends = Counter(seen.end for seen in found.seen)
    errors = Counter(f"{seen.status} {seen.detail}" for seen in found.seen if seen.end == "error")
    outcomes = Counter(row["outcome"] for row in found.rows)
    return [
        f"clients   {dict(ends)}",
        f"errors    {dict(errors.most_common())}",
        f"rows      {dict(outcomes)}",
        f"kills     open {[len(ids) for ids in found.open_at_kill]}, turned away {found.turned_away}",
    ]


def replica_figures(found: ReplicaFindings) -> str:
    """What happened in a run of several proxies."""
    beyond = overshoot_nanousd(found)
    return "\n".join(
        [
            *_of_clients(found),
            f"database  {len(found.rows)} rows, {[len(rows) for rows in found.files]} in the ledger files",
            f"budget    {found.limit_nanousd} nanousd, {abs(beyond)} {'beyond' if beyond > 0 else 'left'}",
            f"cut       {cut_by_kill(found)} charged answers were cut off by a kill of their proxy",
            f"stores    {found.stores_said} lines of logs say that one is away",
            f"time      {found.wall_s:.0f} s",
        ]
    )


def figures(found: Findings) -> str:
    """What happened, in a few lines."""
    first, second = growth_kib(found)
    peak = max((rss for life in found.rss for _, rss in life), default=0)
    return "\n".join(
        [
            *_of_clients(found),
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
