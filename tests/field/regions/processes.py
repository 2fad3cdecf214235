"""What runs in each region: a relay to the others, three engines, two proxies, a Redis, and PostgreSQL in the first.

Every way into another region leads through the relay of one's own (`warmroute_lab.wan`), which holds bytes back for the
distance and passes connections to the proxies there in turn, as a load balancer does. The database is reached so, too.
The namespaces are of the run alone, so the ports in them are fixed: a proxy that starts again has the same address.
"""

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import httpx
from tests.field.chaos.client import Life
from tests.machine import seconds
from tests.subjects import clocks, patience
from tests.subjects.copies import Origin
from tests.subjects.processes import PLAIN, until
from tests.subjects.stores import Postgres, Redis, Server

from warmroute_backend.sglang.server import start_deadline_s
from warmroute_cli.processes import Child, stop_all
from warmroute_proxy.server.base.secrets import new_api_key
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE, read_rows
from warmroute_proxy.server.stores.migrate import migrate

from .agents import MODEL, TENANTS
from .namespaces import CLIENTS, Network, asked_inside
from .sglang import ENGINE as SGLANG
from .sglang import RegionalServer

REGIONS: Final = ("east", "west", "north")
ENGINES: Final = {"p0": "prefill", "d0": "decode", "a0": "aggregated"}
PROXIES: Final = 2
DELAY_MS: Final = 15.0
FAR_MS: Final = 2000.0
_PORT: Final = 8000
_ADMIN_PORT: Final = 9000
_DATABASE: Final = "database"
_ROWS_WAIT: Final = "rows cannot be sent to the database, they wait"
_LISTENS_WITHIN_S: Final = 60.0
_LIMITS: Final = """
first_token_timeout_s = 20.0
idle_timeout_s = 8.0
shutdown_grace_s = 1.0
"""
_LIMITS_OF_SGLANG: Final = """
first_token_timeout_s = 240.0
idle_timeout_s = 60.0
shutdown_grace_s = 1.0
"""
"""Three of them and all else share the cores; the first prompt of a server takes minutes there."""


class Placed(Child):
    """A process in a region: a copy of the one there that has imported everything."""

    def __init__(self, origin: Origin, name: str, command: Sequence[str], folder: Path, ahead_s: float = 0.0) -> None:
        """`ahead_s`: of its wall clock."""
        self._origin = origin
        self._ahead_s = ahead_s
        super().__init__(name, command, folder)

    def _start(self, command: Sequence[str], out: BinaryIO, log: BinaryIO) -> Any:
        modules = [module.rpartition(".")[2] for module in patience.DEADLINES]
        real = patience.real([*modules, patience.DEFAULT])
        environ = {**os.environ, clocks.SETTING: str(self._ahead_s), patience.SETTING: real}
        return cast("Any", self._origin.copied(command, out, log, environment=environ))


class RegionalProxy:
    """One of a region's proxies, in all its lives. `life` is None while none listens."""

    def __init__(self, region: "Region", number: int) -> None:
        self.region = region
        self.number = number
        self.name = f"{region.name}-{number}"
        self.old = region.old
        """Whether it runs the other commit."""

        self.folder = region.folder / f"proxy{number}"
        self.folder.mkdir(parents=True)
        self.state_dir = self.folder / "state"
        self.url = f"http://{region.address}:{_PORT + number}"
        self.admin_url = f"http://{region.address}:{_ADMIN_PORT + number}"
        self.life: Life | None = None
        self.open_at_kill: list[set[str]] = []
        self.counted: dict[str, float] = {}
        """What its earlier lives have counted."""

        self.counted_at_s: dict[int, float] = {}
        """When each of them was asked for that, before it was stopped in good order."""

        self._lives = 0
        self._child: Placed | None = None

    def begin(self, config: str, number: int) -> None:
        """Start a life; `number` tells it from all others of the run."""
        (self.folder / "config.toml").write_text(config)
        self._lives += 1
        command = [sys.executable, "-m", "warmroute_cli.main", "proxy", "--config", str(self.folder / "config.toml")]
        name = f"{self.name}-{self._lives}"
        origin = self.region.proxy_origin if self.old else self.region.origin
        self._child = Placed(origin, name, command, self.folder, self.region.ahead_s)
        self.life = Life(number, self.url, [self._child.pid])

    def listening(self) -> None:
        """Wait until it does."""
        assert self._child is not None
        self._child.listening(time.monotonic() + seconds(_LISTENS_WITHIN_S))

    def is_ready(self) -> bool:
        """Whether it says that requests should be sent to it."""
        try:
            return httpx.get(f"{self.url}/ready", verify=PLAIN, timeout=seconds(5)).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """SIGKILL, and a look at what it left open."""
        self.counted = self.count()
        assert self.life is not None
        assert self._child is not None
        self.life.dead = True  # before the signal: a connection that breaks from now on may have broken by it
        self.life = None
        with suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGKILL)
        stop_all([self._child], seconds(5.0))

    def stop(self) -> None:
        """End it in good order."""
        if self._child is not None and self.life is not None:
            self.counted_at_s[self.life.number] = time.monotonic()
            self.counted = self.count()
            self.life.dead = True
            self.life = None
            stop_all([self._child], seconds(30.0))

    def rows(self) -> list[dict[str, Any]]:
        """Its ledger file."""
        return read_rows(self.state_dir / LEDGER_FILE) if (self.state_dir / LEDGER_FILE).exists() else []

    def orders(self) -> set[str]:
        """The ids of rows of other regions that it still has to have voided; some may not exist."""
        lines = [line for path in self.state_dir.glob("voids*.jsonl") for line in path.read_text().splitlines()]
        orders = [json.loads(line) for line in lines]
        return {order["id"] for order in orders} - {order["id"] for order in orders if order["done"]}

    def count(self) -> dict[str, float]:
        """Its counters, with those of its earlier lives."""
        found = dict(self.counted)
        for name, value in self.metrics().items():
            if "_total" in name:
                found[name] = found.get(name, 0.0) + value
        return found

    def metrics(self) -> dict[str, float]:
        """Its page of metrics; empty where it does not answer."""
        headers = {"authorization": f"Bearer {self.region.keys['admin']}"}
        try:
            page = httpx.get(f"{self.admin_url}/metrics", headers=headers, verify=PLAIN, timeout=seconds(5)).text
        except httpx.HTTPError:
            return {}
        lines = [line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def complaints(self) -> list[str]:
        """Errors in its logs. That rows wait is none where the database is in another region, which may be cut off."""
        lines = [line for log in sorted(self.folder.glob("*.log")) for line in log.read_text().splitlines()]
        wrong = [line for line in lines if " ERROR " in line or "Traceback" in line]
        return [f"{self.name}: {line}" for line in wrong if not (_ROWS_WAIT in line and self.region.name != REGIONS[0])]


class Region:
    """All that runs in one region."""

    def __init__(
        self,
        network: Network,
        name: str,
        folder: Path,
        keys: Mapping[str, str],
        ahead_s: float,
        checkout: Path | None,
        *,
        real: bool = False,
    ) -> None:
        """`checkout`: of another commit, which its proxies run; `real`: its engine is an SGLang."""
        self.name = name
        self.old = checkout is not None
        self.address = network.address(name)
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self.keys = keys
        self.ahead_s = ahead_s
        self.enter = network.enter(name)
        self.origin = Origin(self.enter)
        self.proxy_origin = Origin(self.enter, checkout) if checkout is not None else self.origin
        self.redis = Redis(self.address, self.enter)
        self.proxies: list[RegionalProxy] = []
        self.engines: dict[str, Placed] = {}
        self.engine_lines: dict[str, dict[str, Any]] = {}
        self.links: dict[str, str] = {}
        self.sglang = RegionalServer(self.enter, self.folder, MODEL) if real else None
        self._engine_lives = 0
        self._relay: Placed | None = None

    def begin_relay(self) -> None:
        """Start it; the addresses of its links stand in the configuration of the proxies."""
        others = [*(each for each in REGIONS if each != self.name), _DATABASE]
        links = [word for other in others for word in ("--link", other)]
        command = [sys.executable, "-m", "warmroute_lab.wan", "--delay-ms", str(DELAY_MS), *links]
        self._relay = Placed(self.origin, "relay", command, self.folder)

    def begin_engines(self, speed: float, kv_tokens: int) -> None:
        """Start them; what earlier ones had cached is gone. The memory of SGLang has a size of its own."""
        if self.sglang is not None:
            self.sglang.start()
            return
        self._engine_lives += 1
        for name, role in ENGINES.items():
            command = [sys.executable, "-m", "warmroute_lab.engine", "--role", role]
            command += ["--engine-id", f"{self.name}-{name}", "--model", MODEL, "--speed", str(speed)]
            command += ["--port", "0", "--bootstrap-port", "0", "--kv-tokens", str(kv_tokens)]
            command += ["--request-log", str(self.folder / f"{name}.jsonl")]
            port = self.engine_lines.get(name)
            if port is not None:  # at the addresses that the proxies know
                command[command.index("--port") + 1] = str(port["url"]).rpartition(":")[2]
                command[command.index("--bootstrap-port") + 1] = str(port.get("bootstrap_port") or 0)
            self.engines[name] = Placed(self.origin, f"{name}-{self._engine_lives}", command, self.folder)

    def listening(self) -> None:
        """Wait for relay and engines."""
        deadline_s = time.monotonic() + seconds(_LISTENS_WITHIN_S)
        assert self._relay is not None
        self.links = self._relay.listening(deadline_s)["urls"]
        self.listening_engines()

    def listening_engines(self) -> None:
        """Wait for engines that were started."""
        if self.sglang is not None:
            self.sglang.wait_ready(start_deadline_s())
            self.engine_lines = {SGLANG: {"url": self.sglang.url}}
            return
        deadline_s = time.monotonic() + seconds(_LISTENS_WITHIN_S)
        self.engine_lines = {name: child.listening(deadline_s) for name, child in self.engines.items()}

    def tell_relay(self, link: str, **told: Any) -> None:
        """Where connections of a link go, and how long bytes take."""
        assert self._relay is not None
        self._relay.send({link: told})

    def lead_to(self, other: "Region", proxies: Sequence[RegionalProxy]) -> None:
        """Connections to another region go to these of its proxies."""
        self.tell_relay(other.name, targets=[proxy.url for proxy in proxies])

    def lead_to_database(self, url: str) -> None:
        """Connections to the database go there."""
        self.tell_relay(_DATABASE, targets=[url])

    def kill_engines(self) -> None:
        """SIGKILL to all of them."""
        if self.sglang is not None:
            self.sglang.kill()
        for child in self.engines.values():
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        stop_all(list(self.engines.values()), seconds(5.0))

    def slow_engines(self, delay_s: float, count: int) -> None:
        """Each holds its next answers back for so long."""
        for name in ENGINES:
            order = {"fault": "slow", "delay_s": delay_s, "count": count}
            self._ask_engine(name, "/engine/faults", order)

    def working(self) -> int:
        """How many requests its engines still have."""
        if self.sglang is not None:
            return self.sglang.under_way()
        return sum(int(self._ask_engine(name, "/engine/finished")["running"]) for name in self.engines)

    def served(self) -> dict[str, list[dict[str, Any]]]:
        """Engine -> the log of all requests that ended there."""
        logs = {name: self.folder / f"{name}.jsonl" for name in ENGINES}
        return {
            f"{self.name}-{name}": [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            for name, log in logs.items()
        }

    def config(self, number: int, regions: Sequence[str], policy: str, dsn: str, extra: str) -> str:
        """Of one of its proxies. `regions`: those of the fleet."""
        folder = self.proxies[number].folder
        files = {"ledger.dsn": dsn, "redis.url": self.redis.url, "secret": "0123456789abcdef0123456789abcdef"}
        for name, text in files.items():
            (folder / name).touch(0o600)
            (folder / name).write_text(text)
        others = [f'"http://{self.address}:{_PORT + each}"' for each in range(PROXIES) if each != number]
        parts = [
            f'[proxy]\nregion = "{self.name}"\nhost = "{self.address}"\nport = {_PORT + number}',
            f'admin_host = "{self.address}"\nadmin_port = {_ADMIN_PORT + number}\npolicy = "{policy}"',
            f'state_dir = "{folder / "state"}"\nother_proxies = [{", ".join(others)}]',
            f'admin_key_sha256 = "{_digest(self.keys["admin"])}"\n{extra}',
            '[secret]\nfile = "secret"\n[redis]\nurl_file = "redis.url"\ntimeout_s = 5.0',  # it stands beside
            '[ledger]\ndsn_file = "ledger.dsn"' if dsn else "",
            f"[limits]\n{_LIMITS if self.sglang is None else _LIMITS_OF_SGLANG}",
            *(
                f'[[region]]\nname = "{each}"\nurl = "{self.links.get(each, "")}"\nrtt_ms = {2 * DELAY_MS:g}'
                if each != self.name
                else f'[[region]]\nname = "{each}"\nurl = ""'
                for each in regions
            ),
            *(self._engine_table(name) for name in self.engine_lines),
            f'[[model]]\nname = "{MODEL}"\ninput = "0.60"\ncached = "0.10"\noutput = "3.00"',
            *(
                f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{_digest(self.keys[name])}"]\n'
                + (f"regions = {json.dumps([each for each in allowed if each in regions])}" if allowed else "")
                for name, allowed in TENANTS.items()
            ),
        ]
        return "\n".join(parts) + "\n"

    def stop(self) -> None:
        """All of it."""
        for proxy in self.proxies:
            proxy.stop()
        children = [*self.engines.values(), *([self._relay] if self._relay is not None else [])]
        stop_all(children, seconds(5.0))
        if self.sglang is not None:
            self.sglang.kill()
        self.redis.stop()
        self.origin.stop()
        if self.old:
            self.proxy_origin.stop()

    def _engine_table(self, name: str) -> str:
        line, role = self.engine_lines[name], ENGINES[name]
        lines = ["[[engine]]", f'id = "{self.name}-{name}"', f'url = "{line["url"]}"']
        lines += [f'region = "{self.name}"', f'role = "{role}"']
        if role == "prefill":
            lines += ['bootstrap_host = "127.0.0.1"', f"bootstrap_port = {line['bootstrap_port']}"]
        return "\n".join(lines)

    def _ask_engine(self, name: str, path: str, order: dict[str, Any] | None = None) -> dict[str, Any]:
        """Asked from inside the region, since engines listen there alone."""
        url = f"{self.engine_lines[name]['url']}{path}"
        found = asked_inside(self.enter, url, json.dumps(order) if order else "")
        return cast("dict[str, Any]", json.loads(found or b"{}") or {"running": 0})


class Fleet:
    """All regions."""

    def __init__(
        self,
        network: Network,
        folder: Path,
        ahead_s: Mapping[str, float],
        *,
        policy: str = "cost",
        checkout: Path | None = None,
        real: bool = False,
    ) -> None:
        """`ahead_s`: by how much the clock of a region is ahead; `checkout`: of another commit, which the proxies of
        the last region run; `real`: engines are SGLang.
        """
        self.network = network
        self.folder = folder
        self.keys = {name: new_api_key()[0] for name in (*TENANTS, "admin")}
        self.regions = {
            name: Region(
                network,
                name,
                folder,
                self.keys,
                ahead_s.get(name, 0.0),
                checkout if name == REGIONS[-1] else None,
                real=real,
            )
            for name in REGIONS
        }
        self.in_fleet = list(REGIONS)
        self.policy = policy
        self.extra = ""
        self.postgres: Postgres | None = None
        self.dsn = ""
        self._lives = 0

    @property
    def proxies(self) -> list[RegionalProxy]:
        """Of all regions."""
        return [proxy for region in self.regions.values() for proxy in region.proxies]

    def start(self, speed: float, kv_tokens: int, *, database: bool = True) -> None:
        """All of it."""
        regions = list(self.regions.values())
        for region in regions:
            region.begin_relay()
            region.begin_engines(speed, kv_tokens)
        stores: list[Server] = [region.redis for region in regions]
        if database:
            first = regions[0]
            self.postgres = Postgres(first.address, first.enter)
            stores.append(self.postgres)
        for store in stores:
            store.start()
        if self.postgres is not None:
            self.dsn = self.postgres.new_database()
            migrate(self.dsn)
        for region in regions:
            region.listening()
            region.proxies = [RegionalProxy(region, number) for number in range(PROXIES)]
            if self.postgres is not None:
                region.lead_to_database(f"http://{self.postgres.host}:{self.postgres.port}")
        self.start_proxies(self.proxies)

    def start_proxies(self, proxies: Sequence[RegionalProxy]) -> None:
        """Start proxies, and let the other regions' relays lead to them."""
        for proxy in proxies:
            self._lives += 1
            region = proxy.region
            config = region.config(proxy.number, self.in_fleet, self.policy, self._dsn_in(region), self.extra)
            proxy.begin(config, self._lives)
        for proxy in proxies:
            proxy.listening()
        self.balance()
        for proxy in proxies:
            until(proxy.is_ready, f"{proxy.name} is ready", 60.0)

    def balance(self) -> None:
        """The relays lead to the proxies that listen, as a balancer that asks for `/ready` does."""
        for region in self.regions.values():
            alive = [proxy for proxy in region.proxies if proxy.life is not None]
            for other in self.regions.values():
                if other is not region and alive:
                    other.lead_to(region, alive)

    def set_delays(self, here: str, there: str, there_ms: float, back_ms: float) -> None:
        """How long bytes take from one region to another, on connections that were opened here, and back."""
        self.regions[here].tell_relay(there, delays_ms=[there_ms, back_ms])

    def stop(self) -> None:
        """All of it. Nothing is left running."""
        for region in self.regions.values():
            region.stop()
        if self.postgres is not None:
            self.postgres.stop()

    def _dsn_in(self, region: Region) -> str:
        if self.postgres is None:
            return ""
        here, port = region.links[_DATABASE].rpartition("//")[2].split(":")
        return f"{self.dsn.rpartition('@')[0]}@{here}:{port}/{self.dsn.rpartition('/')[2]}"


def open_entries(state_dir: Path) -> int:
    """How many entries of a ledger file are open."""
    with sqlite3.connect(f"file:{state_dir / LEDGER_FILE}?mode=ro", uri=True) as file:
        return int(file.execute("SELECT count(*) FROM open_turn").fetchone()[0])


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


__all__ = ["CLIENTS", "REGIONS", "Fleet", "Region", "RegionalProxy"]
