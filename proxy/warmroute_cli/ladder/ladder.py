"""Runs `warmroute ladder`. Exit status 0: shown, 1: the steps do not add up to the ledger, 2: not read."""

import json
import sqlite3
import sys
import textwrap
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmroute.contract.money import usd
from warmroute.files.printable import number_of, printable
from warmroute_cli.api import ApiError
from warmroute_cli.asking import since_parameter
from warmroute_cli.installed import missing
from warmroute_cli.ladder.logs import TRACE, LogTurns, format_of_all, log_source, rates_by_model
from warmroute_cli.own_rows import folders_in, rows_of
from warmroute_cli.past import UP
from warmroute_cli.running import find_named
from warmroute_cli.tables import Column, Row, fitted, width
from warmroute_proxy.ladder.of_entries import turn_of
from warmroute_proxy.ladder.steps import PROMPT, STEPS, wins
from warmroute_proxy.ladder.sums import Ladder, LadderSums
from warmroute_proxy.ladder.turn import LadderTurn
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.control.usage_question import read_question

if TYPE_CHECKING:
    from warmroute_cli.ladder.what_if import Difference


UNKNOWN: Final = "-"
NO_REMEDY: Final = "nothing to recover"
_STEPS: Final = (
    Column("step"), Column("cached tokens", is_number=True), Column("of prompt", is_number=True),
    Column("lost", is_number=True), Column("price USD", is_number=True), Column("lost USD", is_number=True),
)  # fmt: skip
_REMEDIES: Final = (
    Column("would win back"), Column("tokens", is_number=True), Column("USD", is_number=True),
)  # fmt: skip
_SHARES: Final = ("reachable", "kept", "chosen", "billed")


def ladder_table(ladder: Ladder, most: int, limit: int) -> list[str]:
    """The lines of the table, at most `most` characters wide, with at most `limit` groups."""
    lines = [*_steps(ladder.all, most), "", *_remedies(ladder.all, most)]
    if ladder.by is not None and ladder.groups:
        lines += ["", *_groups(ladder, most, limit)]
    return lines


def what_if_table(first: Ladder, others: "Sequence[Difference]", most: int) -> list[str]:
    """A line for each case but `first`: delivered tokens, price, and the causes that add up to the price difference."""
    columns = [
        Column("what if"), Column("delivered", is_number=True), Column("price USD", is_number=True),
        Column("more USD", is_number=True),
    ]  # fmt: skip
    rows = []
    for each in others:
        notes = [f"{cause} {tokens:+,} ({_signed(nanousd)} USD)" for cause, (tokens, nanousd) in each.causes.items()]
        share = _share(each.delivered, first.all)
        price = usd(each.price_nanousd) if first.all.is_rated or each.price_nanousd else UNKNOWN
        rows.append(
            Row([each.name, share, price, _signed(each.more_nanousd) if first.all.is_rated else UNKNOWN], notes)
        )
    return fitted(columns, rows, "because", most)


def _signed(nanousd: int) -> str:
    return f"{'+' if nanousd > 0 else ''}{usd(nanousd)}"


def _steps(sums: LadderSums, most: int) -> list[str]:
    levels, rows = sums.levels(), []
    before_tokens, before_nanousd = levels[PROMPT]
    for step in (PROMPT, *STEPS):
        tokens, nanousd = levels[step]
        is_billed = step == STEPS[-1] and sums.billed_rows > 0
        price = usd(nanousd) if sums.is_rated or is_billed else UNKNOWN
        lost_usd = usd(nanousd - before_nanousd) if sums.is_rated else UNKNOWN
        if step == PROMPT:
            rows.append(Row([step, f"{tokens:,}", _share(tokens, sums), "", price, ""]))
        elif step in sums.known:
            counts = [f"{tokens:,}", _share(tokens, sums), f"{before_tokens - tokens:,}"]
            rows.append(Row([step, *counts, price, lost_usd], _reasons(sums, step)))
        else:
            rows.append(Row([step, *[UNKNOWN] * 3, price if is_billed else UNKNOWN, UNKNOWN]))
        before_tokens, before_nanousd = tokens, nanousd
    return fitted(_STEPS, rows, "why", most)


def _reasons(sums: LadderSums, step: str) -> list[str]:
    """Why a step is below the step before it. If not all turns know the step, the first text says how many do."""
    rows = sums.known_rows[step]
    coverage = [] if rows == sums.rows else [f"known of {rows:,} of {sums.rows:,} turns"]
    return coverage + [f"{cause} {tokens:,}" for cause, (tokens, _) in sums.causes(step).items() if tokens]


def _remedies(sums: LadderSums, most: int) -> list[str]:
    rows = [
        Row(
            [win.remedy.name, f"{win.tokens:,}", usd(win.nanousd) if sums.is_rated else UNKNOWN], win.remedy.how.split()
        )
        for win in wins(sums.by_cause())
    ]
    return fitted(_REMEDIES, rows, "how", most, "") if rows else textwrap.wrap(NO_REMEDY, most)


def _groups(ladder: Ladder, most: int, limit: int) -> list[str]:
    shown = [step for step in _SHARES if step in ladder.all.known]
    columns = [
        Column(ladder.by or ""), Column("turns", is_number=True), Column("prompt", is_number=True),
        *(Column(step, is_number=True, optional=step in {"kept", "chosen"}) for step in shown),
        Column("USD", is_number=True), Column("lost USD", is_number=True),
    ]  # fmt: skip
    groups = ladder.dearest()
    rows = [_group(key, sums, shown) for key, sums in groups[:limit]]
    lines = fitted(columns, rows, "", most)
    if len(groups) > limit:
        more = f"{len(groups) - limit} more groups, each cheaper than these: --limit or --json shows them"
        lines += textwrap.wrap(more, most)
    return lines


def _group(key: str, sums: LadderSums, shown: Sequence[str]) -> Row:
    levels = sums.levels()
    lost = sums.price_nanousd - levels["reachable"][1]
    shares = [_share(levels[step][0], sums) if step in sums.known else UNKNOWN for step in shown]
    billed = sums.billed_rows > 0
    money = [usd(sums.price_nanousd) if billed else UNKNOWN]
    money.append(usd(lost) if billed and sums.is_rated and "reachable" in sums.known else UNKNOWN)
    return Row([key or "(none)", f"{sums.turns:,}", f"{sums.prompt_tokens:,}", *shares, *money])


def _share(tokens: int, sums: LadderSums) -> str:
    return f"{tokens / sums.prompt_tokens:.1%}" if sums.prompt_tokens else UNKNOWN


def source_of(arguments: Namespace) -> LogTurns:
    """The turns that the command line selects.

    Raises: ApiError, ValueError, sqlite3.Error, OSError, ConfigError, Refusal.
    """
    since_s = _since(arguments.since)
    if arguments.config is not None and arguments.paths:
        raise ValueError("--config names a ledger itself: leave out it or the paths")
    if arguments.paths and not all(path.is_dir() for path in arguments.paths):
        if arguments.since is not None:
            raise ValueError("--since is for ledgers: leave it out with logs")
        return log_source(arguments)
    if arguments.price or arguments.kv_tokens is not None or arguments.format is not None:
        raise ValueError("--price, --kv-tokens and --format are for logs: a ledger has its own rates and losses")
    folders = _folders(arguments)
    about = {"kind": "ledger", "paths": [str(folder) for folder in folders], "since": since_s}
    return LogTurns(about, _of_ledgers(folders, since_s), [])


def _folders(arguments: Namespace) -> list[Path]:
    if arguments.config is not None:
        return folders_in(load_config(arguments.config).proxy.state_dir)
    if arguments.paths:
        found = [folder for path in arguments.paths for folder in folders_in(path)]
        return list({folder.resolve(): folder for folder in reversed(found)}.values())[::-1]
    here = arguments.state_dir / UP
    fleet = None if here.is_dir() else find_named(arguments.state_dir)
    return folders_in(here if fleet is None else fleet.state_dir / UP)


def _of_ledgers(folders: list[Path], since_s: float | None) -> Iterator[LadderTurn]:
    for folder in folders:
        for entry in rows_of(folder, since_s):
            if since_s is None or entry.settled_at >= since_s:
                yield turn_of(entry)


def _since(text: str | None) -> float | None:
    if text is None:
        return None
    now = datetime.now(UTC).astimezone()
    return read_question([("since", since_parameter(text, now))], ("since",), now.timestamp()).since_s


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
    from warmroute_lab.replay.loaders import load_all

    prices = rates_by_model(arguments.price)
    if prices.keys() - {""}:
        raise ValueError("--price: all turns of a record or trace have the same rates: leave out MODEL=")
    rates = prices.get("")
    trace = load_all(arguments.paths)
    case = what_if.first_case(arguments.paths, arguments.as_it_is, arguments.kv_tokens)
    cases = [what_if.changed(case, text, "--what-if") for text in arguments.what_if]
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
    title = f"{number_of(sums.turns, 'turn')} of {about['kind']}"
    if not _is_billed(ladder, about) and not sums.billed_rows:
        return f"{title}, which does not state the billed tokens"
    if not sums.is_billed:
        title = f"{title}, of which {sums.billed_rows:,} state the billed tokens"
    if not sums.is_rated:
        return f"{title}: {usd(sums.billed_nanousd)} USD billed"
    return f"{title}: {usd(sums.billed_nanousd)} USD billed, {usd(sums.saved_nanousd)} USD saved"


def _is_billed(ladder: Ladder, about: Mapping[str, object]) -> bool:
    """Whether the billed amounts are known: always for a ledger, never for a log without turns."""
    return about["kind"] == "ledger" or (ladder.all.rows > 0 and ladder.all.is_billed)
