"""`warmroute ladder`. Exits with 0: shown, 1: the steps do not add up to the ledger, 2: not read."""

import json
import sqlite3
import sys
from argparse import Namespace

from warmroute.contract.money import usd
from warmroute_cli.ladder.sources import source_of
from warmroute_cli.ladder.table import ladder_table
from warmroute_cli.tables import width
from warmroute_proxy.ladder.steps import UNEXPLAINED
from warmroute_proxy.ladder.sums import Ladder
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.errors import Refusal


def run(arguments: Namespace) -> int:
    """Read, add up and print."""
    try:
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


def _title(ladder: Ladder, about: dict[str, object]) -> str:
    sums = ladder.all
    saved = sums.list_nanousd - sums.price_nanousd
    return f"{sums.turns:,} turns of {about['kind']}: {usd(sums.price_nanousd)} USD billed, {usd(saved)} USD saved"
