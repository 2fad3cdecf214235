"""Real engines and a real proxy for one test module, each a process of its own on a port the system assigned."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx

from tests.machine import seconds
from tests.subjects.copies import Copy, OtherCopy
from tests.subjects.stopped import Stopped
from warmroute_cli.processes import Child, stop_all
from warmroute_proxy.server.base.secrets import new_api_key
from warmroute_proxy.server.ledger.ledger import read_rows

DEADLINE_S = 20.0
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of plain HTTP: one of their own is 20 ms of CPU for each client, for authorities that nobody asks."""
KEEPS = httpx.Limits(keepalive_expiry=None)
"""A client keeps its connections: httpx itself closes one after 5 s without a request, which a busy machine needs."""


def until(condition: Callable[[], Any], what: str, timeout_s: float = DEADLINE_S) -> Any:
    """Poll until the condition gives something true; `timeout_s` is of an idle machine.

    What is not there at once is looked for less often: a look can be a request, so seconds of them keep a core busy.
    """
    timeout_s = seconds(timeout_s)
    begun = now = time.monotonic()
    while True:
        if found := condition():
            return found
        if now >= begun + timeout_s:  # so it was looked for behind the limit, too
            raise AssertionError(f"not within {timeout_s:.1f} s: {what}")
        time.sleep(min(0.05, 0.01 + (now - begun) / 20))
        now = time.monotonic()


def files_in(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Each file below a folder and what is in it; not those that a process removes meanwhile."""
    for path in folder.rglob("*"):
        if path.is_file():
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            yield path, data


class EngineProcess(Stopped):
    """An embedded engine."""

    def __init__(self, folder: Path, engine_id: str, role: str, *options: str, speed: float = 20.0) -> None:
        self.id = engine_id
        self.role = role
        command = [sys.executable, "-m", "warmroute_lab.engine", "--role", role, "--engine-id", engine_id]
        command += ["--port", "0", "--bootstrap-port", "0", "--speed", str(speed), "--model", "kimi-k2.5", *options]
        self.child: Child = Copy(engine_id, command, folder)
        self.line: dict[str, Any] = {}

    def begin(self) -> None:
        self.listening()

    def stop(self) -> None:
        stop_all([self.child], seconds(5.0))

    def listening(self) -> "EngineProcess":
        if not self.line:
            self.line = self.child.listening(time.monotonic() + seconds(DEADLINE_S))
        return self

    @property
    def url(self) -> str:
        return str(self.line["url"])

    def log(self) -> dict[str, Any]:
        """The engine's own account: how many requests run, and which have finished."""
        with urllib.request.urlopen(f"{self.url}/engine/finished", timeout=seconds(20)) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def running(self) -> int:
        return int(self.log()["running"])

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """It stands still, so that what it does goes on afterwards."""
        os.kill(self.child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.child.pid, signal.SIGCONT)

    def toml(self, region: str) -> str:
        table = f'[[engine]]\nid = "{self.id}"\nurl = "{self.url}"\nregion = "{region}"\nrole = "{self.role}"'
        if self.role == "prefill":
            table += f'\nbootstrap_host = "127.0.0.1"\nbootstrap_port = {self.line["bootstrap_port"]}'
        return table


class ProxyProcess(Stopped):
    """A proxy in front of some engines, with two tenants that share nothing."""

    program: tuple[str, ...] = ("-m", "warmroute_cli.main")
    command = "proxy"

    def __init__(
        self,
        folder: Path,
        engines: Sequence[str],
        *,
        region: str = "east",
        peer: tuple[str, str] | None = None,
        keys: tuple[str, str] | None = None,
        limits: str = "",
        policy: str = "cost",
        second: str = "",
        extra: str = "",
        model: str = "",
        fresh: bool = False,
    ) -> None:
        """`engines`: their TOML tables; `peer`: another region's name and proxy url; `second`: keys of that tenant;
        `extra`: lines of [proxy]; `model`: of the [[model]] that `chat` asks for; `fresh`: by a Python of its own, not
        as a copy."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.region = region
        self.keys = keys or (new_api_key()[0], new_api_key()[0])
        self.state_dir = folder / region
        self.config = folder / f"{region}.toml"
        self._text = (engines, peer, limits, policy, second, extra, model)
        self.child: Child | None = None
        self.line: dict[str, Any] = {}
        self.starts = 0
        self.fresh = fresh
        self.beside = keys is not None

    def begin(self) -> None:
        if self.child is None:
            self.start()

    def start(self, port: int = 0) -> "ProxyProcess":
        self.write_config(port)
        self.starts += 1
        command = [sys.executable, *self.program, self.command, "--config", str(self.config)]
        copy = OtherCopy if self.beside or self.state_dir.exists() else Copy
        make = Child if self.fresh else copy
        self.child = make(f"{self.region}-proxy-{self.starts}", command, self.folder)
        self.line = self.child.listening(time.monotonic() + seconds(DEADLINE_S))
        until(self.is_ready, "the proxy is ready")
        return self

    def write_config(self, port: int = 0) -> Path:
        self.config.write_text(self._render(port))
        return self.config

    def is_ready(self) -> bool:
        return httpx.get(f"{self.url}/ready", verify=PLAIN).status_code == 200

    def sees(self, region: str) -> "ProxyProcess":
        """Wait until it knows that another region is up: before, it forwards nothing there.

        Each process of a proxy probes for itself, and the system chooses which one answers a connection.
        """
        line = f'warmroute_region_up{{peer="{region}"}} 1'
        connections = 1 if len(self.line.get("processes", ())) < 2 else 24

        def is_up() -> bool:
            with self.admin() as admin:
                return line in admin.get("/metrics").text

        until(lambda: all(is_up() for _ in range(connections)), f"{region} is up for {self.region}")
        return self

    def kill(self) -> None:
        assert self.child is not None
        with contextlib.suppress(ProcessLookupError):  # who has killed its processes one by one calls this, too
            os.kill(self.child.pid, signal.SIGKILL)
        stop_all([self.child], seconds(5.0))

    def stop(self) -> None:
        if self.child is not None:
            stop_all([self.child], seconds(15.0))  # so that none is killed before it has written all that it has to

    @property
    def url(self) -> str:
        return str(self.line["url"])

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def admin_key(self) -> str:
        return self.keys[0]

    def client(self, tenant: int = 0) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=seconds(30), verify=PLAIN, limits=KEEPS)

    def send(self, body: dict[str, Any], tenant: int = 0, headers: dict[str, str] | None = None) -> socket.socket:
        """A request whose answer is not read yet; `answer` does that."""
        text = json.dumps(body).encode()
        url = httpx.URL(self.url)
        sock = socket.create_connection((url.host, url.port or 80), timeout=seconds(60))
        given = {"host": "x", "authorization": f"Bearer {self.keys[tenant]}", "content-length": len(text)}
        head = "".join(f"{name}: {value}\r\n" for name, value in (given | (headers or {})).items())
        sock.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + text)
        return sock

    def admin(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.admin_key}"}
        url = str(self.line["admin_url"])
        return httpx.Client(base_url=url, headers=headers, timeout=seconds(10), verify=PLAIN, limits=KEEPS)

    def metrics(self) -> str:
        with self.admin() as admin:
            return admin.get("/metrics").text

    def metric(self, start: str) -> float:
        """The first sample whose line begins with `start`; 0 if there is none."""
        lines = self.metrics().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(start)), 0.0)

    def rows(self, expected: int | None = None) -> list[dict[str, Any]]:
        """The ledger's rows, once there are as many as expected (the journal is folded twice a second)."""

        def read() -> list[dict[str, Any]]:
            found = read_rows(self.state_dir / "ledger.sqlite")
            return found if expected is None or len(found) >= expected else []

        rows: list[dict[str, Any]] = until(read, f"{expected} rows") if expected else read()
        return rows

    def row(self, receipt_id: str) -> dict[str, Any]:
        """The ledger's row of a receipt, once it is there."""
        found: list[dict[str, Any]] = until(
            lambda: [row for row in read_rows(self.state_dir / "ledger.sqlite") if row["id"] == receipt_id],
            f"the row of {receipt_id}",
        )
        return found[0]

    def turns(self) -> int:
        """How many turns of the first tenant have ended, to the last one."""
        with self.client() as client:
            usage = client.get("/v1/usage").raise_for_status().json()
        assert usage["complete"]
        return int(usage["turns"])

    def engine_states(self) -> dict[str, str]:
        """Engine -> `up`, or what it is instead."""
        with self.admin() as admin:
            return {
                each["id"]: each["state"] for each in admin.get("/admin/engines").raise_for_status().json()["engines"]
            }

    def workers(self) -> dict[str, dict[str, Any]]:
        """What it knows of each worker, by name."""
        with self.admin() as admin:
            found: dict[str, dict[str, Any]] = admin.get("/admin/workers").raise_for_status().json()["workers"]
        return found

    def written(self) -> str:
        """Everything that the proxy has written anywhere, but for files that go while they are read."""
        return b"".join(text for path, text in files_in(self.folder) if path != self.config).decode("latin-1")

    def _render(self, port: int) -> str:
        engines, peer, limits, policy, second, extra, model = self._text
        digests = [hashlib.sha256(key.encode()).hexdigest() for key in self.keys]
        secret = self.folder.parent / "secret"
        if not secret.exists():
            secret.touch(0o600)
            secret.write_text("0123456789abcdef0123456789abcdef")
        parts = [
            f'[proxy]\nregion = "{self.region}"\nport = {port}\nstate_dir = "{self.state_dir}"\npolicy = "{policy}"',
            f'admin_key_sha256 = "{digests[0]}"\n{extra}',
            f'[secret]\nfile = "{secret}"',
            f"[limits]\n{limits}",
            f'[[region]]\nname = "{self.region}"\nurl = ""',
            f'[[region]]\nname = "{peer[0]}"\nurl = "{peer[1]}"\nrtt_ms = 20' if peer else "",
            *engines,
            '[[model]]\nname = "kimi-k2.5"\naliases = ["kimi", "claude-*", "gpt-5*", "gemini-2*"]',
            f'input = "0.60"\ncached = "0.10"\noutput = "3.00"\nvocabulary_tokens = 2048\n{model}',
            '[[model]]\nname = "other"\ninput = "1"\ncached = "0.1"\noutput = "1"\ncontinue_broken = true',
            f'[[tenant]]\nname = "first"\nkey_sha256 = ["{digests[0]}"]',
            f'[[tenant]]\nname = "second"\nkey_sha256 = ["{digests[1]}"]\nmodels = ["kimi-k2.5"]',
            second,
            'share_group = "first"' if any('kind = "openai"' in engine for engine in engines) else "",
        ]
        return "\n".join(parts) + "\n"


def answer(sock: socket.socket) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of what was sent with `ProxyProcess.send`."""
    response = HTTPResponse(sock)
    response.begin()
    body = response.read().decode()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, body


def chat(text: str = "hello", *, turns: int = 1, **fields: Any) -> dict[str, Any]:
    """A chat body: a long system prompt and so many turns of a conversation."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a careful assistant. " * 60}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{text} {turn}"})
        if turn < turns - 1:
            messages.append({"role": "assistant", "content": f"answer {turn}"})
    return {"model": "kimi-k2.5", "messages": messages, **fields}


def events(text: str) -> list[dict[str, Any]]:
    """The JSON events of a stream, without `[DONE]`."""
    payloads = [block[6:] for block in text.split("\n\n") if block.startswith("data: ")]
    return [json.loads(payload) for payload in payloads if payload != "[DONE]"]
