"""`warmroute replay --verify`: all decisions of live proxies' records made again, and whether they are the same."""

import sys
from collections.abc import Iterable
from pathlib import Path

from warmroute_proxy.core.replicas.record import RecordError
from warmroute_proxy.replay.record import ReplayVerdict, verify


def verify_records(paths: Iterable[Path]) -> int:
    """One line a record, and one for the first decision that differs. 0: all the same, 1: some differ, 2: not read."""
    codes = [_verified(path) for path in paths]
    if not codes:
        print("warmroute replay: which record? name at least one file", file=sys.stderr)
    return max(codes, default=2)


def _verified(path: Path) -> int:
    try:
        verdict = verify(path)
    except RecordError as error:
        print(f"warmroute replay: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"warmroute replay: {path}: {error.strerror}", file=sys.stderr)
        return 2
    same = verdict.decisions - verdict.differing
    print(f"{path}: {same:,} of {verdict.decisions:,} decisions came out the same; {_ending(verdict)}")
    if verdict.first_difference is not None:
        print(f"  recorded by warmroute {verdict.software}; {verdict.first_difference}")
    return 1 if verdict.differing else 0


def _ending(verdict: ReplayVerdict) -> str:
    if verdict.cut_off is not None:
        return f"the record is cut off {verdict.cut_off}"
    return f"the record ends with: {verdict.closed}"
