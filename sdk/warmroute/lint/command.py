"""`warmroute lint TRANSCRIPT...`: exit codes 0 done, 1 a check has failed, 2 a file cannot be read."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from warmroute.guard.causes import Cause, cause_named
from warmroute.lint.analysis import Analysis, analysed
from warmroute.lint.page import page_of
from warmroute.lint.table import json_of, text_of
from warmroute.lint.transcript import Recorded, TranscriptError, recorded

SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `warmroute lint`."""
    parser.add_argument(
        "transcript", nargs="+", type=Path, metavar="TRANSCRIPT",
        help="recorded requests or OpenTelemetry spans, JSON or JSON lines, or a folder of such files",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with a timeline of each session")
    parser.add_argument("--show-text", action="store_true", help="show what the changed lines say, instead of x and 9")
    parser.add_argument(
        "--fail-under", type=_share, metavar="RATIO", help="exit with 1 if less than this share is cached: 0.85"
    )
    parser.add_argument(
        "--fail-on", type=_causes, default=(), metavar="CAUSES", help="exit with 1 on one of these: date,tool-order"
    )


def run(arguments: argparse.Namespace) -> int:
    """Lint the files; returns the exit code."""
    try:
        analysis = analysed(_requests(arguments.transcript), show_text=arguments.show_text)
        if arguments.html is not None:
            arguments.html.write_text(page_of(analysis), encoding="utf-8")
    except (TranscriptError, OSError) as error:
        print(f"warmroute lint: {error}", file=sys.stderr)
        return 2
    print(json.dumps(json_of(analysis), indent=1) if arguments.json else text_of(analysis))
    failures = _failures(analysis, arguments.fail_under, arguments.fail_on)
    for failure in failures:
        print(f"warmroute lint: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _failures(analysis: Analysis, fail_under: float | None, fail_on: tuple[Cause, ...]) -> list[str]:
    found = []
    if fail_under is not None and analysis.hit_ratio < fail_under:
        found.append(f"{analysis.hit_ratio:.1%} cached is under {fail_under:.1%}")
    counts = analysis.counts()
    found += [f"{cause} in {counts[cause]} turns" for cause in fail_on if counts[cause]]
    return found


def _requests(paths: list[Path]) -> Iterator[Recorded]:
    for path in paths:
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if each.name.endswith(SUFFIXES))
            if not files:
                raise TranscriptError(f"{path}: no file in it ends with {', '.join(SUFFIXES)}")
            for each in files:
                yield from recorded(each)
        else:
            yield from recorded(path)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def _causes(text: str) -> tuple[Cause, ...]:
    try:
        return tuple(cause_named(name.strip()) for name in text.split(",") if name.strip())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
