"""The embedded fleet as real processes: two regions with engines and a proxy each, and a delay between them.

Each region has a prefill engine, two decode engines and an aggregated one. The system assigns the ports, so a process
starts when the addresses that it needs are known. The engines start first, together with the relay that delays traffic
between the regions (`wan.py`). Then the proxies start, with the addresses of engines and relay in their configuration
(`fleet.toml`, rendered). Last, the relay gets the addresses of the proxies. However a `with LocalFleet(...)` block
ends, all its processes are gone afterwards.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, ClassVar, Literal

from warmroute_backend.asking import ask
from warmroute_backend.plan.tables import value as toml_value
from warmroute_backend.sglang.speed import slowness
from warmroute_cli import state
from warmroute_cli.processes import POLL_S, Child, FleetError, Stopped, stop_all
from warmroute_proxy.server.base.secrets import key_sha256

REGIONS = ("east", "west")
ENGINES = (("p0", "prefill"), ("d0", "decode"), ("d1", "decode"), ("a0", "aggregated"))
MODELS = ("kimi-k2.5", "claude-sonnet-4-5", "gpt-5.1", "gpt-5.1-codex", "gemini-2.5-pro", "m")
PAGE_SIZE = 64
KV_TOKENS = 600_000
CONTEXT_TOKENS = 200_000
START_TIMEOUT_S = 120.0  # a slow machine compiles all modules at the first start
STOP_GRACE_S = 5.0
HTTP_TIMEOUT_S = 10.0

Policy = Literal["cost", "round_robin"]
Ports = dict[str, tuple[int, int]]
"""Region -> the ports of its proxy, for clients and for operators. The system assigns a port that is 0 or missing."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    policy: Policy = "cost"
    speed: float = 1.0  # virtual seconds of the engines per second of wall time
    seed: int = 1
    delay_ms: float = 15.0  # one way, between the regions
    ports: Ports = field(default_factory=dict)
    record: bool = False  # proxies write every routing decision to `<region>.record` in the run directory
    obey_prompts: bool = False  # engines do what `obey:` lines of prompts say

    @property
    def rtt_ms(self) -> float:
        return 2 * self.delay_ms


@dataclass(frozen=True, slots=True)
class LocalEngine:
    id: str
    url: str
    bootstrap_port: int | None


@dataclass(frozen=True, slots=True)
class Proxy:
    region: str
    url: str
    admin_url: str
    state_dir: Path

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def ports(self) -> tuple[int, int]:
        return int(self.url.rpartition(":")[2]), int(self.admin_url.rpartition(":")[2])


@dataclass
class LocalFleet(Stopped):
    """A fleet. `run_dir` has its logs, rendered configuration and ledgers; `state_dir` has its secret and API key."""

    child_type: ClassVar[type[Child]] = Child

    state_dir: Path
    run_dir: Path
    options: FleetOptions
    engines: list[LocalEngine] = field(default_factory=list)
    proxies: dict[str, Proxy] = field(default_factory=dict)
    _children: list[Child] = field(default_factory=list)
    _proxy_children: list[Child] = field(default_factory=list)

    @property
    def api_key(self) -> str:
        return state.api_key(self.state_dir)

    def stop(self) -> None:
        """Stop all processes, proxies first, so that they can end and bill open turns while engines still answer."""
        try:
            self.stop_proxies()
        finally:
            stop_all(self._children, STOP_GRACE_S)
            self._children.clear()

    def stop_proxies(self) -> None:
        """Stop the proxies; afterwards their ledgers are complete."""
        stop_all(self._proxy_children, STOP_GRACE_S)
        self._proxy_children.clear()

    def ended(self) -> list[str]:
        """Names of processes that ended without being stopped."""
        return [child.name for child in (*self._children, *self._proxy_children) if not child.running()]

    def finished(self) -> list[dict[str, Any]]:
        """The engines' own logs of finished requests, each entry with the id of its engine."""
        return [{"engine": engine.id, **entry} for engine in self.engines for entry in _finished(engine)]

    def begin(self) -> None:
        deadline_s = start_deadline_s()
        self.run_dir.mkdir(parents=True, exist_ok=True)
        relay = self._spawn("relay", _relay_command(self.options.delay_ms))
        started = [
            self._spawn(f"{region}-{name}", _engine_command(f"{region}-{name}", role, self.options))
            for region in REGIONS
            for name, role in ENGINES
        ]
        for child in started:
            line = child.listening(deadline_s)
            self.engines.append(LocalEngine(child.name, line["url"], line.get("bootstrap_port")))
        relay_urls = relay.listening(deadline_s)["urls"]
        proxies = [(region, self._spawn_proxy(region, relay_urls)) for region in REGIONS]
        for region, child in proxies:
            line = child.listening(deadline_s)
            self.proxies[region] = Proxy(region, line["url"], line["admin_url"], self.run_dir / region)
        relay.send({region: proxy.url for region, proxy in self.proxies.items()})
        for region, child in proxies:
            wait_ready(child, self.proxies[region].url, deadline_s)

    def _spawn(self, name: str, command: Sequence[str]) -> Child:
        child = self.child_type(name, command, self.run_dir)
        self._children.append(child)
        return child

    def _spawn_proxy(self, region: str, relay_urls: dict[str, str]) -> Child:
        path, config = self.run_dir / f"{region}.toml", self._config(region, relay_urls)
        child = started_proxy(f"{region}-proxy", path, config, self.child_type)
        self._proxy_children.append(child)
        return child

    def _config(self, region: str, relay_urls: dict[str, str]) -> str:
        port, admin_port = self.options.ports.get(region, (0, 0))
        values: dict[str, Any] = {
            "region": region,
            "port": port,
            "admin_port": admin_port,
            "record": str(self.run_dir / f"{region}.record") if self.options.record else "",
            "policy": self.options.policy,
            "state_dir": str(self.run_dir / region),
            "secret_file": str(state.secret_file(self.state_dir)),
            "key_sha256": key_sha256(self.api_key),
        }
        for other in REGIONS:
            values[f"{other}_proxy_url"] = "" if other == region else relay_urls[other]
            values[f"{other}_rtt_ms"] = 0 if other == region else self.options.rtt_ms
        for engine in self.engines:
            prefix = engine.id.replace("-", "_")
            values[f"{prefix}_url"] = engine.url
            values[f"{prefix}_bootstrap_port"] = engine.bootstrap_port
        return render(values)


def start_deadline_s() -> float:
    return time.monotonic() + START_TIMEOUT_S * slowness()


def _finished(engine: LocalEngine) -> list[dict[str, Any]]:
    found = ask(f"{engine.url}/engine/finished", HTTP_TIMEOUT_S).fields().get("finished")
    if not isinstance(found, list):
        raise FleetError(f"{engine.id} does not say which requests it has finished")
    return found


def render(values: dict[str, Any], template: str = "fleet.toml") -> str:
    """The template with its values filled in, each written as TOML."""
    text = (resources.files("warmroute_lab") / template).read_text(encoding="utf-8")
    return Template(text).substitute({name: toml_value(each) for name, each in values.items() if each is not None})


def started_proxy(name: str, path: Path, config: str, child_type: type[Child] = Child) -> Child:
    """Write a configuration to a file, and start a proxy with it. The proxy's logs are beside the file."""
    path.write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "warmroute_cli.main", "proxy", "--config", str(path)]
    return child_type(name, command, path.parent)


def wait_ready(child: Child, url: str, deadline_s: float) -> None:
    while True:
        status = ask(f"{url}/ready", HTTP_TIMEOUT_S).status
        if status == 200:
            return
        if time.monotonic() > deadline_s or not child.running():
            answer = f"its last answer has status {status}" if status else "it does not answer"
            raise FleetError(f"{child.name} does not become ready: {answer}{child.last_words()}")
        time.sleep(POLL_S)


def _relay_command(delay_ms: float) -> list[str]:
    links = [word for region in REGIONS for word in ("--link", region)]
    return [sys.executable, "-m", "warmroute_lab.wan", "--delay-ms", str(delay_ms), *links]


def _engine_command(engine_id: str, role: str, options: FleetOptions) -> list[str]:
    command = [sys.executable, "-m", "warmroute_lab.engine", "--role", role, "--engine-id", engine_id]
    command += ["--host", "127.0.0.1", "--port", "0", "--bootstrap-port", "0", "--dp-size", "1"]
    command += ["--page-size", str(PAGE_SIZE), "--kv-tokens", str(KV_TOKENS), "--context-length", str(CONTEXT_TOKENS)]
    command += ["--speed", str(options.speed), "--seed", str(options.seed)]
    command += ["--obey-prompts"] if options.obey_prompts else []
    return command + [word for model in MODELS for word in ("--model", model)]
