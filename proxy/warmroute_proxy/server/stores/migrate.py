"""`warmroute ledger migrate`: migrates the database to the schema that this version of the proxy needs.

One transaction applies all revisions, so a migration that is stopped half-way leaves the schema as it was. One
migration runs at a time.

Each revision names the oldest revision whose proxies can use its schema (`oldest_reader`), and the database stores that
name. A proxy of an older version goes on, and can start, if its own revision is not older than `oldest_reader`.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from warmroute_proxy.server.stores.database import MIGRATION_LOCK, REVISIONS, failure_text
from warmroute_proxy.server.stores.store_state import StoreError

CONNECT_S: Final = 10.0
LOCK_S: Final = 30
"""How long to wait for another migration, or for a database session that has locked a table."""

STATEMENT_S: Final = 600.0
"""The deadline of each statement, since the server may hang."""

_FOLDER: Final = Path(__file__).parent / "migrations"


def migrate(dsn: str, *, expand_only: bool = False) -> str:
    """Apply the missing revisions. Returns the revision that the database then has. Raises: StoreError.

    `expand_only`: raise an error if proxies that use the database's present schema could not go on.
    """
    try:
        return asyncio.run(_migrate(dsn, expand_only))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError, TimeoutError, ValueError) as error:
        raise StoreError(f"the database cannot be migrated: {failure_text(error)}") from None


async def _migrate(dsn: str, expand_only: bool) -> str:
    async def connect() -> Any:
        return await asyncpg.connect(dsn, timeout=CONNECT_S, command_timeout=STATEMENT_S)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
    try:
        async with engine.begin() as connection:
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_S}s'"))
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            return await connection.run_sync(_upgrade, expand_only)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection, expand_only: bool) -> str:
    before = _schema(connection)
    if before is not None and before not in REVISIONS:
        return _unknown(connection, before)
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    oldest: str = ScriptDirectory.from_config(config).get_revision("head").module.oldest_reader
    if expand_only and before is not None and before < oldest:
        raise StoreError(
            f"schema {REVISIONS[-1]} would stop the proxies of schema {before}: first upgrade them to a version with"
            f" schema {oldest} or later, or stop them and migrate without --expand-only"
        )
    if before != REVISIONS[-1]:
        command.upgrade(config, "head")
        connection.execute(text("DELETE FROM schema_readers"))
        connection.execute(text("INSERT INTO schema_readers VALUES (:oldest)"), {"oldest": oldest})
    return REVISIONS[-1]


def _schema(connection: Connection) -> str | None:
    """The revision of the database; None if it has no tables."""
    if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar() is None:
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _unknown(connection: Connection, found: str) -> str:
    """Return the newer revision `found`, if this version can use its schema. Raises: StoreError, if it cannot."""
    if connection.execute(text("SELECT to_regclass('schema_readers')")).scalar() is not None:
        oldest = connection.execute(text("SELECT oldest FROM schema_readers")).scalar()
        if oldest in REVISIONS:
            return found
    raise StoreError(
        f"the database has schema {found}, and this version makes {REVISIONS[-1]}: there is no way back; update"
        " warmroute, or restore the backup of before the migration"
    )
