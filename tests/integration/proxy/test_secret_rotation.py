"""The fleet secret is rotated by the steps of the page, over proxies of two regions that forward all the time."""

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.ports import free_ports
from tests.subjects.processes import PLAIN, ProxyProcess, chat, until
from tests.subjects.scripted import ScriptedEngine
from tests.subjects.stopped import Stopped
from warmroute_proxy.server.base.secrets import Secrets

from .test_engine_misbehaves import sound

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[3] / "docs/how-to/change.md"
READ = "the fleet secret was read again"
PROCESSES = 2


class DerivedKey(ProxyProcess):
    """A proxy whose admin key follows from its own file of the fleet secret."""

    @property
    def secret(self) -> Path:
        return self.folder.parent / "secret"

    @property
    def admin_key(self) -> str:
        return Secrets(self.secret.read_bytes()).admin_key()

    def put(self, content: str, mode: int = 0o600) -> None:
        """Replace the file in one step."""
        draft = self.secret.with_suffix(".draft")
        draft.write_text(content)
        draft.chmod(mode)
        draft.replace(self.secret)

    def put_and_see(self, content: str, said: str, times: int = 1, mode: int = 0o600) -> None:
        """Replace the file, and wait until `times` more lines of the log have `said`."""
        wanted = self.log().count(said) + times
        self.put(content, mode)
        until(lambda: self.log().count(said) >= wanted, f"the log says: {said}")

    def admin_status(self, key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{self.line['admin_url']}/admin/workers", headers=headers, verify=PLAIN).status_code

    def log(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("*.log"))

    def _render(self, port: int) -> str:
        return re.sub(r"admin_key_sha256 = .*", "watch_config = true", super()._render(port))


class Traffic:
    """Clients that enter at each region for sessions of the other one, and an operator with the old admin key."""

    def __init__(self, proxies: dict[str, DerivedKey]) -> None:
        self.proxies = proxies
        self.answered: set[tuple[str, str, int, str]] = set()
        """Where it came in, where it was served, the status, and the hash of its session."""

        self.turns = 0
        self.admin_key = proxies["east"].admin_key
        self.admin_statuses: set[int] = set()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=pair) for pair in (("east", "west"), ("west", "east"))]
        for home in proxies:
            self._turn(home, home)
        self.answered.clear()
        for thread in self._threads:
            thread.start()

    def _ask(self, entry: str, home: str) -> None:
        while not self._over.is_set():
            self._turn(entry, home)
            self.admin_statuses.add(self.proxies[entry].admin_status(self.admin_key))
            self.turns += 1

    def _turn(self, entry: str, home: str) -> None:
        headers = {"x-session-affinity": f"of {home}", "x-warmroute-home": home}
        body = chat("roam")
        body["messages"][0]["content"] = f"Of {home}. " * 200
        with self.proxies[entry].client() as client:  # another connection, so maybe another process of the proxy
            answer = client.post("/v1/chat/completions", json=body, headers=headers)
        receipt = answer.json().get("usage", {}).get("warmroute", {})
        self.answered.add((entry, receipt.get("region"), answer.status_code, receipt.get("session")))

    def go_on(self, more: int = 12) -> None:
        wanted = self.turns + more
        until(lambda: self.turns >= wanted, f"{more} further turns")

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


class Fleet(Stopped):
    """East and west, each of two processes, with a file of the secret and an engine that is seen what it is sent."""

    def __init__(self, folder: Path) -> None:
        self.engines = {region: ScriptedEngine(f"{region}-0", sound) for region in ("east", "west")}
        ports = dict(zip(self.engines, free_ports(2), strict=True))
        keys = ("wr-first", "wr-second")
        self.proxies: dict[str, DerivedKey] = {}
        for region, other in (("east", "west"), ("west", "east")):
            table = self.engines[region].toml().replace('region = "east"', f'region = "{region}"')
            peer = (other, f"http://127.0.0.1:{ports[other]}")
            extra = f"processes = {PROCESSES}"
            self.proxies[region] = DerivedKey(
                folder / region / "p", [table], region=region, peer=peer, keys=keys, extra=extra
            )
        for region, proxy in self.proxies.items():
            proxy.start(ports[region])

    def begin(self) -> None:
        for region, other in (("east", "west"), ("west", "east")):
            self.proxies[region].sees(other)

    def put(self, content: str, go_on: Callable[[], None]) -> None:
        """Replace the secret of one proxy after the other."""
        for proxy in self.proxies.values():
            proxy.put_and_see(content, READ, PROCESSES)
            go_on()

    def salts(self) -> set[str]:
        """Those that the engines were sent since the last call."""
        found = {
            re.search(rb'"cache_salt":"(\w+)"', body).group(1).decode()  # type: ignore[union-attr]
            for engine in self.engines.values()
            for body in engine.bodies
        }
        for engine in self.engines.values():
            engine.bodies.clear()
        return found

    def metric(self, line: str) -> list[bool]:
        """Whether the metrics of each proxy have a line."""
        return [line in proxy.metrics().splitlines() for proxy in self.proxies.values()]

    def stop(self) -> None:
        for proxy in self.proxies.values():
            proxy.stop()
        for engine in self.engines.values():
            engine.stop()


def steps(secret: Path, folder: Path) -> list[str]:
    """What the page's commands make of a file."""
    shutil.copy(secret, folder / "secret")
    (block,) = re.findall(r"```sh\n(umask 077\n.*?)```", PAGE.read_text(), re.DOTALL)
    subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=folder, check=True, timeout=seconds(10))
    return [(folder / f"secret.{step}").read_text() for step in "abc"]


def test_a_rotation_refuses_nothing_and_keeps_caches(tmp_path: Path) -> None:
    with Fleet(tmp_path) as it:
        east = it.proxies["east"]
        first = east.secret.read_text()
        accepts, signs, ends = steps(east.secret, tmp_path)
        old, new = east.admin_key, Secrets(ends.encode()).admin_key()
        traffic = Traffic(it.proxies)
        try:
            traffic.go_on()
            salts = it.salts()
            assert len(salts) == 1
            for content in (accepts, signs):
                it.put(content, traffic.go_on)
            assert {proxy.admin_status(new) for proxy in it.proxies.values()} == {200}
            assert traffic.admin_statuses == {200}
            it.put(ends, traffic.go_on)
        finally:
            traffic.end()
        assert {(entry, served, status) for entry, served, status, _ in traffic.answered} == {
            ("east", "west", 200),
            ("west", "east", 200),
        }
        assert len({session for *_, session in traffic.answered}) == 2, "sessions keep their hashes"
        assert it.salts() == salts
        for proxy in it.proxies.values():
            assert [proxy.admin_status(key) for key in (old, new)] == [401, 200]
        for never in ('warmroute_announcements_total{result="lost"} 0', "warmroute_forward_failures_total 0"):
            assert it.metric(never) == [True, True]
        assert first.strip() not in "".join(proxy.log() for proxy in it.proxies.values())

        survives(it, ends, salts)
        again = steps(it.proxies["west"].secret, tmp_path)
        assert {content.splitlines()[-1] for content in again} == {f"caches: {first.strip()}"}, "the next rotation"


def survives(it: Fleet, ends: str, salts: set[str]) -> None:
    """A process that starts again signs as the others do, and derives what lasts as before, whatever the file said."""
    east = it.proxies["east"]
    bare = ends.splitlines()[0]
    east.put_and_see(bare, "waits for a restart", PROCESSES)
    east.put("")
    os.kill(east.line["processes"][0], signal.SIGKILL)
    until(lambda: east.log().count("is started again") > 1, "it ends where it cannot read which secrets are accepted")
    east.put(bare)
    until(lambda: it.metric("warmroute_processes 2") == [True, True], "it is started again")
    traffic = Traffic(it.proxies)
    traffic.go_on(30)
    traffic.end()
    assert {(entry, served) for entry, served, *_ in traffic.answered} == {("east", "west"), ("west", "east")}
    assert traffic.admin_statuses == {200}
    assert it.salts() == salts


def test_a_file_that_cannot_be_used_changes_nothing_and_is_said(tmp_path: Path) -> None:
    with ScriptedEngine("s0", sound) as engine, DerivedKey(tmp_path / "p", [engine.toml()]) as proxy:
        first, said = proxy.secret.read_text(), "the fleet secret stays as it was"
        key = proxy.admin_key
        headers = {"authorization": f"Bearer {key}"}
        for content, problem in (("", "has 0 bytes"), (f"{first}\n{'n' * 32}", "several lines"), (" ", "has 0 bytes")):
            proxy.put_and_see(content, said)
            with httpx.Client(base_url=str(proxy.line["admin_url"]), headers=headers, verify=PLAIN) as admin:
                answer = admin.post("/admin/reload")
            assert answer.status_code == 400
            assert problem in answer.text
        proxy.put_and_see("n" * 32, said, mode=0o644)
        assert "others can read it: chmod 600" in proxy.log()
        assert proxy.admin_status(key) == 200
        proxy.secret.chmod(0o600)
        until(lambda: proxy.admin_status(proxy.admin_key) == 200, "it is taken once it is private")
        assert proxy.admin_status(key) == 401
