"""Adds up the ledger rows of selected turns, in total or by a key, such as their model, and lists the newest turns.

SQLite computes the sums in C, without Python's lock, so the event loop goes on meanwhile. The sums are in a temporary
table, which SQLite moves to a file when it is large.

Limits: those of `all_rows`; of the groups of a sum, the `MAX_GROUPS` most expensive are returned.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from warmroute.contract.receipt import LOSS_CLASSES
from warmroute_proxy.core.accounting.entry_steps import CREDIT_SUFFIX, VOID_SUFFIX
from warmroute_proxy.server.ledger.all_rows import RowsPass, field
from warmroute_proxy.server.ledger.schema import TOTALS

By = Literal["session", "model", "tenant", "day", "hour", "harness", "agent"]

MAX_GROUPS: Final = 1_000
MAX_LISTED: Final = 200

SUMMED: Final = (*TOTALS, *LOSS_CLASSES)
"""What is added up: the totals, then the uncached tokens of each loss class (reason)."""

WARM: Final = ("warm_prompt_tokens", "warm_cached_tokens")
"""Tokens of turns of the kind `warm`, which only keep a prompt cached, so hit ratios leave them out. A database that
proxies share does not have these two sums.
"""

_SUMMED_HERE: Final = (*SUMMED, *WARM)

_RECEIPT: Final = f"{field('usage')[:-2]}.warmroute"  # begins an SQL call; a member's name and its end follow
_KEYS: Final[dict[By | None, str]] = {
    None: "''",
    "session": f"coalesce({field('session')}, '')",
    "model": field("model"),
    "tenant": field("tenant"),
    "day": f"date({field('settled_at')}, 'unixepoch')",
    "hour": f"strftime('%Y-%m-%dT%H', {field('settled_at')}, 'unixepoch')",
    "harness": f"coalesce({_RECEIPT}.harness'), '')",
    "agent": f"coalesce({_RECEIPT}.agent'), {_RECEIPT}.kind'), 'main')",
}
LISTED: Final = ("id", "settled_at", "model", "session", "region", "turn", "stream", "outcome", *TOTALS[1:])
OF_RECEIPT: Final = ("agent", "parent", "kind", "name", "harness", "loss")
_TURNS: Final = (
    f"sum(CASE WHEN {field('id')} LIKE '%{VOID_SUFFIX}' THEN -1"
    f" WHEN {field('id')} LIKE '%{CREDIT_SUFFIX}' THEN 0 ELSE 1 END)"
)
_VALUES: Final = (
    _TURNS,
    *(f"sum({field(name)})" for name in TOTALS[1:]),
    *(f"sum(coalesce({_RECEIPT}.loss.{name}'), 0))" for name in LOSS_CLASSES),
    *(
        f"sum(CASE {_RECEIPT}.kind') WHEN 'warm' THEN {field(name)} ELSE 0 END)"
        for name in ("prompt_tokens", "cached_tokens")
    ),
)
_TABLE: Final = f"CREATE TEMP TABLE part (key TEXT PRIMARY KEY, {', '.join(f'{name} INT' for name in _SUMMED_HERE)}"
_ADD: Final = f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in _SUMMED_HERE)}"
_ABOUT: Final = (
    f"min({field('settled_at')})",
    f"max({field('tenant')})",
    *(f"max(coalesce({_RECEIPT}.{name}'), ''))" for name in ("harness", "name")),
)
_ABOUT_TABLE: Final = ", began_at REAL, tenant TEXT, harness TEXT, name TEXT"
_ADD_ABOUT: Final = (
    ", began_at = min(began_at, excluded.began_at), harness = max(harness, excluded.harness),"
    " name = max(name, excluded.name)"
)


@dataclass(frozen=True, slots=True)
class Turns:
    """Selects turns by tenant, by the hash of their session, and by their end (unix seconds). None selects all."""

    tenant: str | None = None
    session: str | None = None
    since_s: float | None = None

    def condition(self) -> str:
        """The SQL condition on `record`; its parameters are `values`. It first searches the record's text for the
        session, which cuts its time to a quarter.
        """
        parts = ["1"]
        if self.session is not None:
            parts += ["instr(record, :session)", f"{field('session')} = :session"]
        if self.tenant is not None:
            parts.append(f"{field('tenant')} = :tenant")
        if self.since_s is not None:
            parts.append(f"{field('settled_at')} >= :since_s")
        return " AND ".join(parts)

    def values(self) -> dict[str, Any]:
        """The parameters of `condition`."""
        return {"tenant": self.tenant, "session": self.session, "since_s": self.since_s}


class About(msgspec.Struct):
    """What identifies a session: the end of its first turn (unix seconds), its tenant, its program, and its name."""

    began_at: float
    tenant: str
    harness: str
    name: str


class Group(msgspec.Struct):
    """The sums of the turns with one key. `sums`: by the names in `SUMMED` and `WARM`. `about`: only for sessions that
    are in this proxy's file.
    """

    key: str
    sums: dict[str, int]
    about: About | None = None


class Sums(msgspec.Struct):
    """The sums of selected turns. `all` has the names of `SUMMED`, or only those of `TOTALS` if losses were not read.
    `groups`: the `MAX_GROUPS` most expensive groups; empty if no key was given.

    `complete`: false if not all turns were read; then only those that ended after `counted_since` are counted.
    """

    all: dict[str, int]
    groups: list[Group] = []
    groups_left_out: int = 0
    complete: bool = True
    counted_since: float | None = None


class Listed(msgspec.Struct):
    """Some turns, newest first: the columns `LISTED` of their rows, and the members `OF_RECEIPT` of their receipts."""

    rows: list[dict[str, Any]]
    complete: bool


def add_up(
    state_dir: Path, database: Path, turns: Turns, by: By | None, stopped: Callable[[], bool], above: int = 0
) -> Sums:
    """Add up the rows that `turns` selects and whose number is larger than `above`. Raises: Closed, sqlite3.Error."""
    reading = RowsPass(state_dir, database, turns.since_s, stopped, above)
    try:
        db, values = reading.db, turns.values()
        of_session = by == "session"
        values_of, add = (*_VALUES, *_ABOUT) if of_session else _VALUES, _ADD + _ADD_ABOUT * of_session
        db.execute(f"{_TABLE}{_ABOUT_TABLE * of_session})")
        for records, where in reading.portions():
            db.execute(
                f"INSERT INTO part SELECT {_KEYS[by]}, {', '.join(values_of)} FROM ({records})"  # noqa: S608 - constants
                f" WHERE {turns.condition()} GROUP BY 1 {add}",
                values | where,
            )
        sums = ", ".join(f"coalesce(sum({name}), 0)" for name in _SUMMED_HERE)
        count, *total = db.execute(f"SELECT count(*), {sums} FROM part").fetchone()  # noqa: S608 - constants
        rows = db.execute("SELECT * FROM part ORDER BY price_nanousd DESC, key LIMIT ?", (MAX_GROUPS,)).fetchall()
    finally:
        reading.close()
    groups = [_group(row, of_session=of_session) for row in rows] if by is not None else []
    left_out = count - len(groups) if by is not None else 0
    return Sums(_named(total), groups, left_out, reading.complete, reading.began_s)


def newest(
    state_dir: Path, database: Path, turns: Turns, limit: int, stopped: Callable[[], bool], above: int = 0
) -> Listed:
    """List the newest turns, at most `limit`, that `turns` selects and whose row has a number larger than `above`.
    Raises: Closed, sqlite3.Error.
    """
    reading = RowsPass(state_dir, database, turns.since_s, stopped, above)
    columns = ", ".join([*map(field, LISTED), *(f"{_RECEIPT}.{name}')" for name in OF_RECEIPT)])
    rows: list[dict[str, Any]] = []
    try:
        for records, where in reading.portions():
            found = reading.db.execute(
                f"SELECT {columns} FROM ({records}) WHERE {turns.condition()} ORDER BY 2 DESC LIMIT :limit",  # noqa: S608
                turns.values() | where | {"limit": limit},
            )
            rows += [dict(zip((*LISTED, *OF_RECEIPT), row, strict=True)) for row in found]
            if len(rows) >= limit and where.keys() != {"not_folded"}:  # folded rows may be newer
                break
    finally:
        reading.close()
    for row in rows:
        row["stream"] = bool(row["stream"])
        row["loss"] = msgspec.json.decode(row["loss"] or "{}")
    rows.sort(key=lambda row: float(row["settled_at"]), reverse=True)
    return Listed(rows[:limit], reading.complete)


def _group(row: tuple[Any, ...], *, of_session: bool) -> Group:
    sums_to = 1 + len(_SUMMED_HERE)
    return Group(row[0], _named(list(row[1:sums_to])), About(*row[sums_to:]) if of_session else None)


def _named(values: list[int]) -> dict[str, int]:
    return dict(zip(_SUMMED_HERE, values, strict=True))
