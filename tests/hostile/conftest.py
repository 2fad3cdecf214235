"""Two tenants on one proxy before embedded engines: the first is innocent, the second hostile."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.subjects.processes import EngineProcess, ProxyProcess, chat
from tests.subjects.small_fleet import engine, proxy
from tests.subjects.stopped import Several

__all__ = ["engine", "proxy"]

INNOCENT, HOSTILE = 0, 1


class Place:
    """A proxy and its engines."""

    def __init__(self, folder: Path, engines: int, ranks: int = 1, **options: str) -> None:
        of_each = ("--dp-size", str(ranks))
        self.engines = Several(EngineProcess(folder, f"e{n}", "aggregated", *of_each) for n in range(engines))
        tables = [engine.listening().toml("east") for engine in self.engines]
        self.proxy = ProxyProcess(folder / "p", tables, **options).start()  # type: ignore[arg-type]

    def stop(self) -> None:
        self.proxy.stop()
        self.engines.stop()

    def order(self, **fault: Any) -> None:
        """All engines that live have this fault."""
        for each in self.living():
            httpx.post(f"{each.url}/engine/faults", json=fault).raise_for_status()

    def living(self) -> list[EngineProcess]:
        return [engine for engine in self.engines if engine.child.running()]

    def ask(self, tenant: int, text: str, **fields: Any) -> httpx.Response:
        with self.proxy.client(tenant) as client:
            return client.post("/v1/chat/completions", json=chat(text, max_tokens=4, **fields))

    def failures(self) -> dict[str, int]:
        """Failures in a row, by worker."""
        return {name: worker["failures_in_a_row"] for name, worker in self.proxy.workers().items()}

    def log(self) -> str:
        return "".join(path.read_text() for path in self.proxy.folder.glob("*.log"))


MakePlace = Callable[..., Place]


@pytest.fixture
def make_place(tmp_path: Path) -> Iterator[MakePlace]:
    with contextlib.ExitStack() as stack:

        def make(engines: int, ranks: int = 1, **options: str) -> Place:
            place = Place(tmp_path, engines, ranks, **options)
            stack.callback(place.stop)
            return place

        yield make
