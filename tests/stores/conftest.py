"""A PostgreSQL for all tests of this folder."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.subjects.stores import Postgres, Redis
from warmroute_proxy.server.stores.migrate import migrate


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that production runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def dsn(postgres: Postgres) -> str:
    """A database with all tables, for one module."""
    made = postgres.new_database()
    migrate(made)
    return made


@pytest.fixture
def own_dsn(postgres: Postgres) -> str:
    """The same for one test."""
    made = postgres.new_database()
    migrate(made)
    return made


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A server that a test may kill."""
    server = Redis()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that a test may kill."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()


def ledger_table(folder: Path, dsn: str, more: str = "") -> str:
    """Tables of a config whose ledger is in a database; they follow [limits]."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "ledger.dsn"
    file.touch(0o600)
    file.write_text(dsn + "\n")
    return f'[ledger]\ndsn_file = "{file}"\n{more}'
