"""Limits of a key at once: they hold up the requests of that key, and of no other key of its tenant."""

import hashlib
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, answer, chat, until
from tests.subjects.scripted import ROLE, Handler, ScriptedEngine, delta
from tests.subjects.stopped import Stopped
from warmroute_proxy.server.base.secrets import config_key_id, new_api_key

FIRST, OTHER = 1, 2  # the keys of one tenant


class ProxyOfTwoKeys(ProxyProcess):
    """The second tenant has two keys, and each may have one request under way."""

    def _render(self, port: int) -> str:
        one, two = (hashlib.sha256(key.encode()).hexdigest() for key in self.keys[1:])
        budgets = [
            f'[[budget]]\nname = "of-{number}"\nkeys = ["{config_key_id(digest)}"]\nrequests_at_once = 1\n'
            for number, digest in enumerate((one, two))
        ]
        return super()._render(port).replace(f'["{one}"]', f'["{one}", "{two}"]') + "\n".join(budgets)


class Scene(Stopped):
    """An engine that answers each request when it is told to, by its prompt."""

    def __init__(self, folder: Path) -> None:
        self.may_end: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self.engine = ScriptedEngine("s0", self._stream)
        self.begun: list[str] = []
        self.sockets: list[socket.socket] = []
        self.proxy = ProxyOfTwoKeys(
            folder / "p", [f"{self.engine.toml()}\nmax_running = 100"], limits="queue_timeout_s = 3600"
        )
        self.proxy.keys = (*self.proxy.keys, new_api_key()[0])  # type: ignore[assignment]

    def _stream(self, handler: Handler) -> None:
        name = self.engine.sent()["messages"][-1]["content"].split()[0]
        self.begun.append(name)
        self.may_end[name].wait(seconds(60))
        handler.stream(ROLE, delta("a"), delta(finish="stop"), "[DONE]")

    def send(self, name: str, key: int) -> socket.socket:
        self.sockets.append(self.proxy.send(chat(name, stream=True), key))
        return self.sockets[-1]

    def runs(self, name: str, key: int) -> socket.socket:
        sock = self.send(name, key)
        until(lambda: name in self.begun, f"{name} runs")
        return sock

    def waits(self, name: str, key: int) -> socket.socket:
        before = self.waiting()
        sock = self.send(name, key)
        until(lambda: self.waiting() == before + 1, f"{name} waits")
        return sock

    def waiting(self) -> int:
        with self.proxy.admin() as admin:
            return int(admin.get("/admin/admission").json()["queue"]["requests"])

    def stop(self) -> None:
        for name in [*self.begun, "a1", "a2", "a3", "b1", "b2"]:
            self.may_end[name].set()
        for sock in self.sockets:
            sock.close()
        self.proxy.stop()
        self.engine.stop()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as made:
        made.proxy.start()
        yield made


def test_a_key_at_its_limit_does_not_hold_up_another_key_of_its_tenant(scene: Scene) -> None:
    scene.runs("a1", FIRST)
    scene.waits("a2", FIRST)
    scene.may_end["b1"].set()
    assert answer(scene.send("b1", OTHER))[0] == 200


def test_a_request_that_waits_for_its_own_key_goes_before_one_that_cannot(scene: Scene) -> None:
    scene.runs("a1", FIRST)
    scene.runs("b1", OTHER)
    a2, a3, b2 = scene.waits("a2", FIRST), scene.waits("a3", FIRST), scene.waits("b2", OTHER)
    for name in ("b1", "b2"):
        scene.may_end[name].set()
    assert answer(b2)[0] == 200
    assert scene.waiting() == 2
    for name in ("a1", "a2", "a3"):
        scene.may_end[name].set()
    assert [answer(sock)[0] for sock in (a2, a3)] == [200, 200]
    assert scene.begun == ["a1", "b1", "b2", "a2", "a3"]
