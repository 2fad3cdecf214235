"""Engines of an InferencePool behind Envoy: requests go to the pods that the pool has now, on each of its ports."""

import itertools
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.gateway.test_protocol import CHAT, answers
from tests.subjects.gateway import Envoy, Picker
from tests.subjects.kube_server import KubeServer
from tests.subjects.ports import free_port
from tests.subjects.processes import until
from tests.subjects.scripted import Handler, ScriptedEngine
from tests.subjects.stopped import Stopped

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/prod/inferencepools"
PODS = "/api/v1/namespaces/prod/pods"
MINE = {"app": "mine"}


class Cluster(Stopped):
    """Pods with a rank at each of two ports, an API server, and a gateway that knows all that there will ever be."""

    def __init__(self, folder: Path) -> None:
        (folder / "pod").mkdir()
        self.server = KubeServer(folder / "pod")
        self.ports = [free_port(), free_port()]
        self.hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        self.engines: dict[str, list[ScriptedEngine]] = {}
        ports = [{"number": port} for port in self.ports]
        self.server.put(POOLS, "mine", {"spec": {"selector": {"matchLabels": MINE}, "targetPorts": ports}})
        source = f'[[discovery]]\nkind = "inferencepool"\nname = "mine"\napi = "{self.server.url}"\n'
        source += f'credentials = "{self.server.credentials}"\ninterval_s = 0.1'
        self.picker = Picker(folder / "p", [source])
        self._folder = folder
        self._number = itertools.count()
        self._envoy: Envoy | None = None

    @property
    def envoy(self) -> Envoy:
        if self._envoy is None:
            urls = [f"http://{host}:{port}" for host in self.hosts for port in self.ports]
            self._envoy = Envoy(self._folder / "envoy", self.picker.url, urls).listening()
        return self._envoy

    def begins(self, host: str, labels: dict[str, str] = MINE) -> None:
        """A pod is ready."""
        self.engines[host] = [ScriptedEngine(f"{host}:{port}", answers, host, port) for port in self.ports]
        state = {"podIP": host, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.server.put(PODS, f"pod-{host[-1]}", {"status": state}, labels)

    def ends(self, host: str) -> None:
        """A pod is deleted, and its processes end."""
        self.server.delete(PODS, f"pod-{host[-1]}")
        for engine in self.engines.pop(host):
            engine.dead, engine.script = True, Handler.cut  # also on connections that are open
            engine.stop()

    def asked(self, times: int = 12) -> tuple[set[int], set[str]]:
        """The statuses of so many sessions' first turns, and the addresses that have answered them."""
        for engine in (each for pod in self.engines.values() for each in pod):
            engine.bodies.clear()
        with self.envoy.client(self.picker.keys[0]) as client:
            given: list[Any] = [client.post(CHAT, json=self._new()) for _ in range(times)]
        engines = [each for pod in self.engines.values() for each in pod if each.bodies]
        return {each.status_code for each in given}, {urlsplit(each.url).netloc for each in engines}

    def _new(self) -> dict[str, Any]:
        """A first turn that shares nothing with another."""
        message = {"role": "user", "content": f"{next(self._number)} " * 200}
        return {"model": "kimi-k2.5", "messages": [message]}

    def addresses(self, *hosts: str) -> set[str]:
        return {f"{host}:{port}" for host in hosts for port in self.ports}

    def stop(self) -> None:
        self.picker.stop()
        if self._envoy is not None:
            self._envoy.stop()
        self.server.stop()
        for engine in (each for pod in self.engines.values() for each in pod):
            engine.stop()


def test_requests_go_to_the_pods_of_the_pool_as_they_come_and_go(tmp_path: Path) -> None:
    with Cluster(tmp_path) as it:
        one, two, other = it.hosts
        it.begins(other, {"app": "other"})
        it.begins(one)
        it.picker.start()
        until(lambda: it.asked() == ({200}, it.addresses(one)), "each port of the only pod is asked")
        it.begins(two)
        until(lambda: it.asked() == ({200}, it.addresses(one, two)), "the pod that came is asked, too")
        it.ends(one)
        until(lambda: it.asked() == ({200}, it.addresses(two)), "the pod that is gone is not asked")
        it.ends(two)
        until(lambda: not it.picker.is_ready(), "an empty pool has nobody to ask")
        it.envoy.checks_health_again()
        assert it.asked(1) == ({503}, set())
        it.begins(one)
        until(lambda: it.asked() == ({200}, it.addresses(one)), "the pod that came back is asked")
