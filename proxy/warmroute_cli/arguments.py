"""Reads option values, with errors that name the expected form, and adds options that several commands share."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from itertools import combinations
from pathlib import Path
from typing import Final, TypeVar

from warmroute.contract.money import Rates
from warmroute.contract.receipt import RATES
from warmroute.files.given import UnreadableFile, given_bytes

MAX_KEY_BYTES: Final = 4_096
DEFAULT_STATE_DIR: Final = Path(".warmroute")

T = TypeVar("T")
Reader = Callable[[str], T]
_THOUSANDS: Final = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


class CannotRun(Exception):
    """A command cannot do its work. Its message is shown to the user."""


def wants(words: str) -> Callable[[Reader[T]], Reader[T]]:
    """A decorator for readers of option values: argparse reports their `ValueError` as `TEXT is not WORDS`."""

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
    """Parse a command line. An unknown argument ends the program with the usage of its subcommand."""
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


def number(words: str, fits: Callable[[float], bool]) -> Reader[float]:
    """A reader of numbers that fit. Other values are reported as `TEXT is not WORDS`."""

    @wants(words)
    def read(text: str) -> float:
        value = float(text)
        if not fits(value):
            raise ValueError(text)
        return value

    return read


above_zero: Final = number("a number above 0", lambda value: 0 < value < float("inf"))


def integer(words: str, least: int, most: float = float("inf")) -> Reader[int]:
    """A reader of integers from `least` to `most`. Other values are reported as `TEXT is not WORDS`."""

    @wants(words)
    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return read


count: Final = integer("a whole number above 0", 1)
whole: Final = integer("a whole number", 0)
listed: Final = integer("a number from 1 to 200", 1, 200)
many: Final = integer("a number from 1 to 10000", 1, 10_000)


@wants("a port from 1024 to 65532, or 0")
def port(text: str) -> int:
    """The first of four consecutive ports; 0: the system assigns the ports."""
    value = int(text)
    if value and not 1024 <= value <= 65_532:
        raise ValueError(text)
    return value


@wants("a time like 30m, 12h or 90d (s, m, h, d, w)")
def duration(text: str) -> float:
    """Read a time. Returns seconds."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdecimal() and len(number) < 7) or unit not in _UNITS_S:
        raise ValueError(text)
    return int(number) * _UNITS_S[unit]


@wants("a share from 0% to 100%")
def share(text: str) -> float:
    value = float(text.removesuffix("%")) / 100
    if not text.endswith("%") or not 0 <= value <= 1:
        raise ValueError(text)
    return value


def add_admin(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="the proxy's TOML file (default: the fleet of `up`)"
    )
    command.add_argument("--admin-url", metavar="URL", help="address of the admin port, if the file names no port")


def add_state_dir(command: argparse.ArgumentParser) -> None:
    """Add the option for the state directory of a fleet that `warmroute up` started."""
    about = "folder of secret, key and logs (%(default)s)"
    command.add_argument("--state-dir", type=Path, default=DEFAULT_STATE_DIR, metavar="DIR", help=about)


def add_turns(command: argparse.ArgumentParser) -> None:
    """Add the options that select turns and the form of the output."""
    command.add_argument("--session", metavar="KEY", help="only the session with this key, hash, or name in a table")
    command.add_argument("--since", metavar="TIME", help="only turns since TIME: 30m, 7d, today, monday, 2026-11-23")
    command.add_argument("--json", action="store_true", help="print JSON")


def add_engines(engines: argparse.ArgumentParser) -> None:
    engines.add_argument("action", choices=("list", "drain", "undrain", "flip"))
    engines.add_argument("engine", nargs="?", metavar="ID", help="the engine to drain, undrain or flip")
    engines.add_argument(
        "--by", choices=("warmth",), help="list: by the KV tokens of sessions, the engine to drain first comes first"
    )
    engines.add_argument(
        "--wait", type=above_zero, metavar="SECONDS", help="drain, flip: wait until the engine runs no request"
    )
    engines.add_argument(
        "--graph-gb", type=above_zero, metavar="N", help="flip to decode: GPU memory of its CUDA graphs"
    )


def add_ask(ask: argparse.ArgumentParser) -> None:
    ask.add_argument("path", metavar="PATH", help="such as /admin/conditions, /admin/admission or /metrics")
    ask.add_argument("--only", default="", metavar="TEXT", help="print only the lines that have TEXT")


def add_ledger(ledger: argparse.ArgumentParser) -> None:
    actions = ledger.add_subparsers(dest="action", required=True, metavar="ACTION")
    migrate = actions.add_parser("migrate", help="create the tables of the database, or migrate them")
    reconcile = actions.add_parser("reconcile", help="compare receipts with the engines' own counters, by hour")
    restore = actions.add_parser("restore", help="put a dump of pg_dump back, as it was, in one transaction")
    restore.add_argument("dump", type=Path, metavar="DUMP", help="made by pg_dump --format=custom")
    for each in (migrate, restore):
        where = each.add_mutually_exclusive_group(required=True)
        where.add_argument("--config", type=Path, metavar="FILE", help="the proxy's TOML file")
        where.add_argument("--dsn-file", type=Path, metavar="FILE", help="the file with the address of the database")
    only = "do nothing, with status 2, if proxies of the present schema would stop"
    migrate.add_argument("--expand-only", action="store_true", help=only)
    reconcile.add_argument("--config", type=Path, required=True, metavar="FILE", help="the proxy's TOML file")
    ago = "start of the comparison: 30m, 24h, 7d ago"
    reconcile.add_argument("--since", type=duration, default=86_400.0, metavar="TIME", help=ago)
    within = "exit 1 if a larger share of an hour's tokens is unexplained: 1%%, 0.5%%"
    reconcile.add_argument("--tolerance", type=share, default=0.01, metavar="SHARE", help=within)
    reconcile.add_argument("--json", action="store_true", help="print JSON")


def add_fleet(command: argparse.ArgumentParser) -> None:
    """Add the options that say how a fleet is started."""
    command.add_argument("--speed", type=above_zero, default=1.0, help="virtual seconds per second (%(default)g)")
    command.add_argument(
        "--port", type=port, metavar="N", help="first of four ports (default: those of the last start); 0: free ones"
    )
    command.add_argument("--record", action="store_true", help="record each decision, for `warmroute replay`")
    command.add_argument("--obey-prompts", action="store_true", help="engines follow `obey: ...` lines of prompts")


def add_up(up: argparse.ArgumentParser) -> None:
    up.add_argument("--env", action="store_true", help="start nothing: print the shell exports of the running fleet")
    up.add_argument("--wait", action="store_true", help="the same, once a fleet runs; gives up after 2 minutes")


def add_usage(usage: argparse.ArgumentParser) -> None:
    add_turns(usage)
    by = ("session", "model", "harness", "agent", "tenant", "day", "hour")
    usage.add_argument("--by", choices=by, default="model", help="group of a row (%(default)s); tenant: for operators")
    usage.add_argument(
        "--watch", type=above_zero, nargs="?", const=2.0, metavar="SECONDS", help="repeat every SECONDS (%(const)g)"
    )
    usage.add_argument("--tenant", metavar="NAME", help="for operators: only turns of this tenant")


def add_receipts(receipts: argparse.ArgumentParser) -> None:
    actions = receipts.add_subparsers(required=True, metavar="ACTION", dest="action")
    newest = actions.add_parser("list", help="list the newest turns")
    add_turns(newest)
    newest.add_argument(
        "--limit", type=listed, default=20, metavar="N", help="number of turns, at most 200 (%(default)d)"
    )
    show = actions.add_parser("show", help="explain a turn: engine, reason, losses, price without a cache")
    about = "id of the receipt (header x-warmroute-receipt), or its first letters; without one: the newest"
    show.add_argument("receipt", nargs="?", default="", metavar="ID", help=about)
    show.add_argument("--json", action="store_true", help="print the receipt as JSON")
    add_admin(show)
    for command in (newest, show):
        add_state_dir(command)


def add_proxy(proxy: argparse.ArgumentParser) -> None:
    source = proxy.add_mutually_exclusive_group()
    source.add_argument("--config", metavar="FILE", help="the proxy's TOML file")
    source.add_argument("--schema", action="store_true", help="print the JSON Schema of the file, for editors")
    proxy.add_argument(
        "--processes", type=_processes, metavar="N", help="number of processes, or auto; overrides the file"
    )
    proxy.add_argument("--check", action="store_true", help="check the file, print its errors, and exit")
    proxy.add_argument(
        "--probe", action="store_true", help="with --check: also ask engines, stores, sources and other regions"
    )


def add_epp(epp: argparse.ArgumentParser) -> None:
    epp.add_argument("--config", metavar="FILE", required=True, help="the TOML file, the same as that of a proxy")
    epp.add_argument(
        "--processes", type=_processes, metavar="N", help="number of processes, or auto; overrides the file"
    )
    epp.add_argument("--check", action="store_true", help="check the file, print its errors, and exit")


def _processes(text: str) -> int | str:
    return text if text == "auto" else count(text)


def add_reload(reload: argparse.ArgumentParser) -> None:
    reload.add_argument("--dry-run", action="store_true", help="print the changes without making them")


class KeyFileError(ValueError):
    """A file that holds no API key."""


def key_in(file: Path) -> str:
    """The API key in a file. Raises: KeyFileError."""
    try:
        key = given_bytes(file, MAX_KEY_BYTES).decode("ascii").strip()
    except UnreadableFile as error:
        raise KeyFileError(str(error)) from None
    except UnicodeDecodeError:
        raise KeyFileError(f"{file} cannot be read: it is not text") from None
    if not key or not key.isprintable():
        raise KeyFileError(f"{file} holds no key")
    return key


def keys_in(files: Mapping[str, Path | None]) -> tuple[str, ...]:
    """The keys of several tenants, by the options that name their files; empty without a file. Raises: KeyFileError."""
    keys = {option: "" if file is None else key_in(file) for option, file in files.items()}
    for one, other in combinations(keys, 2):
        if keys[one] and keys[one] == keys[other]:
            raise KeyFileError(f"{one} and {other} hold the same key: isolation needs keys of different tenants")
    return tuple(keys.values())


def add_top(top: argparse.ArgumentParser) -> None:
    top.add_argument(
        "--every", type=above_zero, default=2.0, metavar="SECONDS", help="seconds between two readings (%(default)g)"
    )
    once = "print one screen after two readings, and exit; needs no terminal"
    top.add_argument("--once", action="store_true", help=once)
    add_admin(top)
    add_state_dir(top)


def add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("--plan", type=Path, metavar="FILE", help="also check the needs of this plan.toml")
    doctor.add_argument(
        "--node", type=int, default=0, metavar="N", help="number of this node in the plan (%(default)s)"
    )
    doctor.add_argument("--proxy", type=Path, metavar="CONFIG", help="check only this proxy config and its engines")
    doctor.add_argument(
        "--python", default="python3", metavar="FILE", help="Python interpreter with SGLang (%(default)s)"
    )
    doctor.add_argument("--disk", type=Path, metavar="DIR", help="measure the disk of this folder (writes 256 MiB)")
    doctor.add_argument(
        "--fabric", action="store_true", help="measure network cards and NVLink (ib_write_bw, all_reduce_perf)"
    )
    doctor.add_argument(
        "--peer", default="", metavar="HOST", help="fabric: write to this host, where ib_write_bw waits"
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")


BY: Final = ("session", "tenant", "model", "harness", "day", "kind")
FORMATS: Final = ("sglang", "vllm", "litellm", "otel", "trace")


def add_ladder(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "paths", nargs="*", type=Path, metavar="PATH",
        help="folders with a ledger, logs of other programs, or a proxy's record (default: the fleet of `up`)",
    )  # fmt: skip
    option("--format", choices=FORMATS, help="format of the files (default: by their first lines)")
    option("--config", type=Path, metavar="FILE", help="the ledger of the proxy with this TOML file")
    option("--by", choices=BY, help="also a line for each group")
    option("--since", metavar="TIME", help="only turns since TIME: 30m, 7d, today, monday, 2026-11-23")
    option(
        "--price", action="append", default=[], metavar="[MODEL=]INPUT:CACHED:OUTPUT",
        help="USD per million tokens, for logs without prices",
    )  # fmt: skip
    read_tokens = wants("a number of tokens, like 600k or 3M")(tokens)
    about = "for logs with prompts: tokens that the fleet's caches hold"
    option("--kv-tokens", type=read_tokens, metavar="N", help=about)
    option(
        "--what-if", action="append", default=[], metavar="NAME=VALUE,...",
        help="of a record or trace: replay it with another policy, workers, kv-tokens, max-running or price",
    )  # fmt: skip
    option(
        "--as-it-is", metavar="NAME=VALUE,...", help="assumptions of the first replay of a record or trace, likewise"
    )
    option(
        "--limit", type=count, default=20, metavar="N", help="groups that are shown, the most expensive (%(default)d)"
    )
    option("--json", action="store_true", help="print JSON")


def tokens(text: str) -> int:
    """Read a number of tokens, like 600k, 3M or 1G. Raises: ValueError."""
    factor = _THOUSANDS.get(text[-1:], 1)
    value = float(text[:-1] if factor > 1 else text) * factor
    if not 1 <= value < 1e15:
        raise ValueError(text)
    return int(value)


def add_prices(prices: argparse.ArgumentParser) -> None:
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
    """A time with a UTC offset, in whole seconds."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None or found.microsecond:
        raise ValueError(text)
    return found


def rates_of(text: str) -> Rates:
    """Read the rates in `INPUT:CACHED:OUTPUT`, USD per million tokens. Raises: ValueError."""
    parts = text.split(":")
    if len(parts) != 3:
        raise ValueError(f"{text!r} is not INPUT:CACHED:OUTPUT in USD per million tokens, like 0.60:0.10:3")
    input_, cached, output = parts
    return Rates.from_usd_per_mtok(input_, cached, output)
