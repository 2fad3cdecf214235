"""`warmroute ladder`. Exits with 0: shown, 1: the steps do not add up to the ledger, 2: not read."""

import json
import sqlite3
import sys
from argparse import Namespace
from collections.abc import Mapping

from warmroute.contract.money import usd
from warmroute.files.printable import printable
from warmroute_cli.api import ApiError
from warmroute_cli.installed import missing
from warmroute_cli.ladder.logs import TRACE, LogTurns, format_of_all, rates_by_model
from warmroute_cli.ladder.sources import source_of
from warmroute_cli.ladder.table import ladder_table, what_if_table
from warmroute_cli.tables import width
from warmroute_proxy.ladder.sums import Ladder
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.errors import Refusal


def run(arguments: Namespace) -> int:
    try:
        if _is_trace(arguments):
            return _of_trace(arguments)
        if arguments.what_if or arguments.as_it_is:
            raise ValueError("--what-if needs a proxy's record or another trace, as `warmroute replay` takes")
        source = source_of(arguments)
        ladder = Ladder(arguments.by)
        for turn in source.turns:
            ladder.add(turn)
    except (ApiError, Refusal, ConfigError, OSError, ValueError, sqlite3.Error) as error:
        text = f"warmroute ladder: {_problem_of(error)}"
        for line in text.splitlines() if isinstance(error, ConfigError) else [text]:
            print(printable(line), file=sys.stderr)
        return 2
    return _shown(arguments, ladder, source)


def _problem_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be read: {error.strerror}"
    return error.message if isinstance(error, Refusal) else str(error)


def _shown(arguments: Namespace, ladder: Ladder, source: LogTurns) -> int:
    off = ladder.all.off_nanousd
    if arguments.json:
        found = {**ladder.as_dict(source.about, arguments.limit), "notes": source.notes}
        found |= {"is_billed": _is_billed(ladder, source.about), "off_nanousd": off, "off_rows": ladder.all.off_rows}
        print(json.dumps(found, indent=2))
    else:
        print("\n".join([_title(ladder, source.about), "", *ladder_table(ladder, width(), arguments.limit)]))
        for note in source.notes:
            print(f"warmroute: {printable(note)}", file=sys.stderr)
    if off:
        text = f"the prices of {ladder.all.off_rows:,} rows of the ledger do not follow from their rates"
        print(f"warmroute: {text}, by {usd(off)} USD in all", file=sys.stderr)
    return 1 if off else 0


def _is_trace(arguments: Namespace) -> bool:
    """Raises: ValueError, OSError."""
    files = arguments.paths and not any(path.is_dir() for path in arguments.paths)
    return bool(files) and format_of_all(arguments) == TRACE


def _of_trace(arguments: Namespace) -> int:
    """Raises: ValueError, OSError."""
    for name, value in (("--since", arguments.since), ("--config", arguments.config)):
        if value is not None:
            raise ValueError(f"{name} is for ledgers: leave it out with a record or trace")
    if arguments.by not in {None, "session"}:
        raise ValueError(f"--by {arguments.by}: a record or trace has only sessions")
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
        found = {**first.as_dict(about, arguments.limit), "is_billed": _is_billed(first, about)}
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
    title = f"{sums.turns:,} turns of {about['kind']}"
    if not _is_billed(ladder, about) and not sums.billed_rows:
        return f"{title}, which does not state the billed tokens"
    if not sums.is_billed:
        title = f"{title}, of which {sums.billed_rows:,} state the billed tokens"
    if not sums.is_rated:
        return f"{title}: {usd(sums.billed_nanousd)} USD billed"
    return f"{title}: {usd(sums.billed_nanousd)} USD billed, {usd(sums.saved_nanousd)} USD saved"


def _is_billed(ladder: Ladder, about: Mapping[str, object]) -> bool:
    """Whether it is known what was billed: always of a ledger, and never of a log without a turn."""
    return about["kind"] == "ledger" or (ladder.all.rows > 0 and ladder.all.is_billed)
