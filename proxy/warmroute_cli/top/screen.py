"""Shows a reading as lines of a terminal. Pure: the time and the size are arguments.

Each line is plain text, at most as wide as the screen, with one style. Texts from servers are reduced to printable
ASCII, so that each character takes one column and none controls the terminal.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from warmroute.contract.money import usd
from warmroute.contract.receipt import TIERS
from warmroute_cli.top.rates import Rates
from warmroute_cli.top.reading import EngineRow, FleetReading, Loss

MAX_LOSSES: Final = 5
LEAST_COLUMNS: Final = 40
LEAST_LINES: Final = 12

SORTS: Final[dict[str, Callable[[EngineRow], Any]]] = {
    "engine": lambda row: (row.region, row.id),
    "run": lambda row: (-row.running, row.id),
    "prefill": lambda row: (-row.prefill_tokens, row.id),
    "kv": lambda row: (-(row.kv_share or 0.0), row.id),
    "wait": lambda row: (-row.queue_s, row.id),
}
"""Sort keys of engines by column. All columns but the name sort the largest value first."""

HELP: Final = (
    "q        quit",
    "left,    sort by the column before or after; the sorted one has a *",
    "right",
    "r        sort the other way round",
    "up,      scroll the engines, where there are more than fit",
    "down",
    "space    pause and resume",
    "?        this help, and back",
    "",
    "HIT and USD are those of the last minute, as far as this command has run.",
    "KV is the share of the pool that open requests hold, by the proxy's books;",
    "DEV, HOST and STORE use of each tier, as the engine reports.",
    "Losses are tokens that were cached once or could have been: receipts show ID.",
)


class Choice(NamedTuple):
    """What the user has chosen by keys: the state of the screen."""

    sort: str = "engine"
    backwards: bool = False
    offset: int = 0
    paused: bool = False
    helps: bool = False


class Line(NamedTuple):
    """A line. `style`: "", "bold", "dim", "head" or "bad"."""

    text: str
    style: str = ""


def pressed(choice: Choice, key: str, engines: int) -> Choice:
    """The choice after a key. `engines`: the number of engines."""
    names = list(SORTS)
    at = names.index(choice.sort)
    if key in {"left", "right"}:
        return choice._replace(sort=names[(at + (1 if key == "right" else -1)) % len(names)], offset=0)
    if key in {"up", "down"}:
        offset = choice.offset + (1 if key == "down" else -1)
        return choice._replace(offset=max(0, min(offset, engines - 1)))
    if key == "r":
        return choice._replace(backwards=not choice.backwards)
    if key == " ":
        return choice._replace(paused=not choice.paused)
    return choice._replace(helps=not choice.helps) if key in {"?", "h"} else choice


def lines(reading: FleetReading, rates: Rates, choice: Choice, clock: str, size: tuple[int, int]) -> list[Line]:
    """The lines of the screen, within `size`: columns and lines."""
    columns, height = size
    if columns < LEAST_COLUMNS or height < LEAST_LINES:
        return [Line(f"at least {LEAST_COLUMNS} x {LEAST_LINES}"[:columns], "bad")]
    made = [*_head(reading, rates, choice, clock, columns), Line("")]
    if choice.helps:
        made += [Line(text) for text in HELP]
    else:
        below = _losses(reading.losses[: min(MAX_LOSSES, height // 5)], reading.without_losses, columns)
        made += _engines(reading.engines, choice, height - len(made) - len(below) - 1)
        made += [Line(""), *below]
    if reading.problems:
        made = made[: height - 1]
        made += [Line(f"! {'; '.join(reading.problems)}", "bad")]
    return [Line(_shown(line.text)[:columns].rstrip(), line.style) for line in made[:height]]


def _head(reading: FleetReading, rates: Rates, choice: Choice, clock: str, columns: int) -> Iterator[Line]:
    left = f"warmroute top  {', '.join(reading.regions)}  {clock}{'  paused' if choice.paused else ''}"
    right = "q quit  ? help"
    yield Line(left.ljust(columns - len(right) - 1) + f" {right}", "bold")
    gained, all_of = rates.gained, reading.counters
    now, ever = _figure(gained.hit_ratio, ".1%"), _figure(all_of.hit_ratio, ".1%")
    turns = _figure(rates.a_minute(gained.turns), ",.1f")
    yield Line(f"hit ratio {now} now, {ever} since start   turns {turns}/min, {all_of.turns:,.0f} in all")
    saved = rates.a_minute(gained.list_nanousd - gained.price_nanousd)
    saved_ever = all_of.list_nanousd - all_of.price_nanousd
    price = _usd(rates.a_minute(gained.price_nanousd))
    yield Line(f"saved {_usd(saved)} USD/min, {_usd(saved_ever)} in all   paid {price} USD/min")
    running = sum(row.running for row in reading.engines)
    tiers = ", ".join(f"{name} {_share(getattr(all_of, name), all_of.cached_tokens)}" for name in TIERS)
    yield Line(f"queue {reading.queued} (oldest {reading.oldest_s:.1f} s)   running {running}   cached in {tiers}")


def _engines(engines: Sequence[EngineRow], choice: Choice, height: int) -> Iterator[Line]:
    rows = sorted(engines, key=SORTS[choice.sort], reverse=choice.backwards)
    fits = max(1, height - 1)
    offset = min(choice.offset, max(0, len(rows) - fits))
    heads = {name: name.upper() + ("*" if name == choice.sort else "") for name in SORTS}
    yield Line(
        f"{heads['engine']:<18} {'ROLE':<10} {'STATE':<8} {heads['run']:>4} {heads['prefill']:>8} {heads['kv']:>4}"
        f" {'DEV':>4} {'HOST':>4} {'STORE':>5} {heads['wait']:>6}",
        "head",
    )
    for row in rows[offset : offset + fits]:
        device, host, storage = [_figure(row.tiers.get(name), ".0%") for name in TIERS]
        text = (
            f"{row.id[:18]:<18} {row.role[:10]:<10} {row.state[:8]:<8} {row.running:>4} {row.prefill_tokens:>8,}"
            f" {_figure(row.kv_share, '.0%'):>4} {device:>4} {host:>4} {storage:>5} {row.queue_s:>5.1f}s"
        )
        yield Line(text, "" if row.state in {"up", "open"} else "bad")
    if len(rows) > fits:
        yield Line(f"{offset + 1} to {offset + min(fits, len(rows))} of {len(rows)}", "dim")


def _losses(losses: Sequence[Loss], unknown: Sequence[str], columns: int) -> list[Line]:
    most = max(4, min(26, columns - 53))
    made = [Line(f"{'NEWEST LOSSES':<16} {'TOKENS':>7} {'RECEIPT':<27} {'SESSION':<26} REGION", "head")]
    for loss in losses:
        session = f"{_cut(loss.session, most):<26} {loss.region}"
        made.append(Line(f"{loss.name[:16]:<16} {loss.tokens:>7,} {loss.receipt[:27]:<27} {session}"))
    if unknown:
        made.append(Line(f"not known of {', '.join(unknown)}: too busy to say", "dim"))
    elif not losses:
        made.append(Line("none among the newest turns", "dim"))
    return [Line(line.text[:columns], line.style) for line in made]


def _shown(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _share(amount: float, of: float) -> str:
    return f"{amount / of:.0%}" if of else "-"


def _usd(nano: float | None) -> str:
    """USD with six decimals, enough for a minute of an idle fleet."""
    return "-" if nano is None else f"{float(usd(round(nano))):,.6f}"
