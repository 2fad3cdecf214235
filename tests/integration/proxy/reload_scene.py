"""A proxy whose config file is rewritten while it runs."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx

from tests.machine import seconds
from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess, chat, until
from tests.subjects.stopped import Stopped
from warmroute_cli.processes import stop_all


class Scene(Stopped):
    """Three engines, of which the proxy's config names some at first."""

    def __init__(self, folder: Path, extra: str = "", *, named: int = 2, more: str = "") -> None:
        """`extra`: lines of [proxy]; `more`: tables."""
        self.engines = [EngineProcess(folder, f"e{n}", "aggregated", speed=2.0) for n in range(3)]
        self.tables = [engine.listening().toml("east") for engine in self.engines]
        second = "requests_per_minute = 600"
        self.proxy = ProxyProcess(folder / "p", [*self.tables[:named], more], extra=extra, second=second).start()
        self.first = self.proxy.config.read_text()

    def stop(self) -> None:
        self.proxy.stop()
        stop_all([engine.child for engine in self.engines], seconds(5.0))

    def write(self, text: str) -> None:
        draft = self.proxy.config.with_suffix(".new")
        draft.write_text(text)
        draft.replace(self.proxy.config)

    def without(self, number: int) -> str:
        return self.first.replace(self.tables[number], "")

    def reload(self, *, dry_run: bool = False) -> httpx.Response:
        with self.proxy.admin() as admin:  # of several processes, the system chooses one
            return admin.post("/admin/reload", params={"dry_run": "true"} if dry_run else {})

    def apply(self, text: str) -> dict[str, Any]:
        self.write(text)
        found: dict[str, Any] = self.reload().raise_for_status().json()
        return found

    def states(self) -> dict[str, str]:
        with self.proxy.admin() as admin:
            return {each["id"]: each["state"] for each in admin.get("/admin/engines").json()["engines"]}

    def ask(self, text: str = "hello", tenant: int = 0, **fields: Any) -> httpx.Response:
        with self.proxy.client(tenant) as client:
            return client.post("/v1/chat/completions", json=chat(text, **{"max_tokens": 2, **fields}))

    def ready(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.proxy.url}/ready", verify=PLAIN).json()
        return found

    def metrics(self) -> str:
        return self.proxy.metrics()

    def log(self) -> str:
        return "".join(path.read_text() for path in self.proxy.folder.glob("*.log"))


def receipt(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.raise_for_status().json()["usage"]["warmroute"]
    return found


def price(response: httpx.Response) -> str:
    """What an output token of an answer costs."""
    return str(receipt(response)["rates_usd_per_mtok"]["output"])


def deaths(scene: Scene) -> int:
    """How often the supervisor has said that it starts a process again."""
    return scene.log().count("is started again")


def kill(scene: Scene, number: int) -> None:
    """Kill a process as nobody expects, and wait for the one that takes its place."""
    before = deaths(scene)
    os.kill(scene.proxy.line["processes"][number], signal.SIGKILL)
    until(lambda: deaths(scene) > before, "its death is noticed")
    until(lambda: "warmroute_processes 2" in scene.metrics(), "the process is started again")
