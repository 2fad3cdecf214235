"""Makes a table for each day when the first row of the day comes, and drops it when it is too old.

No table is dropped because a clock jumps: the age is measured by the proxy's or the database's clock, whichever shows
the earlier time, and a jump ahead is not believed at once (`core.base.steady_time`).

A table is made beside its parent and then attached, so no reader or writer waits. Dropping a table waits for its
readers, at most `LOCK_S`, and is tried again an hour later.
"""

import time
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Final

from warmroute_proxy.core.base.steady_time import SteadyTime, newest_steady
from warmroute_proxy.server.stores.store_state import Connection

PARENTS: Final = ("turn", "usage_session")
LOCK_S: Final = 2
DAYS_LOCK: Final = 7_283_002
DROP_EVERY_S: Final = 3_600.0
_OF_DAY: Final = """
SELECT child.relname FROM pg_inherits
    JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
    WHERE parent.relname = $1 AND pg_table_is_visible(parent.oid)
"""


def day_of(unix_s: float) -> date:
    return datetime.fromtimestamp(unix_s, UTC).date()


class Partitions:
    """Makes and drops the tables of days, and knows which days have tables."""

    def __init__(self, keep_days: int | None) -> None:
        """`keep_days`: for how many days rows are kept; None means for ever."""
        self._keep_days = keep_days
        self._known: set[date] = set()
        self._drop_at_s = 0.0
        self._steady: SteadyTime | None = None

    async def make(self, connection: Connection, days: Iterable[date]) -> None:
        for day in sorted(set(days) - self._known):
            async with connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({DAYS_LOCK})")
                for parent in PARENTS:
                    await _make(connection, parent, day)
            self._known.add(day)

    def forget(self) -> None:
        """Forget which days have tables, so that `make` looks again."""
        self._known.clear()

    async def drop_old(self, connection: Connection, now_s: float) -> list[str]:
        """Drop the tables of days that are too old, at most once an hour. Returns the names of the dropped tables."""
        if self._keep_days is None or time.monotonic() < self._drop_at_s:
            return []
        self._drop_at_s = time.monotonic() + DROP_EVERY_S
        names = {parent: [name for (name,) in await connection.fetch(_OF_DAY, parent)] for parent in PARENTS}
        database_s = float(await connection.fetchval("SELECT extract(epoch FROM now())"))
        if self._steady is None:
            self._steady = SteadyTime(newest_steady(_days_of(names, day_of(now_s))))
        steady_s = self._steady.read(min(now_s, database_s), time.monotonic())
        oldest = day_of(steady_s) - timedelta(days=self._keep_days)
        dropped = []
        for parent in PARENTS:
            for name in names[parent]:
                if name < _name(parent, oldest):
                    async with connection.transaction():
                        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
                        await connection.execute(f"DROP TABLE IF EXISTS {name}")
                    dropped.append(name)
        self._known = {day for day in self._known if day >= oldest}
        return dropped


def _days_of(names: dict[str, list[str]], today: date) -> list[float]:
    """The starts of days with tables, oldest first. Leaves out `today`: a wrong clock may have caused its table."""
    texts = {name.rpartition("_")[2] for each in names.values() for name in each} - {f"{today:%Y%m%d}"}
    return sorted(datetime.strptime(text, "%Y%m%d").replace(tzinfo=UTC).timestamp() for text in texts)


async def _make(connection: Connection, parent: str, day: date) -> None:
    name = _name(parent, day)
    if await connection.fetchval("SELECT to_regclass($1)", name) is None:
        await connection.execute(f"CREATE TABLE {name} (LIKE {parent} INCLUDING DEFAULTS)")
        bounds = f"FROM ('{day}') TO ('{day + timedelta(days=1)}')"
        await connection.execute(f"ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES {bounds}")


def _name(parent: str, day: date) -> str:
    return f"{parent}_{day:%Y%m%d}"
