"""The command line of `warmroute prices`."""

import argparse
from datetime import datetime
from pathlib import Path

from warmroute.contract.receipt import RATES
from warmroute_cli.arguments import wants


def add(prices: argparse.ArgumentParser) -> None:
    """The options of `warmroute prices`."""
    actions = prices.add_subparsers(required=True, metavar="ACTION", dest="action")
    found = actions.add_parser("list", help="all books, and which is in effect")
    found.add_argument("--model", metavar="NAME", help="only those of this model")
    found.add_argument("--toml", action="store_true", help="as a file for `warmroute prices import`")
    further = actions.add_parser("add", help="a further book of a model, in effect from a time on")
    further.add_argument("model", metavar="MODEL", help="the name of a [[model]] of the file")
    further.add_argument("--name", required=True, metavar="NAME", help="of the book, as receipts show it")
    further.add_argument("--from", dest="from_", type=_instant, metavar="TIME", help="2026-12-01T00:00:00Z (now)")
    for key in RATES:
        option = f"--{key.replace('_', '-')}"
        further.add_argument(option, metavar="USD", required=key in RATES[:3], help="per million tokens")
    further.add_argument("--source", default="", metavar="TEXT", help="where the prices come from")
    from_file = actions.add_parser("import", help="the books of a TOML file, all or none of them")
    from_file.add_argument(
        "file", type=Path, metavar="FILE", help="with [[price]]: a model, and keys as [[model.price]]"
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
