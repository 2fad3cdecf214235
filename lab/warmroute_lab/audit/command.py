"""`warmroute audit isolation`. Exits with 0: isolated, 1: a leak, or trials that show nothing, 2: not tried."""

import argparse
import json
import sys
from typing import Final

from warmroute_cli.arguments import KeyFileError, key_in
from warmroute_lab.audit.isolation import AuditOptions, Relation, audit
from warmroute_lab.audit.probes import AuditError, Sender
from warmroute_lab.audit.verdicts import IsolationVerdict, verdicts

LEAST_TRIALS: Final = 8
_HEADS: Final = ("sender of a repeated prompt", "found", "cached", "TTFT ms", "of new ones", "lower in", "p", "")


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.trials < LEAST_TRIALS:
            raise AuditError(f"--trials {arguments.trials} is too few to tell anything; give {LEAST_TRIALS} or more")
        senders = _senders(arguments)
        options = AuditOptions(arguments.trials, arguments.prompt_bytes, arguments.filler)
        seen = audit(senders, options, lambda counted: _progress(counted, arguments.trials))
    except (AuditError, KeyFileError) as error:
        print(f"\nwarmroute audit: {error}" if sys.stderr.isatty() else f"warmroute audit: {error}", file=sys.stderr)
        return 2
    found = verdicts(seen, arguments.trials, arguments.tier)
    print(json.dumps([each.as_dict() for each in found], indent=2) if arguments.json else shown(found))
    return 0 if all(each.ok for each in found) else 1


def shown(found: list[IsolationVerdict]) -> str:
    rows = [
        (
            each.relation,
            f"{each.hits} of {each.samples}",
            f"{each.median_cached:,.0f}",
            f"{each.median_ttft_s * 1000:,.1f}",
            f"{each.median_new_ttft_s * 1000:,.1f}",
            f"{each.effect:.0%}",
            f"{each.p_value:.2g}",
            each.finding,
        )
        for each in found
    ]
    widths = [max(len(line[at]) for line in (_HEADS, *rows)) for at in range(len(_HEADS))]
    lines = [
        "  ".join(cell.rjust(width) if 0 < at < len(line) - 1 else cell.ljust(width) for at, (cell, width) in cells)
        for line in (_HEADS, *rows)
        for cells in [list(enumerate(zip(line, widths, strict=True)))]
    ]
    verdict = "isolated" if all(each.ok for each in found) else "NOT shown to be isolated"
    return "\n".join([*(line.rstrip() for line in lines), verdict])


def _senders(arguments: argparse.Namespace) -> dict[Relation, Sender]:
    """The tenant itself comes last: after it, its prompt is on the device again."""
    files = {
        Relation.OUTSIDER: arguments.other_key_file,
        Relation.MEMBER: arguments.group_key_file,
        Relation.ITSELF: arguments.key_file,
    }
    return {
        relation: Sender(arguments.base_url, key_in(file), arguments.model)
        for relation, file in files.items()
        if file is not None
    }


def _progress(counted: int, trials: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{counted} of {trials} trials", end="", file=sys.stderr, flush=True)
