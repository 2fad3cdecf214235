"""The options of `warmroute top`."""

import argparse

from warmroute_cli.arguments import above_zero, add_admin, add_state_dir


def add(top: argparse.ArgumentParser) -> None:
    top.add_argument(
        "--every", type=above_zero, default=2.0, metavar="SECONDS", help="seconds between two readings (%(default)g)"
    )
    once = "print one screen after two readings, and exit; needs no terminal"
    top.add_argument("--once", action="store_true", help=once)
    add_admin(top)
    add_state_dir(top)
