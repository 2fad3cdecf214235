"""docs/how-to/many-proxies.md, followed: its configuration, and each of its commands in their order."""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import seconds
from tests.subjects.ports import free_port
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from tests.subjects.stopped import Several
from tests.subjects.stores import Postgres, Redis
from warmroute_cli.processes import Child
from warmroute_proxy.server.base.secrets import new_api_key

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/many-proxies.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


class Reader:
    """Who follows the page, in a folder with the configs of two proxies."""

    def __init__(self, folder: Path, proxies: list[ProxyProcess]) -> None:
        self.folder = folder
        self.proxies = {proxy.region: proxy for proxy in proxies}
        programs = folder / "bin"
        programs.mkdir()
        program = programs / "warmroute"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m warmroute_cli.main "$@"\n')
        program.chmod(0o755)
        key = proxies[0].keys[0]
        more = {"PATH": f"{programs}:{os.environ['PATH']}", "WARMROUTE_ADMIN_KEY": key, "OPENAI_API_KEY": key}
        self.environment = os.environ | more

    def run(self, block: str) -> str:
        command = ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
            timeout=seconds(60),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, block: str) -> None:
        """Start what a block puts in the background, and remember where it listens."""
        for line in block.splitlines():
            assert line.endswith(" &")
            command = line.removesuffix(" &").split()
            region = command[-1].removesuffix(".toml")
            program = self.environment["PATH"].partition(":")[0]
            path = str(self.folder / command[-1])
            child = Child(region, [f"{program}/{command[0]}", *command[1:-1], path], self.folder)
            proxy = self.proxies[region]
            proxy.child = child
            proxy.line = child.listening(time.monotonic() + seconds(20))
        self.environment["OPENAI_BASE_URL"] = self.proxies["east"].base_url


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    names, made = ("east", "west"), Several[ProxyProcess]()
    keys = (new_api_key()[0], new_api_key()[0])
    (table,) = blocks("toml")
    with Several(EngineProcess(tmp_path, f"{name}-a0", "aggregated") for name in names) as engines:
        for name, engine in zip(names, engines, strict=True):
            tables, port = [engine.toml(name)], f"admin_port = {free_port()}"
            made.append(ProxyProcess(tmp_path / "p", tables, region=name, limits=table, extra=port, keys=keys))
            made[-1].write_config()
        yield Reader(tmp_path / "p", made)
        made.stop()


def test_the_page_is_followed(reader: Reader, postgres: Postgres, redis: Redis) -> None:
    install, address, tables, proxies, usage, *others = blocks("sh")
    extras = re.findall(r"[a-z]+", re.findall(r"\[(.*)\]", install)[0])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(project["optional-dependencies"])
    dsn = postgres.new_database()
    reader.run(re.sub(r"redis://[^']+", redis.url, re.sub(r"postgresql://[^']+", dsn, address)))
    for file in ("ledger.dsn", "redis.url"):
        assert (reader.folder / file).stat().st_mode & 0o077 == 0
    assert "ok" in reader.run(tables)
    reader.start(proxies)
    for proxy in reader.proxies.values():
        until(proxy.is_ready, "the proxy is ready")
        with proxy.client() as client:
            assert client.post("/v1/chat/completions", json=chat(proxy.region)).status_code == 200
    until(lambda: postgres.sql("SELECT count(*) FROM turn", dsn) == ["2"], "both rows are sent")
    curl, command = usage.splitlines()
    found = json.loads(reader.run(curl))
    assert found["turns"] == 2
    assert set(found["regions"]) == {"east", "west"}
    assert "first" in reader.run(command)
    said = "".join(map(reader.run, others))
    assert "requests_at_once=40" in said
    assert "nightly jobs" in said
    assert "unexplained" in said
