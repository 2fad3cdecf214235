"""The command line of `warmroute prices`."""

import argparse
from datetime import datetime
from pathlib import Path

from warmroute.contract.receipt import RATES
from warmroute_cli.arguments import wants


def add(prices: argparse.ArgumentParser) -> None:
    """The options of `warmroute prices`."""
    actions = prices.add_subparsers(required=True, metavar="ACTION", dest="action")
    found = actions.add_parser("list", help="list all price books, with the one in effect")
    found.add_argument("--model", metavar="NAME", help="only price books of this model")
    found.add_argument("--toml", action="store_true", help="print a file for `warmroute prices import`")
    further = actions.add_parser("add", help="add a price book of a model, valid from a given time")
    further.add_argument("model", metavar="MODEL", help="the name of a [[model]] of the file")
    further.add_argument("--name", required=True, metavar="NAME", help="name of the price book, as receipts show it")
    further.add_argument(
        "--from",
        dest="from_",
        type=_instant,
        metavar="TIME",
        help="start of validity, 2026-12-01T00:00:00Z (default: now)",
    )
    for key in RATES:
        option = f"--{key.replace('_', '-')}"
        further.add_argument(option, metavar="USD", required=key in RATES[:3], help="per million tokens")
    further.add_argument("--source", default="", metavar="TEXT", help="source of the prices")
    from_file = actions.add_parser("import", help="add all price books of a TOML file, or none")
    from_file.add_argument(
        "file", type=Path, metavar="FILE", help="file of [[price]] tables: a model, and keys of [[model.price]]"
    )
    for command in (found, further, from_file):
        command.add_argument("--config", type=Path, required=True, metavar="FILE", help="a proxy's TOML file")


@wants("a time like 2026-12-01T00:00:00Z")
def _instant(text: str) -> datetime:
    """A time with its offset, in whole seconds."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None or found.microsecond:
        raise ValueError(text)
    return found
