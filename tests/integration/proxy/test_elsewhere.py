"""A proxy whose engines all drain serves by another region: balancers keep it, other regions do not. And its log."""

import json
from pathlib import Path

import httpx
import pytest

from tests.subjects.processes import PLAIN, ProxyProcess, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from tests.subjects.stopped import Several

USAGE = {"prompt_tokens": 500, "completion_tokens": 3, "total_tokens": 503}

pytestmark = pytest.mark.full


def script(handler: Handler) -> None:
    handler.reply(200, whole(USAGE))


def test_a_proxy_that_serves_by_another_region_is_ready_for_clients_alone(tmp_path: Path) -> None:
    with (
        Several([ScriptedEngine(name, script) for name in ("e0", "w0")]) as engines,
        ProxyProcess(tmp_path, [engines[1].toml().replace("east", "west")], region="west") as west,
        ProxyProcess(
            tmp_path, [engines[0].toml()], peer=("west", west.url), keys=west.keys, extra='log_format = "json"'
        ) as east,
    ):
        east.sees("west")
        with east.admin() as admin:
            assert admin.post("/admin/engines/e0/drain").status_code == 200
        until(lambda: httpx.get(f"{east.url}/ready", verify=PLAIN).json().get("elsewhere"), "the drain is known")
        ready = httpx.get(f"{east.url}/ready", verify=PLAIN)
        assert (ready.status_code, ready.json()["degraded"]) == (200, ["all engines that are up drain"])
        with east.client() as client:
            answer = client.post("/v1/chat/completions", json=chat("hello"))
        assert answer.status_code == 200
        assert answer.json()["usage"]["warmroute"]["region"] == "west"
        west.stop()
        until(lambda: httpx.get(f"{east.url}/ready", verify=PLAIN).status_code == 503, "nobody serves")
        lines = [json.loads(line) for line in east.written().splitlines() if line.startswith('{"time"')]
        assert {"level", "logger", "message", "process", "time"} <= lines[0].keys()
