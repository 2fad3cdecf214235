"""Readers of option values, each with an error message that names what it expects; and options of several commands."""

import argparse
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Final, TypeVar

DEFAULT_STATE_DIR: Final = Path(".warmroute")

T = TypeVar("T")
Reader = Callable[[str], T]
Run = Callable[[argparse.Namespace], int]
_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def wants(words: str) -> Callable[[Reader[T]], Reader[T]]:
    """A reader whose `ValueError`s become argparse's `TEXT is not WORDS`."""

    def made(read: Reader[T]) -> Reader[T]:
        @wraps(read)
        def checked(text: str) -> T:
            try:
                return read(text)
            except ValueError:
                raise argparse.ArgumentTypeError(f"{text!r} is not {words}") from None

        return checked

    return made


def read_strictly(parser: argparse.ArgumentParser, words: Sequence[str], found: argparse.Namespace) -> None:
    """Parse a command line. What is unknown ends the program with the usage of the subcommand that it was given to."""
    _name_parsers(parser)
    _, unknown = parser.parse_known_args(words, found)
    if unknown:
        found.parsed_by.error(f"unrecognized arguments: {' '.join(unknown)}")


def _name_parsers(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(parsed_by=parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in set(action.choices.values()):
                _name_parsers(each)


@wants("a number above 0")
def above_zero(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


@wants("a whole number above 0")
def count(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


@wants("a whole number")
def whole(text: str) -> int:
    """0 or more."""
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


@wants("a number from 1 to 200")
def listed(text: str) -> int:
    """How many are listed."""
    value = int(text)
    if not 1 <= value <= 200:
        raise ValueError(text)
    return value


@wants("a number from 1 to 10000")
def many(text: str) -> int:
    """How many are listed of what is in a database."""
    value = int(text)
    if not 1 <= value <= 10_000:
        raise ValueError(text)
    return value


@wants("a port from 1024 to 65532, or 0")
def port(text: str) -> int:
    """The first of four ports; 0: the system assigns them."""
    value = int(text)
    if value and not 1024 <= value <= 65_532:
        raise ValueError(text)
    return value


@wants("a time like 30m, 12h or 90d (s, m, h, d, w)")
def duration(text: str) -> float:
    """Seconds."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdecimal() and len(number) < 7) or unit not in _UNITS_S:
        raise ValueError(text)
    return int(number) * _UNITS_S[unit]


@wants("a share from 0% to 100%")
def share(text: str) -> float:
    """A part of 1."""
    value = float(text.removesuffix("%")) / 100
    if not text.endswith("%") or not 0 <= value <= 1:
        raise ValueError(text)
    return value


def add_admin(command: argparse.ArgumentParser) -> None:
    """Add the options that name a running proxy."""
    command.add_argument("--config", type=Path, metavar="FILE", help="the proxy's TOML file, if it is no `up` fleet")
    command.add_argument("--admin-url", metavar="URL", help="the proxy's admin listener, if the file names no port")


def add_state_dir(command: argparse.ArgumentParser) -> None:
    """Add the option for the folder of an `up` fleet."""
    about = "secret, key and logs (%(default)s)"
    command.add_argument("--state-dir", type=Path, default=DEFAULT_STATE_DIR, metavar="DIR", help=about)


def add_turns(command: argparse.ArgumentParser) -> None:
    """Add the options that say which turns, and in which form."""
    command.add_argument("--session", metavar="KEY", help="only the session with this key")
    command.add_argument("--since", metavar="TIME", help="only turns since then: 30m, 7d, today, monday, 2026-11-23")
    command.add_argument("--json", action="store_true", help="print the answer as JSON")


def add_engines(engines: argparse.ArgumentParser, run: Run) -> None:
    """Add the options of `engines`."""
    engines.add_argument("action", choices=("list", "drain", "undrain", "flip"))
    engines.add_argument("engine", nargs="?", metavar="ID", help="the engine to drain, undrain or flip")
    add_admin(engines)
    add_state_dir(engines)
    engines.add_argument(
        "--wait", type=above_zero, metavar="SECONDS", help="drain, flip: wait until no request runs there"
    )
    engines.add_argument("--graph-gb", type=above_zero, metavar="N", help="flip to decode: memory of its graphs")
    engines.set_defaults(run=run)


def add_ledger(ledger: argparse.ArgumentParser, run: Run) -> None:
    """Add the actions of `ledger`."""
    actions = ledger.add_subparsers(dest="action", required=True, metavar="ACTION")
    migrate = actions.add_parser("migrate", help="make the tables of the database, or bring them up to date")
    reconcile = actions.add_parser("reconcile", help="compare receipts with the engines' own counters, by hour")
    for each in (migrate, reconcile):
        each.add_argument("--config", type=Path, required=True, metavar="FILE", help="the proxy's TOML file")
        each.set_defaults(run=run)
    ago = "from so long ago on: 30m, 24h, 7d"
    reconcile.add_argument("--since", type=duration, default=86_400.0, metavar="TIME", help=ago)
    within = "status 1 where more of an hour's tokens is unexplained: 1%%, 0.5%%"
    reconcile.add_argument("--tolerance", type=share, default=0.01, metavar="SHARE", help=within)
    reconcile.add_argument("--json", action="store_true", help="print JSON")
