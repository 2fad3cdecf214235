"""`warmroute ledger reconcile`: compares a region's receipts with its engines' counters, by engine and hour."""

import asyncio
import json
import sqlite3
import sys
import time
from argparse import Namespace
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from rich import box
from rich.table import Table

from warmroute.files.printable import number_of
from warmroute_cli.installed import missing
from warmroute_cli.own_rows import rows_of
from warmroute_cli.usage import console
from warmroute_proxy.core.accounting.engine_turns import turns_of
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.reconciliation import KINDS, Line, Reconciliation
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.secrets import SecretError, load_dsn
from warmroute_proxy.server.ledger.counter_file import read_spans
from warmroute_proxy.server.ledger.schema import LedgerError

NEEDED: Final = ("asyncpg",)
LONGEST_TURN_S: Final = 3_600.0
"""Reading begins this long before the requested time. Turns that ended even earlier are left out."""

_SHORT: Final = {"prompt_tokens": "prompt", "cached_tokens": "cached", "completion_tokens": "answer"}


def reconcile(arguments: Namespace) -> int:
    """Compare and print. Exit status 0: all differences are within the tolerance, 1: some are not, 2: not compared."""
    since_s = time.time() - arguments.since
    try:
        config = load_config(arguments.config)
        if config.database is not None and (hint := missing(NEEDED, "postgres")):
            print(f"warmroute: {hint}", file=sys.stderr)
            return 2
        found = Reconciliation(read_spans(config.proxy.state_dir, since_s))
        notes = _add_turns(found, config, since_s)
    except (ConfigError, SecretError, LedgerError, OSError, RuntimeError, sqlite3.Error) as error:
        print(f"warmroute ledger: {error}", file=sys.stderr)
        return 2
    notes += _without_counters(found, config)
    lines = found.lines()
    beyond = [line for line in lines if line.is_beyond(arguments.tolerance)]
    if arguments.json:
        shown = [_as_dict(line, arguments.tolerance) for line in lines]
        print(json.dumps({"lines": shown, "beyond": len(beyond), "notes": notes}, indent=2))
    else:
        console().print(_table(lines, arguments.tolerance))
        for note in notes:
            print(f"warmroute: {note}", file=sys.stderr)
    return 1 if beyond else 0


def _add_turns(found: Reconciliation, config: Config, since_s: float) -> list[str]:
    """Add the rows of the ledger. Returns notes on missing rows. Raises: StoreError, sqlite3.Error."""
    if config.database is None:
        _add(found, rows_of(config.proxy.state_dir, since_s - LONGEST_TURN_S))
        return []
    from warmroute_proxy.server.stores.fleet_rows import rows_since, unsent_rows

    dsn = load_dsn(config.database.dsn_file)

    async def read() -> int:
        async for entry in rows_since(dsn, since_s - LONGEST_TURN_S):
            _add(found, [entry])
        return await unsent_rows(dsn)

    unsent = asyncio.run(read())
    return [f"{unsent} rows of proxies are not in the database yet: their turns are missing"] if unsent else []


def _add(found: Reconciliation, entries: Iterable[Entry]) -> None:
    for entry in entries:
        for turn in turns_of(entry, found.engines):
            found.add(turn)


def _without_counters(found: Reconciliation, config: Config) -> list[str]:
    notes: list[str] = []
    for engine in config.engines:
        if engine.region != config.proxy.region or engine.id in found.engines:
            continue
        why = "only SGLang has them" if engine.kind == "openai" else "start it with --enable-metrics"
        notes.append(f"engine {engine.id} has no counters ({why}): its receipts are not compared")
    outside = sorted((id_, count) for id_, count in found.outside.items() if id_ in found.engines)
    return notes + [f"{count} turns of {id_} were settled while its counters were not read" for id_, count in outside]


def _table(lines: Iterable[Line], tolerance: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("engine", no_wrap=True)
    table.add_column("from (UTC)", no_wrap=True)
    table.add_column("to", no_wrap=True)
    for name in ("turns", "tokens of", "engine", "receipts", "difference", "unexplained"):
        table.add_column(name, justify="left" if name == "tokens of" else "right", no_wrap=True)
    table.add_column("why")
    for line in lines:
        first = [line.span.engine, _at(line.span.began_s, "%m-%d %H:%M:%S"), _at(line.span.ended_s, "%H:%M:%S")]
        first.append(f"{line.turns.all:,}")
        why = "; ".join(reasons(line))
        for kind in KINDS:
            if line.compares(kind):
                beyond = " !" if line.share(kind) > tolerance else ""
                counts = [getattr(of, kind) for of in (line.span.counts, line.receipts)]
                numbers = [f"{count:,}" for count in counts] + [f"{line.difference(kind):+,}"]
                cells = [*first, _SHORT[kind], *numbers, f"{line.unexplained(kind):+,}{beyond}", why]
                table.add_row(*cells)
                first, why = [""] * 4, ""
    return table


def reasons(line: Line) -> list[str]:
    turns, more = line.turns, line.span.counts.requests - line.turns.all
    found: list[str] = []
    if line.span.restarts:
        found.append(f"the engine was started again ({line.span.restarts})")
    if turns.at_edge:
        found.append(f"{number_of(turns.at_edge, 'turn')} at an edge")
    if turns.estimated:
        found.append(f"{turns.estimated} with estimates")
    if turns.repeated:
        found.append(f"{turns.repeated} with several attempts")
    if turns.failed:
        found.append(f"{turns.failed} not completed")
    if more > turns.repeated and line.span.role != "decode":
        found.append(f"{number_of(more, 'request')} of others, or attempts that were given up")
    if any(line.unexplained(kind) < 0 for kind in KINDS):
        found.append("receipts say more than the engine counted")
    return found


def _as_dict(line: Line, tolerance: float) -> dict[str, Any]:
    span = line.span
    compared = {
        kind: {
            "engine": getattr(span.counts, kind),
            "receipts": getattr(line.receipts, kind),
            "difference": line.difference(kind),
            "unexplained": line.unexplained(kind),
        }
        for kind in KINDS
        if line.compares(kind)
    }
    facts = {"engine": span.engine, "role": span.role, "began_s": span.began_s, "ended_s": span.ended_s}
    counts = {"requests": span.counts.requests, "restarts": span.restarts, "turns": line.turns._asdict()}
    return facts | counts | {"tokens": compared, "why": reasons(line), "beyond": line.is_beyond(tolerance)}


def _at(unix_s: float, form: str) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime(form)
