"""Two embedded engines, a picker and a real Envoy, shared by a module's tests."""

from collections.abc import Iterator

import pytest

from tests.subjects.gateway import Envoy, Picker
from tests.subjects.processes import EngineProcess
from tests.subjects.stopped import Several


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    folder = tmp_path_factory.mktemp("engines")
    with Several([EngineProcess(folder, f"a{number}", "aggregated") for number in range(2)]) as started:
        yield [engine.listening() for engine in started]


@pytest.fixture(scope="module")
def picker(engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Picker]:
    with Picker(tmp_path_factory.mktemp("picker") / "p", [engine.toml("east") for engine in engines]) as started:
        yield started


@pytest.fixture(scope="module")
def envoy(picker: Picker, engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    with Envoy(tmp_path_factory.mktemp("envoy"), picker.url, [engine.url for engine in engines]) as started:
        yield started
