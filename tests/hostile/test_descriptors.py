"""File descriptors are divided: a crowd of clients takes none that engines and the ledger need."""

import json
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.integration.proxy.test_tls import SecureProxy
from tests.machine import seconds
from tests.subjects.processes import DEADLINE_S, EngineProcess, ProxyProcess, answer, chat, until
from warmroute_cli.processes import Child


class LimitedProxy(ProxyProcess):
    """A proxy that is started with few file descriptors."""

    soft = 256
    hard = 256

    def start(self, port: int = 0) -> "LimitedProxy":
        self.write_config(port)
        command = [sys.executable, "-m", "warmroute_cli.main", "proxy", "--config", str(self.config)]
        limits = f'ulimit -Sn {self.soft} && ulimit -Hn {self.hard} && exec "$@"'
        self.child = Child("limited", ["bash", "-c", limits, "proxy", *command], self.folder)
        self.line = self.child.listening(time.monotonic() + seconds(DEADLINE_S))
        until(self.is_ready, "the proxy is ready")
        return self

    def metric(self, start: str) -> float:
        assert f"\n{start}" in self.metrics()
        return super().metric(start)


class RaisingProxy(LimitedProxy):
    """One that may raise its limit."""

    hard = 8192


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path_factory.mktemp("engine"), "e0", "aggregated", speed=5.0) as started:
        yield started


def streams(proxy: ProxyProcess, number: int) -> list[socket.socket]:
    """So many clients at once, each with a stream that it does not read yet."""
    clients = []
    for each in range(number):
        with suppress(OSError):
            clients.append(proxy.send(chat(f"stream {each}", stream=True, max_tokens=20)))
    return clients


def statuses(clients: list[socket.socket]) -> list[int]:
    """The statuses of whole answers; those that were closed without one are left out."""
    found = []
    for client in clients:
        with client, suppress(OSError, httpx.HTTPError, ValueError):
            client.settimeout(seconds(20))
            if client.recv(1, socket.MSG_PEEK):
                found.append(answer(client)[0])
    return found


def test_a_low_hard_limit_lowers_the_connections_and_nothing_else_fails(tmp_path: Path, engine: EngineProcess) -> None:
    with LimitedProxy(tmp_path / "p", [engine.toml("east")]) as proxy:
        found = statuses(streams(proxy, 300))
        assert found.count(200) >= 35
        assert set(found) <= {200, 429}, "no descriptor of an engine is taken by a client; one tenant leaves some free"
        with proxy.client(1) as client:
            until(lambda: served(client), "another tenant is served once they have left")
        proxy.rows(found.count(200) + 1)
        assert proxy.metric("warmroute_engine_up") == 1
        assert proxy.metric("warmroute_worker_failures_in_a_row") == 0
        assert "clients can be connected, not 4096" in proxy.written()


def served(client: httpx.Client) -> bool:
    with suppress(httpx.HTTPError):
        return client.post("/v1/chat/completions", json=chat(max_tokens=2)).status_code == 200
    return False


def test_the_soft_limit_is_raised(tmp_path: Path, engine: EngineProcess) -> None:
    with RaisingProxy(tmp_path / "p", [engine.toml("east")]) as proxy:
        assert statuses(streams(proxy, 300)) == [200] * 300
        assert proxy.child is not None
        soft, _ = resource.prlimit(proxy.child.pid, resource.RLIMIT_NOFILE)
        assert soft == RaisingProxy.hard, "4096 connections want more than there are"


def test_no_engine_is_blamed_where_the_proxy_has_no_descriptor(tmp_path: Path, engine: EngineProcess) -> None:
    with LimitedProxy(tmp_path / "p", [engine.toml("east")]) as proxy, ExitStack() as stack:
        assert proxy.child is not None
        pid, address = proxy.child.pid, ("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        fds = Path(f"/proc/{pid}/fd")
        clients = [stack.enter_context(socket.create_connection(address, timeout=seconds(20))) for _ in range(20)]
        for client in clients:  # so that each is accepted
            client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert answer(client)[0] == 200
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(int(fd.name) for fd in fds.iterdir()) + 1, 256))
        body = json.dumps(chat("hello", max_tokens=20)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {proxy.keys[0]}\r\n"
        for client in clients:
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answers = [answer(client) for client in clients]
        refused = [each for each in answers if each[0] != 200]
        assert refused
        for status, headers, text in refused:
            assert (status, headers["retry-after"]) == (503, "1")
            assert json.loads(text)["error"]["code"] == "overloaded"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        stack.close()
        with proxy.client(1) as other:
            assert served(other), "at once"
        assert proxy.metric("warmroute_engine_up") == 1
        assert proxy.metric("warmroute_worker_failures_in_a_row") == 0
        assert " is down" not in proxy.written()


def test_handshakes_are_connections(tmp_path: Path, engine: EngineProcess) -> None:
    limits = "connections = 20"
    with SecureProxy(tmp_path / "p", [engine.toml("east")], limits=limits) as proxy, ExitStack() as stack:
        clients: list[socket.socket] = []
        for _ in range(60):
            clients.append(stack.enter_context(socket.create_connection(proxy.address, timeout=seconds(20))))
            clients[-1].setblocking(False)
        until(lambda: sum(map(closed, clients)) >= 40, "those beyond the limit are closed")
        assert sum(map(closed, clients)) <= 41  # one may be that of the question whether it is ready
        stack.close()
        with proxy.client() as other:
            until(lambda: served(other), "others come in once they have left")


def closed(client: socket.socket) -> bool:
    """Whether the proxy has closed a connection."""
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
