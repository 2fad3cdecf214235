"""A real Envoy with the configuration of docs/how-to/gateway.md, and a picker that it asks."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import yaml

from tests.machine import seconds
from tests.subjects.processes import DEADLINE_S, PLAIN, ProxyProcess, until
from tests.subjects.stopped import Stopped

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "gateway.md"
ENVOY = Path(sys.executable).with_name("envoy")
EXT_PROC = "envoy.filters.http.ext_proc"
STREAM = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


def page_block(title: str) -> str:
    """A block of the page, by its title."""
    found = re.search(rf'```\w+ title="{re.escape(title)}"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert found, title
    return found[1]


def envoy_config() -> dict[str, Any]:
    """The page's configuration of Envoy."""
    config: dict[str, Any] = yaml.safe_load(page_block("envoy.yaml"))
    return config


def ext_proc(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of external processing in a configuration."""
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    settings: dict[str, Any] = next(each for each in manager["http_filters"] if each["name"] == EXT_PROC)[
        "typed_config"
    ]
    return settings


def route(config: dict[str, Any]) -> dict[str, Any]:
    """The only route."""
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    found: dict[str, Any] = manager["route_config"]["virtual_hosts"][0]["routes"][0]
    return found


def cluster(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A cluster, by its name."""
    found: dict[str, Any] = next(each for each in config["static_resources"]["clusters"] if each["name"] == name)
    return found


def falls_back(config: dict[str, Any]) -> None:
    """Envoy sends a request to any engine, once no engine that the picker named is left."""
    policy = cluster(config, "engines")["load_balancing_policy"]["policies"][0]["typed_extension_config"]
    fallback = policy["typed_config"]["fallback_policy"]["policies"][0]["typed_extension_config"]
    policy["typed_config"]["fallback_policy"] = fallback["typed_config"]["subset_lb_policy"]


def fails_open(config: dict[str, Any]) -> None:
    """Envoy goes on without the picker."""
    ext_proc(config)["failure_mode_allow"] = True
    falls_back(config)


def endpoint(url: str) -> dict[str, Any]:
    """An address in a cluster."""
    parts = urlsplit(url)
    return {"endpoint": {"address": {"socket_address": {"address": parts.hostname, "port_value": parts.port}}}}


class Picker(ProxyProcess):
    """`warmroute epp`."""

    command = "epp"

    def is_ready(self) -> bool:
        with self.admin() as admin:
            return admin.get("/ready").status_code == 200

    def health(self, service: str) -> int:
        """What gRPC health says of a service: 1 serves, 2 does not; 0: it does not answer."""
        name = service.encode()
        with self.channel() as channel:
            ask = channel.unary_unary("/grpc.health.v1.Health/Check")
            try:
                return int(ask(b"\x0a%c%b" % (len(name), name) if name else b"", timeout=seconds(20))[1])
            except grpc.RpcError as error:
                return 0 if error.code() is grpc.StatusCode.UNAVAILABLE else -1

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.address)

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]


def patient(config: dict[str, Any]) -> None:
    """Put the deadlines far away after which a slow picker or engine counts as gone: the page's, and Envoy's own.
    A check of health still fails at once where the picker does not listen, or says that it does not serve.
    """
    ext_proc(config)["message_timeout"] = "600s"
    for each in config["static_resources"]["clusters"]:
        each["connect_timeout"] = "600s"
        for check in each.get("health_checks", ()):
            check["timeout"] = "600s"


class Envoy(Stopped):
    """An Envoy in front of engines. `change`: what a test has in another way than the page."""

    def __init__(
        self,
        folder: Path,
        picker: str,
        engines: Sequence[str],
        change: Callable[[dict[str, Any]], None] | None = None,
        *,
        concurrency: int = 1,
        core: int | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = envoy_config()
        config["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
        resources = config["static_resources"]
        resources["listeners"][0]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
        by_name = {cluster["name"]: cluster for cluster in resources["clusters"]}
        by_name["warmroute"]["load_assignment"]["endpoints"][0]["lb_endpoints"] = [endpoint(picker)]
        by_name["engines"]["load_assignment"]["endpoints"][0]["lb_endpoints"] = [endpoint(url) for url in engines]
        patient(config)
        if change is not None:
            change(config)
        path, self._admin = folder / "envoy.json", folder / "admin"
        path.write_text(json.dumps(config))
        command = [str(ENVOY), "-c", str(path), "--concurrency", str(concurrency), "-l", "warning"]
        command += ["--admin-address-path", str(self._admin), "--use-dynamic-base-id"]
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        self.log = folder / "envoy.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.url = ""

    def listening(self) -> "Envoy":
        until(self._found, "Envoy listens", DEADLINE_S)
        return self

    def _found(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        if not self._admin.exists() or not (admin := self._admin.read_text()):
            return False
        try:
            found = httpx.get(f"http://{admin}/listeners?format=json", verify=PLAIN).json()["listener_statuses"]
        except (httpx.HTTPError, KeyError):
            return False
        at = found[0]["local_address"]["socket_address"]
        self.url = f"http://{at['address']}:{at['port_value']}"
        try:
            socket.create_connection((at["address"], at["port_value"]), timeout=seconds(1)).close()
        except OSError:
            return False
        return True

    def stat(self, name: str) -> int:
        """A counter or gauge of Envoy's."""
        text = httpx.get(f"http://{self._admin.read_text()}/stats?filter={name}$", verify=PLAIN).text
        return sum(int(line.rpartition(": ")[2]) for line in text.splitlines())

    def checks_health_again(self) -> None:
        """Wait until as many health checks of the picker have ended as it takes for Envoy to give it up."""
        name = "cluster.warmroute.health_check.(success|failure)"
        enough = self.stat(name) + 4  # one may be on its way
        until(lambda: self.stat(name) >= enough, "Envoy has checked the picker's health", 40)

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def client(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=seconds(60), verify=PLAIN)

    def begin(self) -> None:
        self.listening()

    def stop(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(seconds(5))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
