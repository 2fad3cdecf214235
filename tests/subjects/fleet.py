"""Embedded engines behind one proxy, by the names of the engines."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess
from tests.subjects.stopped import Stopped
from warmroute_cli.processes import stop_all


class Fleet(Stopped):
    """A `with` block starts the proxy; its engines have started before."""

    def __init__(self, folder: Path, engines: Iterable[EngineProcess], **of_proxy: Any) -> None:
        self.engines = {engine.id: engine for engine in engines}
        tables = [engine.listening().toml("east") for engine in self.engines.values()]
        self.proxy = ProxyProcess(folder / "p", tables, **of_proxy)

    def begin(self) -> None:
        self.proxy.begin()

    def stop(self) -> None:
        self.forget()
        self.proxy.stop()
        stop_all([engine.child for engine in self.engines.values()], seconds(5.0))

    def forget(self) -> None:
        """Close the connections of its clients; the next use makes new ones."""
        for name in ("admin", "client"):
            if (client := self.__dict__.pop(name, None)) is not None:
                client.close()

    @cached_property
    def admin(self) -> httpx.Client:
        return self.proxy.admin()

    @cached_property
    def client(self) -> httpx.Client:
        return self.proxy.client()

    def running(self) -> int:
        """How many requests run on the engines that are alive."""
        return sum(engine.running() for engine in self.engines.values() if engine.child.running())
