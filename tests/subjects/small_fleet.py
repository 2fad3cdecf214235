"""Fixtures: a proxy before one embedded engine, and two regions of one engine each; shared by a module's tests."""

from collections.abc import Iterator

import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess
from warmroute_cli.processes import stop_all
from warmroute_proxy.server.base.secrets import new_api_key


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path_factory.mktemp("engine"), "a0", "aggregated") as started:
        yield started


@pytest.fixture(scope="module")
def proxy(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with ProxyProcess(tmp_path_factory.mktemp("proxy") / "p", [engine.toml("east")]) as started:
        yield started


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProxyProcess, ProxyProcess]]:
    """East, which clients reach, and west, where sessions live that say so."""
    folder = tmp_path_factory.mktemp("regions")
    engines = [EngineProcess(folder, f"{name}-a0", "aggregated") for name in ("east", "west")]
    keys = (new_api_key()[0], new_api_key()[0])
    proxies: list[ProxyProcess] = []
    try:
        for engine in engines:
            engine.listening()
        west = ProxyProcess(folder / "p", [engines[1].toml("west")], region="west", keys=keys).start()
        proxies.append(west)
        east = ProxyProcess(folder / "p", [engines[0].toml("east")], region="east", keys=keys, peer=("west", west.url))
        proxies.append(east)
        yield east.start().sees("west"), west
    finally:
        for proxy in proxies:
            proxy.stop()
        stop_all([engine.child for engine in engines], seconds(5.0))
