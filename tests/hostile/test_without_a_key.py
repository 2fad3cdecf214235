"""Connections without a key make way for others, whatever their clients do with them: for turns, probes and scrapes."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, answer, chat, until
from warmroute_cli.processes import stop_all
from warmroute_proxy.server.base.descriptors import ADMIN_CONNECTIONS

from .conftest import HOSTILE, INNOCENT
from .test_idle_connections import is_closed

pytestmark = pytest.mark.full

CONNECTIONS = 24
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
OPEN = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"

NOBODYS: dict[str, bytes] = {
    "nothing": b"",
    "half a line": b"PO",
    "half a head": f"{HEAD}x-a: ".encode(),
    "half a head with a key": f"{HEAD}authorization: Bearer ".encode(),
    "half a body, with a wrong key": f"{HEAD}authorization: Bearer x\r\ncontent-length: 9\r\n\r\n".encode(),
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00",
    "answers that nobody reads": OPEN * 400,
    "half a preflight": b"OPTIONS /v1/chat/completions HTTP/1.1\r\norigin: https://a.b\r\n",
}
TENANTS: dict[str, bytes] = {
    "nothing": b"",
    "half a head": f"{HEAD}x-a: ".encode(),
    "a request without a key": OPEN,
    "answers that nobody reads": OPEN * 400,
    "what is no request": b"\x00",
}


class Port:
    """A port under attack."""

    def __init__(self, proxy: ProxyProcess, url: str) -> None:
        self.proxy = proxy
        self.url = httpx.URL(url)
        self.held: list[socket.socket] = []

    def connect(self) -> socket.socket:
        return socket.create_connection((self.url.host, self.url.port or 80), timeout=seconds(20))

    def hold(self, sent: bytes, begin: Callable[[], socket.socket] | None = None) -> None:
        """One more connection, on which this is sent, as far as the proxy takes it."""
        sock = (begin or self.connect)()
        self.held.append(sock)
        sock.setblocking(False)
        try:
            while sent:
                sent = sent[sock.send(sent) :]
        except OSError:  # it takes no more
            pass

    def asked_once(self) -> socket.socket:
        """A connection on which the hostile tenant has had an answer."""
        sock = self.proxy.send(chat("hello", max_tokens=1), HOSTILE)
        assert answer(sock)[0] == 200
        return sock

    def close(self) -> None:
        for sock in self.held:
            sock.close()
        self.held.clear()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("without_a_key")
    engine = EngineProcess(folder, "e0", "aggregated")
    limits = f"connections = {CONNECTIONS}"
    proxy = ProxyProcess(folder / "p", [engine.listening().toml("east")], limits=limits)
    try:
        yield proxy.start()
    finally:
        proxy.stop()
        stop_all([engine.child], seconds(5.0))


@pytest.fixture
def public(proxy: ProxyProcess) -> Iterator[Port]:
    port = Port(proxy, proxy.url)
    yield port
    port.close()


def turn(proxy: ProxyProcess, client: httpx.Client) -> None:
    body = json.dumps(chat("hello", max_tokens=1)).encode()
    found = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 200, (found.text, proxy.url)


def kept(client: httpx.Client) -> list[object]:
    """The connections that a client keeps."""
    return list(client._transport._pool.connections)  # type: ignore[attr-defined]


def closed_without_key(proxy: ProxyProcess, port: str) -> float:
    return proxy.metric(f'warmroute_connections_closed_total{{port="{port}",reason="no_key"}} ')


@pytest.mark.parametrize("sent", NOBODYS)
def test_turns_and_probes_get_their_answers_beside_connections_without_a_key(public: Port, sent: str) -> None:
    proxy = public.proxy
    before = closed_without_key(proxy, "public")
    with proxy.client(INNOCENT) as client:
        turn(proxy, client)
        connections = kept(client)
        for _ in range(2 * CONNECTIONS):
            public.hold(NOBODYS[sent])
        for _ in range(3):
            public.hold(NOBODYS[sent])
            turn(proxy, client)  # on the connection that it kept
            with proxy.client(INNOCENT) as another:
                turn(proxy, another)
            assert httpx.get(f"{proxy.url}/health", timeout=seconds(20)).status_code == 200
        assert kept(client) == connections
    assert closed_without_key(proxy, "public") > before
    until(lambda: "the public port is full" in log_of(proxy), "the log says it")


@pytest.mark.parametrize("sent", TENANTS)
def test_a_connection_that_had_a_key_once_is_no_better(public: Port, sent: str) -> None:
    """Of the tenants' idle connections those of the tenant with the most go first."""
    proxy = public.proxy
    with proxy.client(INNOCENT) as client:
        turn(proxy, client)
        connections = kept(client)
        for _ in range(CONNECTIONS + 8):
            public.hold(TENANTS[sent], public.asked_once)
        for _ in range(3):
            public.hold(TENANTS[sent], public.asked_once)
            turn(proxy, client)
            with proxy.client(INNOCENT) as another:
                turn(proxy, another)
            assert httpx.get(f"{proxy.url}/health", timeout=seconds(20)).status_code == 200
        assert kept(client) == connections


@pytest.mark.parametrize("sent", NOBODYS)
def test_a_scrape_gets_its_answer_beside_connections_without_a_key(proxy: ProxyProcess, sent: str) -> None:
    port = Port(proxy, str(proxy.line["admin_url"]))
    try:
        before = closed_without_key(proxy, "admin")
        with proxy.admin() as admin:
            assert admin.get("/metrics").status_code == 200
            connections = kept(admin)
            for _ in range(2 * ADMIN_CONNECTIONS):
                port.hold(NOBODYS[sent])
            for _ in range(3):
                port.hold(NOBODYS[sent])
                assert closed_without_key(proxy, "admin") > before  # scraped over a new connection
                assert admin.get("/metrics").status_code == 200
            assert kept(admin) == connections
    finally:
        port.close()


def test_the_oldest_connection_without_a_key_goes_first(public: Port) -> None:
    for _ in range(CONNECTIONS):
        public.hold(NOBODYS["half a head"])
    first = public.held[0]
    with public.proxy.client(INNOCENT) as client:
        turn(public.proxy, client)
    until(lambda: is_closed(first), "the oldest is closed")
    assert not any(map(is_closed, public.held[-CONNECTIONS // 2 :]))


def log_of(proxy: ProxyProcess) -> str:
    return "".join(path.read_text() for path in proxy.folder.glob("*.log"))
