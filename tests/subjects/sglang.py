"""Real SGLang servers for tests: a pytest plugin with a fixture for each.

A server without a draft is forked from a process that has imported SGLang (`sglang_origin.py`). `warmroute launch` and
the demo start SGLang by its command line.

At most five servers run at a time: one aggregated, one prefill, one decode, one with a draft, and one with small tiers
(`tests/contract/cache`), each about 2 GB of memory (shared pages counted in each; 10 GB in all). Each is started at
most once a run unless a test restarts it. Those that the collected tests name start together, in the background, before
the first test; others when they are asked for. A start takes 10 s of an idle machine and up to 150 s of a busy one.

`WARMROUTE_TEST_SGLANG` names a JSON file of running servers (what `scripts/sglang serve` prints; the keys are
`aggregated`, `prefill`, `decode`, `speculative`); tests then use those, and start none.
"""

import contextlib
import functools
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from tests.subjects.copies import Origin
from warmroute_backend.sglang import NotInstalledError, Role, Server, installation
from warmroute_backend.sglang.command import environment
from warmroute_backend.sglang.server import PortTaken, start_deadline_s

RUNNING = "WARMROUTE_TEST_SGLANG"
TEST_TIMEOUT_S = 60
ROLES_OF_FIXTURE: dict[str, tuple[Role, ...]] = {
    "sglang_aggregated": ("aggregated",),
    "sglang_pair": ("prefill", "decode"),
    "sglang_speculative": ("speculative",),
}


class CopiedServer(Server):
    """A server that is forked from a process that has imported SGLang, unless it has a draft."""

    def _spawn(self, command: Sequence[str], log: BinaryIO, env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        if self.role == "speculative":
            return super()._spawn(command, log, env)
        return cast("subprocess.Popen[bytes]", _origin().copied(command, log, log, environment=env))  # as far as used


@functools.cache
def _origin() -> Origin:
    found = installation()
    script = Path(__file__).with_name("sglang_origin.py")
    program = (str(found.python), str(script), "{}", str(found.launcher.parents[2]))
    return Origin(program=program, environment=environment(Path("/nowhere"), None, None, 1.0))


class RunningServer(Server):
    """A server that somebody else started and will stop: it can be used, not restarted."""

    def __init__(self, role: Role, address: dict[str, Any], folder: Path) -> None:
        super().__init__(role, folder)
        self._address = address
        self.log = Path(address["log"])
        self.storage_dir = Path(address.get("storage_dir", folder))

    @property
    def url(self) -> str:
        return str(self._address["url"])

    @property
    def kv_events(self) -> str:
        return str(self._address["kv_events"])

    @property
    def kv_replay(self) -> str:
        return str(self._address["kv_replay"])

    @property
    def bootstrap_host(self) -> str:
        return str(self._address["bootstrap_host"])

    @property
    def bootstrap_port(self) -> int:
        return int(self._address["bootstrap_port"])

    @property
    def pid(self) -> int | None:
        return int(self._address["pid"])

    def running(self) -> bool:
        return self.is_ready()

    def kill(self) -> None:
        pytest.fail(f"this test ends its server; {RUNNING} names one that is not the tests' own")


class Servers:
    """The servers of a run, by role."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[Role, Server] = {}
        self._deadline_s = 0.0

    def start(self, roles: Sequence[Role]) -> None:
        """Start those that do not run yet; waits for none."""
        for role in roles:
            if role not in self._servers:
                self._servers[role] = self._found(role) or CopiedServer(role, self._folder).start()
                self._deadline_s = start_deadline_s()

    def get(self, role: Role) -> Server:
        """The server of a role, serving. One that a test has killed is started again."""
        self.start([role])
        server = self._servers[role]
        if server.pid is None:
            return server.restart()
        try:
            return server.wait_ready(self._deadline_s)
        except PortTaken:
            server.kill()
            self._servers[role] = CopiedServer(role, self._folder).start()
            return self._servers[role].wait_ready(start_deadline_s())

    def stop(self) -> None:
        """End all that were started here."""
        for server in self._servers.values():
            if not isinstance(server, RunningServer):
                server.kill()

    def _found(self, role: Role) -> Server | None:
        if not (path := os.environ.get(RUNNING)):
            return None
        address = json.loads(Path(path).read_text()).get(role)
        assert address, f"{path} names no running {role} server"
        return RunningServer(role, address, self._folder)


_servers = pytest.StashKey[Servers]()


def servers_of(config: pytest.Config, folder: pytest.TempPathFactory) -> Servers:
    """The servers of this run; made where there are none yet."""
    if _servers not in config.stash:
        config.stash[_servers] = Servers(folder.mktemp("sglang"))
    return config.stash[_servers]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a server, and time them without its start, which has a limit of its own."""
    for item in items:
        if "sglang_servers" in fixtures_of(item):
            item.add_marker(pytest.mark.sglang)
            limit = item.get_closest_marker("timeout")
            item.add_marker(pytest.mark.timeout(*(limit.args if limit else (TEST_TIMEOUT_S,)), func_only=True), False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Start what the chosen tests name, so that it comes up while others run."""
    if session.config.option.collectonly:
        return
    named = {name for item in session.items for name in fixtures_of(item)}
    roles = [role for fixture, roles in ROLES_OF_FIXTURE.items() if fixture in named for role in roles]
    if roles:
        factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
        with contextlib.suppress(NotInstalledError):  # the tests that need it will say so
            servers_of(session.config, factory).start(roles)


def fixtures_of(item: pytest.Item) -> Sequence[str]:
    """The names of the fixtures that a test names, and those that they name."""
    return getattr(item, "fixturenames", ())


def pytest_unconfigure(config: pytest.Config) -> None:
    """End them, also after Ctrl-C."""
    if _servers in config.stash:
        config.stash[_servers].stop()


@pytest.fixture(scope="session")
def sglang_servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Servers:
    """The servers by role; `get` waits for one."""
    return servers_of(request.config, tmp_path_factory)


@pytest.fixture
def sglang_aggregated(sglang_servers: Servers) -> Server:
    """The aggregated server: HiCache in three tiers, KV events, cache report."""
    return sglang_servers.get("aggregated")


@pytest.fixture
def sglang_pair(sglang_servers: Servers) -> tuple[Server, Server]:
    """The prefill and the decode server."""
    sglang_servers.start(["prefill", "decode"])
    return sglang_servers.get("prefill"), sglang_servers.get("decode")


@pytest.fixture
def sglang_speculative(sglang_servers: Servers) -> Server:
    """A single server with an EAGLE-3 draft, so with bigram keys; without HiCache."""
    return sglang_servers.get("speculative")
