"""Fixtures: a proxy before one embedded engine, and two regions of one engine each; shared by a module's tests."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.subjects.processes import EngineProcess, ProxyProcess
from tests.subjects.stopped import Several
from warmroute_proxy.server.base.secrets import new_api_key


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path_factory.mktemp("engine"), "a0", "aggregated") as started:
        yield started


@pytest.fixture(scope="module")
def proxy(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with ProxyProcess(tmp_path_factory.mktemp("proxy") / "p", [engine.toml("east")]) as started:
        yield started


@contextmanager
def two_regions(
    folder: Path, *options: str, speed: float = 20.0, port: int = 0, of_east: Mapping[str, Any] = {}, **of_both: Any
) -> Iterator[tuple[ProxyProcess, ProxyProcess, list[EngineProcess]]]:
    """East, which knows west's address, then west, and the engine of each.

    `options`: of the engines; `port`: west's; `of_east` and `of_both`: arguments of the proxies.
    """
    engines = [EngineProcess(folder, f"{name}-a0", "aggregated", *options, speed=speed) for name in ("east", "west")]
    keys = (new_api_key()[0], new_api_key()[0])
    with Several(engines), ExitStack() as proxies:
        west = ProxyProcess(folder / "p", [engines[1].toml("west")], region="west", keys=keys, **of_both)
        proxies.callback(west.stop)
        peer = ("west", west.start(port).url)
        east = ProxyProcess(folder / "p", [engines[0].toml("east")], keys=keys, peer=peer, **of_both, **of_east)
        proxies.callback(east.stop)
        yield east.start().sees("west"), west, engines


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProxyProcess, ProxyProcess]]:
    """East, which clients reach, and west, where sessions live that say so."""
    with two_regions(tmp_path_factory.mktemp("regions")) as (east, west, _):
        yield east, west
