"""`warmroute usage`: shows what turns cost, how much was cached, and why the rest was not."""

import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console

from warmroute.contract.money import usd
from warmroute_cli.api import Api, ApiError
from warmroute_cli.asking import OperatorsApi, admin_apis, since_parameter, tenants_api
from warmroute_cli.names import SHORT_HASH, UNNAMED, agent_names, newest, question_of, session_names
from warmroute_cli.tables import WIDTH_OF_PAGES, Column, Row, fitted, width

if TYPE_CHECKING:
    from warmroute_cli.past import PastFleet

CLEARED = "\x1b[H\x1b[2J\x1b[3J"
COLUMNS = (
    Column("turns", is_number=True), Column("prompt", is_number=True), Column("cached", is_number=True),
    Column("hit", is_number=True), Column("answer", is_number=True), Column("cost USD", is_number=True),
    Column("saved USD", is_number=True),
)  # fmt: skip
LESS = frozenset({"answer", "saved USD"})
"""Columns that a table of sessions leaves out first, since the sessions' names are long."""


def run(arguments: Namespace) -> int:
    """Print usage. Exit status 0: done, 1: some turns are missing, 2: not done."""
    try:
        while arguments.watch is not None:
            text = _text(arguments, _ask(arguments))
            print(f"{CLEARED if sys.stdout.isatty() else ''}{text}", flush=True)
            time.sleep(arguments.watch)
        found = _ask(arguments)
    except KeyboardInterrupt:
        return 0
    print(_text(arguments, found))
    return 0 if noted(found) else 1


def console() -> Console:
    """The terminal, or a page of fixed width if the output is not a terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=WIDTH_OF_PAGES)


def print_rows(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose cells are never cut or wrapped."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def since_of(arguments: Namespace) -> dict[str, str]:
    """The query parameter for `--since`; empty without that option."""
    if not arguments.since:
        return {}
    return {"since": since_parameter(arguments.since, datetime.now().astimezone())}


def noted(found: Mapping[str, Any]) -> bool:
    """Whether an answer is complete. Missing parts are reported on stderr."""
    for region, state in found["regions"].items():
        if state != "counted":
            print(f"warmroute: region {region}: {state}; its turns are missing", file=sys.stderr)
    since = found.get("counted_since")
    if since is not None:
        print(f"warmroute: too many turns: only those since {when(since)} are counted; use --since", file=sys.stderr)
    if left_out := found.get("groups_left_out"):
        print(f"warmroute: the total counts {left_out} more groups, each cheaper than these", file=sys.stderr)
    complete: bool = found["complete"]
    return complete


def when(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def losses_listed(losses: Mapping[str, int]) -> list[str]:
    return [f"{name} {tokens:,}" for name, tokens in sorted(losses.items(), key=lambda loss: -loss[1])]


def _ask(arguments: Namespace) -> dict[str, Any]:
    parameters = {"by": arguments.by} | since_of(arguments)
    api, session = _api(arguments), ""
    if arguments.session:
        of_session, session = question_of(api, arguments.session)
        parameters |= of_session
    return dict(api.ask("/usage", parameters, session=session))


def _api(arguments: Namespace) -> "Api | OperatorsApi | PastFleet":
    if arguments.by == "tenant" or arguments.tenant or arguments.config is not None:
        return OperatorsApi(next(iter(admin_apis(arguments).values())), arguments.tenant)
    return tenants_api(arguments)


def _text(arguments: Namespace, found: Mapping[str, Any]) -> str:
    if arguments.json:
        return json.dumps(found, indent=2)
    names = _names(arguments, found["by"]) if found["by"] in {"session", "agent"} and found["groups"] else {}
    return "\n".join(usage_table(found, width(), names))


def _names(arguments: Namespace, by: str) -> dict[str, str]:
    """Names from the newest turns: of sessions by hash, or of agents by id."""
    try:
        turns = newest(_api(arguments), since_of(arguments))
    except ApiError:
        return {}
    if by == "session":
        return session_names(turns)
    agents = zip((turn.get("agent") or "" for turn in turns), agent_names(turns), strict=True)
    return {agent: f"{name} ({agent[:SHORT_HASH]})" for agent, name in agents if name != agent}


def usage_table(found: Mapping[str, Any], most: int, names: Mapping[str, str] | None = None) -> list[str]:
    """The lines of a usage table, at most `most` characters wide. `names`: key of a group -> its readable name."""
    known = names or {}
    by_session = found["by"] == "session"
    rows = [
        _row(known.get(group["key"]) or _key(group["key"], by_session=by_session), group) for group in found["groups"]
    ]
    columns = [each._replace(optional=by_session and each.name in LESS) for each in COLUMNS]
    return fitted([Column(found["by"]), *columns], [*rows, _row("all", found)], "not cached", most)


def _key(key: str, *, by_session: bool) -> str:
    """Label a group without a name. A session whose turns are not among the newest ones shows its whole hash."""
    if not key:
        return "(none)"
    return f"{UNNAMED} ({key})" if by_session else key


def _row(key: str, sums: Mapping[str, Any]) -> Row:
    hit = sums["hit_ratio"]
    counts = [f"{sums[name]:,}" for name in ("turns", "prompt_tokens", "cached_tokens")]
    money = [usd(sums[name]) for name in ("price_nanousd", "saved_nanousd")]
    cells = [key, *counts, "-" if hit is None else f"{hit:.1%}", f"{sums['completion_tokens']:,}", *money]
    return Row(cells, losses_listed(sums["losses"] or {}))
