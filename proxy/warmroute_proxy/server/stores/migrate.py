"""`warmroute ledger migrate`: brings the schema of the database to the one that this proxy needs.

All revisions are applied in one transaction, and one migration runs at a time: one that is stopped half-way leaves the
schema as it was.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

import asyncpg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from warmroute_proxy.server.stores.database import MIGRATION_LOCK, REVISIONS, failure_text
from warmroute_proxy.server.stores.store_state import StoreError

CONNECT_S: Final = 10.0
LOCK_S: Final = 30
"""How long another migration, or a session that holds a table, is waited for."""

STATEMENT_S: Final = 600.0
"""The deadline of each statement: the server may hang."""

_FOLDER: Final = Path(__file__).parent / "migrations"


def migrate(dsn: str) -> None:
    """Apply what is missing. Raises: StoreError."""
    try:
        asyncio.run(_migrate(dsn))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError, TimeoutError, ValueError) as error:
        raise StoreError(f"the database cannot be migrated: {failure_text(error)}") from None


async def _migrate(dsn: str) -> None:
    async def connect() -> Any:
        return await asyncpg.connect(dsn, timeout=CONNECT_S, command_timeout=STATEMENT_S)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
    try:
        async with engine.begin() as connection:
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_S}s'"))
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection) -> None:
    _check_known(connection)
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _check_known(connection: Connection) -> None:
    """Raises: StoreError, where the schema is of a newer version: there is no way back."""
    if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar() is None:
        return
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if found is not None and found not in REVISIONS:
        raise StoreError(
            f"the database has schema {found}, and this version makes {REVISIONS[-1]}: there is no way back; update"
            " warmroute, or restore the backup of before the migration"
        )
