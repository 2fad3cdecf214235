"""The tables of `ledger.sqlite`, and the migration of files that earlier versions wrote.

    turn_record  the record of each ended turn, as it was in the journal: an array, in the order of `Entry`'s fields;
                 and the start of the process that served it (0 if an earlier version wrote the row)
    turn         a view for queries: the fields of an entry, and the name of its price book; queries should name columns
    total        the sums of each tenant's turns
    open_turn    records of turns that had not ended when they were folded (moved here from the journal)
    fold         the position up to which each process has folded its journal, and its start (0 if it has ended)

Rows are inserted in the order in which turns end, and ids ascend roughly, so a commit writes few pages. With random
ids, it would write a page of the index for each row.
"""

import contextlib
import sqlite3
import time
from dataclasses import dataclass, fields
from operator import add, attrgetter
from pathlib import Path
from typing import Final

import msgspec

from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import COLUMNS, Entry

SCHEMA_VERSION: Final = 6
PAGE_BYTES: Final = 16_384  # for new files; a page holds 18 rows

_FIELDS: Final = Entry.__struct_fields__
FIELD_AT: Final = {name: at for at, name in enumerate(_FIELDS)}
"""The index of each field in a record."""

_READ: Final = ", ".join(f"json_extract(record, '$[{FIELD_AT[name]}]') AS {name}" for name in COLUMNS)
_BOOK: Final = f"json_extract(record, '$[{FIELD_AT['rates']}][{Rates._fields.index('price_book')}]') AS price_book"
_VIEW: Final = f"""
CREATE VIEW turn AS SELECT rowid AS number, {_READ}, {_BOOK} FROM turn_record;
"""  # noqa: S608 - constants
_TURNS: Final = f"""
CREATE TABLE turn_record (id TEXT PRIMARY KEY, record TEXT NOT NULL, start INT NOT NULL DEFAULT 0);
{_VIEW}"""
_TOTAL: Final = """
CREATE TABLE total (
    tenant TEXT PRIMARY KEY, turns INT NOT NULL, prompt_tokens INT NOT NULL, cached_tokens INT NOT NULL,
    completion_tokens INT NOT NULL, list_nanousd INT NOT NULL, price_nanousd INT NOT NULL
);
"""
_FOLD: Final = """
CREATE TABLE fold (
    process INT PRIMARY KEY, sequence INT NOT NULL, offset INT NOT NULL, skipped INT NOT NULL,
    start INT NOT NULL DEFAULT 0
);
"""
_OPEN: Final = """
CREATE TABLE open_turn (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, record TEXT NOT NULL, process INT NOT NULL DEFAULT 0
);
"""
_FROM_1: Final = f"""
ALTER TABLE open_turn ADD COLUMN process INT NOT NULL DEFAULT 0;
ALTER TABLE fold RENAME TO fold_1;
{_FOLD}
INSERT INTO fold SELECT 0, sequence, offset, skipped, 0 FROM fold_1;
DROP TABLE fold_1;
"""  # noqa: S608 - constants
_JSON: Final = frozenset({"rids", "workers", "usage"})
_COPIED: Final = ", ".join(f"'{name}', {f'json({name})' if name in _JSON else name}" for name in COLUMNS)
_FROM_2: Final = f"""
ALTER TABLE turn RENAME TO turn_2;
{_TOTAL}
INSERT INTO total SELECT tenant, count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
    sum(list_nanousd), sum(price_nanousd) FROM turn_2 GROUP BY tenant;
CREATE TABLE turn_3 AS SELECT id, json_object({_COPIED}) AS record FROM turn_2 ORDER BY rowid;
DROP TABLE turn_2;
"""  # noqa: S608 - constants
_FROM_3: Final = """
DROP VIEW turn;
ALTER TABLE turn_record RENAME TO turn_3;
"""
_ARRAYS: Final = f"""
{_TURNS}
INSERT INTO turn_record SELECT id, as_array(record), 0 FROM turn_3 ORDER BY rowid;
DROP TABLE turn_3;
"""  # noqa: S608 - constants
_FOLD_START: Final = "ALTER TABLE fold ADD COLUMN start INT NOT NULL DEFAULT 0;"
_STARTS: Final = f"ALTER TABLE turn_record ADD COLUMN start INT NOT NULL DEFAULT 0; {_FOLD_START}"
_STEPS: Final = {
    0: _TURNS + _TOTAL + _OPEN + _FOLD,
    1: _FROM_1 + _FROM_2 + _ARRAYS,
    2: _FROM_2 + _ARRAYS + _FOLD_START,
    3: _FROM_3 + _ARRAYS + _FOLD_START,
    4: f"DROP VIEW turn;{_VIEW}{_STARTS}",
    5: _STARTS,
}
"""The statements that migrate a file to `SCHEMA_VERSION`, by the file's version."""

BUSY_S: Final = 10.0
RETRY_S: Final = 0.01

_NULL: Final = msgspec.Raw(b"null")
_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(slots=True)
class TenantTotals:
    """The sums of one tenant. The fields are the columns of the table `total`, in the table's order."""

    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    list_nanousd: int = 0
    price_nanousd: int = 0

    def values(self) -> tuple[int, ...]:
        """The sums in the order of `TOTALS`."""
        return _VALUES(self)

    def plus(self, other: "TenantTotals") -> "TenantTotals":
        return TenantTotals(*map(add, self.values(), other.values()))


TOTALS: Final = tuple(field.name for field in fields(TenantTotals))
_VALUES: Final = attrgetter(*TOTALS)

ADD_TO_TOTAL: Final = f"""INSERT INTO total VALUES (?{", ?" * len(TOTALS)})
    ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in TOTALS)}"""  # noqa: S608 - constants
"""The statement that adds sums to a tenant's row in `total`. Its parameters are the tenant's name, then `values`."""


class LedgerError(RuntimeError):
    """The ledger cannot be used: its folder is in use, unreadable or of another version."""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode. Only one thread at a time may use it."""
    if not read_only:
        with contextlib.suppress(OSError):  # SQLite raises the error
            path.touch(mode=0o600)  # private; SQLite creates its other files with the same mode
    uri = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        if not read_only:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # affects only new files: they can shrink
            _use_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. Tries again while another process switches the file, for which SQLite itself does not wait."""
    end_s = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end_s:
                raise
        time.sleep(RETRY_S)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file, or migrate an earlier version. Raises: LedgerError, sqlite3.Error."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == SCHEMA_VERSION:
        return
    if version not in _STEPS:
        text = f"{path} has schema version {version}, this proxy needs {SCHEMA_VERSION}"
        if version > SCHEMA_VERSION:
            text += ": a newer warmroute has written it; update this one, or give it another state_dir"
        raise LedgerError(text)
    connection.create_function("as_array", 1, _as_array, deterministic=True)
    connection.executescript(f"BEGIN; {_STEPS[version]} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")


def _as_array(record: str) -> str:
    """Turn a record of version 3, which is an object, into an array. The JSON text of its values is not changed."""
    named = _decode(record)
    return msgspec.json.encode([named.get(name, _NULL) for name in _FIELDS]).decode()
