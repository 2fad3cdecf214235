"""The lab in both subjects, each started once. The real one is one server more than `tests/subjects/sglang.py` has."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.cache.lab import DEVICE_TOKENS, FLAGS, Lab, kv_events_config
from tests.subjects.embedded import EmbeddedEngine
from tests.subjects.sglang import CopiedServer

from warmroute_backend.sglang import StartError
from warmroute_lab.engine.model.hicache import DIRECTORY_VARIABLE


@pytest.fixture(scope="session", params=["embedded", "sglang"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An engine with small tiers."""
    folder = tmp_path_factory.mktemp("lab")
    lab = embedded(folder) if request.param == "embedded" else sglang(folder)
    yield lab
    lab.end()


def embedded(folder: Path) -> Lab:
    """The lab with an embedded engine."""
    engines: list[EmbeddedEngine] = []

    def start() -> str:
        events = kv_events_config("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
        flags = (*FLAGS, "--kv-events-config", events, "--kv-tokens", str(DEVICE_TOKENS), "--speed", "100")
        engines.append(EmbeddedEngine(flags, {DIRECTORY_VARIABLE: str(folder)}))
        return engines[-1].url

    return Lab("embedded", start, lambda: engines.pop().kill())


def sglang(folder: Path) -> Lab:
    """The lab with a real server."""
    server = CopiedServer("aggregated", folder, name="lab")
    events = kv_events_config(server.kv_events, server.kv_replay)
    flags = (*FLAGS, "--kv-events-config", events, "--max-total-tokens", str(DEVICE_TOKENS))

    def start() -> str:
        try:
            return server.restart(*flags).url
        except StartError:
            server.kill()
            raise

    return Lab("sglang", start, server.kill)
