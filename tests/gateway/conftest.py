"""Two embedded engines, a picker and a real Envoy, shared by a module's tests."""

from collections.abc import Iterator

import pytest

from tests.machine import seconds
from tests.subjects.gateway import Envoy, Picker
from tests.subjects.processes import EngineProcess
from warmroute_cli.processes import stop_all


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    folder = tmp_path_factory.mktemp("engines")
    started = [EngineProcess(folder, f"a{number}", "aggregated") for number in range(2)]
    try:
        yield [engine.listening() for engine in started]
    finally:
        stop_all([engine.child for engine in started], seconds(5.0))


@pytest.fixture(scope="module")
def picker(engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Picker]:
    started = Picker(tmp_path_factory.mktemp("picker") / "p", [engine.toml("east") for engine in engines])
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def envoy(picker: Picker, engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    started = Envoy(tmp_path_factory.mktemp("envoy"), picker.url, [engine.url for engine in engines])
    try:
        yield started.listening()
    finally:
        started.stop()
