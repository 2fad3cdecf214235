"""Reads changes of the directory (tenants and keys in the database) every `POLL_S`, and keeps it in `state_dir`.

One query returns the version of each kind of record. If a version has risen, the records with a higher version than the
known one are read. After the database was away, everything is read, since it may have been restored from a backup.

While the database is away, the last records stay valid for `max_age_s`, even across a restart of the proxy. A monotonic
clock measures the time since the database's last answer, so setting the wall clock does not change it. Only across a
restart is this time measured by the wall clock.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from warmroute_proxy.server.base.files import write_kept
from warmroute_proxy.server.stores.directory.records import UNREAD, Records
from warmroute_proxy.server.stores.store_state import Connection, StoreError
from warmroute_proxy.server.stores.store_thread import StoreBusy, StoreThread

POLL_S: Final = 0.75
READ_S: Final = 30.0
"""The deadline of one call of `look`. The first one reads everything."""

NOTE_S: Final = 30.0
"""How often the time of the database's last answer is written to a file."""

RECORDS_FILE: Final = "directory.json"
TIME_FILE: Final = "directory.time"

_LOG: Final = logging.getLogger(__name__)
_VERSIONS: Final = "SELECT kind, version FROM directory_version"
_decode: Final = msgspec.json.Decoder(dict[str, dict[str, str]]).decode


class _Found(NamedTuple):
    """The records of one kind that were read, as ids with their JSON. `whole`: all records, not only changed ones."""

    version: int
    rows: list[tuple[str, str | None]]
    whole: bool


class Directory:
    """Keeps this process's records equal to those of the database. Used in the event loop of requests."""

    def __init__(
        self,
        thread: StoreThread,
        kinds: Sequence[Records[Any]],
        folder: Path,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """`folder`: the folder for files of records; `clock`: monotonic seconds; `wall_clock`: unix seconds."""
        self._thread = thread
        self._kinds = kinds
        self._folder = folder
        self._clock = clock
        self._wall_clock = wall_clock
        self._read_s: float | None = None
        self._noted_s: float | None = None
        self._restore()

    @property
    def age_s(self) -> float:
        """The seconds since the database's last answer; infinite before the first answer."""
        return float("inf") if self._read_s is None else self._clock() - self._read_s

    async def watch(self) -> None:
        await keep_looking(self.look, "the keys and tenants")

    async def look(self) -> None:
        """Read the changed records. Raises: StoreError. After any error, the next call reads everything."""
        try:
            await self._look()
        except Exception:
            for records in self._kinds:
                records.version = UNREAD
            raise

    async def _look(self) -> None:
        known = {records.kind: records.version for records in self._kinds}

        async def read(connection: Connection) -> dict[str, _Found]:
            if dict(await connection.fetch(_VERSIONS)).items() >= known.items():
                return {}
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                versions = dict(await connection.fetch(_VERSIONS))
                return {
                    records.kind: await _read(connection, records, known[records.kind], versions.get(records.kind, 0))
                    for records in self._kinds
                    if versions.get(records.kind) != known[records.kind]
                }

        asked_s = self._clock()
        found = await self._thread.look(read, READ_S)
        self._read_s = asked_s
        for records in self._kinds:
            if (changed := found.get(records.kind)) is not None:
                records.apply(changed.version, changed.rows, whole=changed.whole)
        await self._keep(is_changed=bool(found))

    async def _keep(self, *, is_changed: bool) -> None:
        """Write the records and the time of the last answer to files. Without changes, write only the time, every
        `NOTE_S`.
        """
        if not is_changed and self._noted_s is not None and self._clock() - self._noted_s < NOTE_S:
            return
        self._noted_s = self._clock()
        texts = {records.kind: dict(records.texts) for records in self._kinds} if is_changed else None
        await asyncio.to_thread(self._write, texts, self._wall_clock() - self.age_s)

    def _write(self, texts: dict[str, dict[str, str]] | None, read_at_s: float) -> None:
        if texts is not None:
            write_kept(self._folder / RECORDS_FILE, texts)
        write_kept(self._folder / TIME_FILE, round(read_at_s, 3))

    def _restore(self) -> None:
        """Load the records that were kept on disk. They are read again as soon as the database answers, since they may
        come from another database.
        """
        file = self._folder / RECORDS_FILE
        try:
            texts = _decode(file.read_bytes())
            read_at_s = float((self._folder / TIME_FILE).read_text())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            _LOG.error("%s cannot be read: %s", file, error)
            return
        self._read_s = self._clock() - max(0.0, self._wall_clock() - read_at_s)
        for records in self._kinds:
            records.apply(UNREAD, texts.get(records.kind, {}).items(), whole=True)


async def keep_looking(look: Callable[[], Awaitable[None]], what: str) -> None:
    """Call `look` every `POLL_S` until cancelled. No error ends the loop, since a revoked key would then stay good."""
    logged = ""
    while True:
        try:
            await look()
            logged = ""
        except (StoreError, StoreBusy):  # not logged here: the stores report the state of the database
            logged = ""
        except Exception as error:
            name = type(error).__name__
            if name != logged:
                _LOG.error("%s of the database cannot be read, and are looked for further: %s", what, name)
            logged = name
        await asyncio.sleep(POLL_S)


async def _read(connection: Connection, records: Records[Any], known: int, version: int) -> _Found:
    """Read the records above version `known`; all records if the database has an older version or nothing is known."""
    after = known if version > known else UNREAD
    rows = [(id_, text) for id_, text in await connection.fetch(records.changed, after)]
    return _Found(version, rows, after == UNREAD)
