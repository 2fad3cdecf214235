"""Makes docs/benchmarks/placement.md: plays every part, evaluates the rule, draws the plots.

    .venv/bin/python -m scripts.placement --traces ../shared/traces            # everything
    .venv/bin/python -m scripts.placement --traces DIR --only synthetic-8 pd   # some parts anew, the others as kept
    .venv/bin/python -m scripts.placement --traces DIR --only-production       # what a change of the placement changes
    .venv/bin/python -m scripts.placement --page                               # the text and plots alone

Figures are kept in docs/benchmarks/placement/figures.json.
"""

import argparse
import sys

from scripts.placement import figures as kept_figures
from scripts.placement.text import write


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m scripts.placement", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--traces", default="../shared/traces", metavar="DIR", help="where the public traces are")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="play these parts alone, or: speed")
    parser.add_argument("--only-production", action="store_true", help="leave the figures of baselines as they are")
    parser.add_argument("--page", action="store_true", help="play nothing")
    arguments = parser.parse_args()
    figures = kept_figures.kept()
    if not arguments.page:
        only = [name for name in arguments.only if name != "speed"]
        if only or not arguments.only:
            parts = kept_figures.names(only)
            kept_figures.measure(figures, parts, arguments.traces, only_production=arguments.only_production)
            kept_figures.keep(figures)
        if "speed" in arguments.only or not arguments.only:
            kept_figures.measure_speed(figures, arguments.traces)
            kept_figures.keep(figures)
    write(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
