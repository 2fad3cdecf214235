"""`warmroute lint TRANSCRIPT...`: exit codes 0 done, 1 a check has failed, 2 a file cannot be read."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from warmroute.files.given import UnreadableFile
from warmroute.files.printable import printable
from warmroute.guard.causes import Cause
from warmroute.lint.analysis import Analysis, analysed
from warmroute.lint.page import page_of
from warmroute.lint.table import json_of, text_of
from warmroute.lint.transcript import Recorded, TranscriptError, recorded

SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
MAX_MESSAGE_CHARS = 1_000


def run(arguments: argparse.Namespace) -> int:
    """Lint the files; returns the exit code."""
    try:
        analysis = analysed(_requests(arguments.transcript), show_text=arguments.show_text)
        if arguments.html is not None:
            arguments.html.write_text(page_of(analysis), encoding="utf-8")
    except (TranscriptError, UnreadableFile, OSError) as error:
        print(printable(f"warmroute lint: {error}"[:MAX_MESSAGE_CHARS]), file=sys.stderr)
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
