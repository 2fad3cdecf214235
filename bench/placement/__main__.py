"""Runs the simulations (rows) of the placement benchmark, and writes docs/benchmarks/placement.md and further pages.

A *row* is one simulation, and a *draw* is one run of it at one seed.

    .venv/bin/python -m bench.placement draws --traces ../shared/traces     # run all draws that are missing
    .venv/bin/python -m bench.placement trial "bursty" --traces DIR         # run rows by name, at the seeds for trials
    .venv/bin/python -m bench.placement single --traces DIR                 # run every policy once, and measure speed
    .venv/bin/python -m bench.placement tight --traces DIR --results FILE   # run the rows with tight KV memory
    .venv/bin/python -m bench.placement forks                               # write docs/benchmarks/forks.md
    .venv/bin/python -m bench.placement page                                # only write the pages and plots

Results are kept in docs/benchmarks/placement/draws.json and figures.json, those of `tight` in FILE. So a run that was
interrupted continues where it stopped.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from bench.placement import draws, figures
from bench.placement.rows import ROWS, SEEDS, TRIAL_SEEDS


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.placement", description=__doc__.split("\n", maxsplit=1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    plays = {
        "draws": "play what is missing of all rows at the held-back seeds",
        "trial": "play rows that are not held back at the seeds for trials, and print them",
        "tight": "play what is missing of the rows with tight KV memory, and print their table",
        "single": "play every policy once on the parts of the other pages",
    }
    for name, text in plays.items():
        each = commands.add_parser(name, help=text)
        each.add_argument(
            "names", nargs="*", metavar="NAME", help="rows whose name begins so, in this order, or parts (all)"
        )
        each.add_argument("--traces", default="../shared/traces", metavar="DIR", help="where the public traces are")
        each.add_argument("--seeds", nargs="+", type=int, metavar="N", help="these seeds alone")
        if name == "tight":
            each.add_argument("--results", type=Path, required=True, metavar="FILE", help="where draws are kept")
    commands.add_parser("page", help="make the pages of what was played")
    commands.add_parser("forks", help="play forks of sub-agents, and write their page")
    asked = parser.parse_args()
    if asked.command == "page":
        from bench.placement.page import write

        write(draws.kept(), figures.kept())
    elif asked.command == "forks":
        from bench.placement import forks

        forks.write()
    elif asked.command == "single":
        figures.play(asked.names, asked.traces)
    elif asked.command == "tight":
        _tight(asked)
    else:
        _draw(asked, is_trial=asked.command == "trial")
    return 0


def _tight(asked: argparse.Namespace) -> None:
    from bench.placement import tight

    every = (*tight.BARS, *tight.PROXIES, *tight.BOUNDS)
    rows = [row for row in every if not asked.names or row.name in asked.names]
    print("\n".join(tight.tight_tables(draws.play(rows, asked.seeds or tight.SEEDS, asked.traces, asked.results))))


def _draw(asked: argparse.Namespace, *, is_trial: bool) -> None:
    if not Path(asked.traces).is_dir():
        sys.exit(f"{asked.traces} is not there: name the folder of the public traces by --traces")
    names = tuple(asked.names)
    rows = [row for row in ROWS if (not names or row.name.startswith(names)) and not (is_trial and row.is_held_back)]
    rows.sort(key=lambda row: next((at for at, name in enumerate(names) if row.name.startswith(name)), 0))
    if not rows:
        sys.exit("no such row; there are: " + "; ".join(row.name for row in ROWS))
    if not is_trial:
        draws.play(rows, asked.seeds or SEEDS, asked.traces)
        return
    from bench.placement.tables import row_table

    with tempfile.TemporaryDirectory() as folder:
        played = draws.play(rows, asked.seeds or TRIAL_SEEDS, asked.traces, Path(folder) / "draws.json")
    for row in rows:
        print("\n".join([row.name, "", *row_table(row, played[row.name])]))


if __name__ == "__main__":
    sys.exit(main())
