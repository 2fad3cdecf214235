"""`warmroute ladder`. Exits with 0: shown, 1: the steps do not add up to the ledger, 2: not read."""

import json
import sqlite3
import sys
from argparse import Namespace
from collections.abc import Mapping

from warmroute.contract.money import usd
from warmroute_cli.installed import missing
from warmroute_cli.ladder.logs import TRACE, LogTurns, format_of_all, rates_by_model
from warmroute_cli.ladder.sources import source_of
from warmroute_cli.ladder.table import ladder_table, what_if_table
from warmroute_cli.tables import width
from warmroute_proxy.ladder.steps import UNEXPLAINED
from warmroute_proxy.ladder.sums import Ladder
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.errors import Refusal


def run(arguments: Namespace) -> int:
    """Read, add up and print."""
    try:
        if _is_trace(arguments):
            return _of_trace(arguments)
        if arguments.what_if or arguments.as_it_is:
            raise ValueError("--what-if needs a proxy's record or another trace, as `warmroute replay` takes")
        source = source_of(arguments)
        ladder = Ladder(arguments.by)
        for turn in source.turns:
            ladder.add(turn)
    except Refusal as refusal:
        print(f"warmroute ladder: {refusal.message}", file=sys.stderr)
        return 2
    except (ConfigError, OSError, ValueError, sqlite3.Error) as error:
        print(f"warmroute ladder: {error}", file=sys.stderr)
        return 2
    return _shown(arguments, ladder, source)


def _shown(arguments: Namespace, ladder: Ladder, source: LogTurns) -> int:
    off = 0
    if source.about["kind"] == "ledger":
        off = sum(lost[1] for (_, cause), lost in ladder.all.lost.items() if cause == UNEXPLAINED and not lost[0])
    if arguments.json:
        found = ladder.as_dict(source.about, arguments.limit)
        print(json.dumps({**found, "notes": source.notes, "off_nanousd": off}, indent=2))
    else:
        print("\n".join([_title(ladder, source.about), "", *ladder_table(ladder, width(), arguments.limit)]))
        for note in source.notes:
            print(f"warmroute: {note}", file=sys.stderr)
    if off:
        print(f"warmroute: {usd(off)} USD of the ledger is not explained by its own rates", file=sys.stderr)
    return 1 if off else 0


def _is_trace(arguments: Namespace) -> bool:
    """Raises: ValueError, OSError."""
    files = arguments.paths and not any(path.is_dir() for path in arguments.paths)
    return bool(files) and format_of_all(arguments) == TRACE


def _of_trace(arguments: Namespace) -> int:
    """Raises: ValueError, OSError."""
    if hint := missing(("numpy",), "replay"):
        raise ValueError(hint)
    from warmroute_cli.ladder import what_if

    rates = rates_by_model(arguments.price).get("")
    trace = what_if.read_trace(arguments.paths)
    case = what_if.first_case(arguments.paths, arguments.as_it_is, arguments.kv_tokens)
    cases = [what_if.changed(case, text) for text in arguments.what_if]
    first = what_if.ladder_of(trace, case, case.rates or rates, arguments.by)
    others = what_if.differences(trace, first, case.rates or rates, cases)
    about = {"kind": TRACE, "paths": [str(path) for path in arguments.paths], "case": what_if.described(case)}
    if arguments.json:
        found = first.as_dict(about, arguments.limit)
        print(json.dumps({**found, "what_if": [each.as_dict() for each in others]}, indent=2))
        return 0
    lines = [_title(first, about), f"as it is: {what_if.described(case)}", ""]
    lines += ladder_table(first, width(), arguments.limit)
    if others:
        lines += ["", *what_if_table(first, others, width())]
    print("\n".join([*lines, "", "Figures of a queueing model, not of any GPU."]))
    return 0


def _title(ladder: Ladder, about: Mapping[str, object]) -> str:
    sums = ladder.all
    saved = sums.list_nanousd - sums.price_nanousd
    if "billed" not in sums.known:
        return f"{sums.turns:,} turns of {about['kind']}, which does not say what was billed"
    return f"{sums.turns:,} turns of {about['kind']}: {usd(sums.price_nanousd)} USD billed, {usd(saved)} USD saved"
