"""A PostgreSQL for all tests of this folder, and proxies that share a Redis."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import uvloop

from tests.subjects.processes import EngineProcess, ProxyProcess
from tests.subjects.stopped import Stopped
from tests.subjects.stores import Postgres, Redis
from warmroute_proxy.server.base.secrets import new_api_key
from warmroute_proxy.server.stores.migrate import migrate

from .operating import Operator

FAULTS: Final = (("kill", "start"), ("freeze", "thaw"))
"""How a server goes away, and how that ends."""


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that production runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


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


@pytest.fixture(scope="module")
def operator(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with Operator(tmp_path_factory.mktemp("operator"), postgres) as made:
        yield made


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A server that a test may kill."""
    with Redis() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that a test may kill."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path_factory.mktemp("engine"), "east-a0", "aggregated") as made:
        yield made


class SharingProxies(Stopped):
    """Proxies of one region that share an engine, keys and a Redis: one more for each `start`."""

    def __init__(self, folder: Path, engine: EngineProcess, redis: Redis) -> None:
        self.folder = folder
        self.engine = engine
        self.keys = (new_api_key()[0], new_api_key()[0])
        self.timeout_s = 5.0
        self.made: list[ProxyProcess] = []
        self._url_file = folder / "redis.url"
        self._url_file.touch(0o600)
        self._url_file.write_text(redis.url)

    def start(self, second: str = "", *, shared: bool = True, extra: str = "") -> ProxyProcess:
        """`second`: keys of the tenant of that name, and tables; `extra`: lines of [proxy]."""
        redis = f'\n[redis]\nurl_file = "{self._url_file}"\ntimeout_s = {self.timeout_s}'
        table = redis if shared else ""
        tables = [self.engine.toml("east")]
        folder = self.folder / f"p{len(self.made)}"
        proxy = ProxyProcess(folder, tables, keys=self.keys, second=f"{second}{table}", extra=extra)
        self.made.append(proxy.start())
        return proxy

    def stop(self) -> None:
        for proxy in self.made:
            proxy.stop()


@pytest.fixture
def proxies(engine: EngineProcess, redis: Redis, tmp_path: Path) -> Iterator[SharingProxies]:
    with SharingProxies(tmp_path, engine, redis) as made:
        yield made
