"""The options of `warmroute lint`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmroute.guard.causes import Cause


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "transcript", nargs="+", type=Path, metavar="TRANSCRIPT",
        help="recorded requests or OpenTelemetry spans, JSON or JSON lines, or a folder of such files",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with a timeline of each session")
    parser.add_argument("--show-text", action="store_true", help="show the text of changed lines instead of x and 9")
    parser.add_argument(
        "--fail-under", type=_share, metavar="RATIO", help="exit with 1 if less than this share is cached: 0.85"
    )
    parser.add_argument(
        "--fail-on", type=_causes, default=(), metavar="CAUSES", help="exit with 1 on one of these: date,tool-order"
    )


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def _causes(text: str) -> "tuple[Cause, ...]":
    from warmroute.guard.causes import cause_named  # imported here, so that other commands start faster

    try:
        return tuple(cause_named(name.strip()) for name in text.split(",") if name.strip())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
