"""Connections without a key make way for others, whatever their clients do with them: for turns, probes and scrapes."""

import json
import socket
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, answer, chat, until
from tests.subjects.stopped import Stopped
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


class Port(Stopped):
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

    def stop(self) -> None:
        for sock in self.held:
            sock.close()


@pytest.fixture(scope="module")
def proxy(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    limits = f"connections = {CONNECTIONS}"
    folder = tmp_path_factory.mktemp("without_a_key") / "p"
    with ProxyProcess(folder, [engine.toml("east")], limits=limits) as started:
        yield started


@pytest.fixture
def public(proxy: ProxyProcess) -> Iterator[Port]:
    with Port(proxy, proxy.url) as port:
        yield port


def turn(proxy: ProxyProcess, client: httpx.Client) -> None:
    body = json.dumps(chat("hello", max_tokens=1)).encode()
    found = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 200, (found.text, proxy.url)


def kept(client: httpx.Client) -> list[object]:
    """The connections that a client keeps."""
    return list(client._transport._pool.connections)  # type: ignore[attr-defined]


def closed_without_key(proxy: ProxyProcess, port: str) -> float:
    return proxy.metric(f'warmroute_connections_closed_total{{port="{port}",reason="no_key"}} ')


def check_turns_and_probes(port: Port, count: int, hold: Callable[[], None]) -> None:
    """A kept connection stays, and others are answered, beside so many that are held, and while more come."""
    proxy = port.proxy
    with proxy.client(INNOCENT) as client:
        turn(proxy, client)
        connections = kept(client)
        for _ in range(count):
            hold()
        for _ in range(3):
            hold()
            turn(proxy, client)
            with proxy.client(INNOCENT) as another:
                turn(proxy, another)
            assert httpx.get(f"{proxy.url}/health", timeout=seconds(20)).status_code == 200
        assert kept(client) == connections


@pytest.mark.parametrize("sent", NOBODYS)
def test_turns_and_probes_get_their_answers_beside_connections_without_a_key(public: Port, sent: str) -> None:
    before = closed_without_key(public.proxy, "public")
    check_turns_and_probes(public, 2 * CONNECTIONS, partial(public.hold, NOBODYS[sent]))
    assert closed_without_key(public.proxy, "public") > before
    until(lambda: "the public port is full" in public.proxy.written(), "the log says it")


@pytest.mark.parametrize("sent", TENANTS)
def test_a_connection_that_had_a_key_once_is_no_better(public: Port, sent: str) -> None:
    """Of the tenants' idle connections those of the tenant with the most go first."""
    check_turns_and_probes(public, CONNECTIONS + 8, partial(public.hold, TENANTS[sent], public.asked_once))


@pytest.mark.parametrize("sent", NOBODYS)
def test_a_scrape_gets_its_answer_beside_connections_without_a_key(proxy: ProxyProcess, sent: str) -> None:
    with Port(proxy, str(proxy.line["admin_url"])) as port, proxy.admin() as admin:
        before = closed_without_key(proxy, "admin")
        assert admin.get("/metrics").status_code == 200
        connections = kept(admin)
        for _ in range(2 * ADMIN_CONNECTIONS):
            port.hold(NOBODYS[sent])
        for _ in range(3):
            port.hold(NOBODYS[sent])
            assert closed_without_key(proxy, "admin") > before  # scraped over a new connection
            assert admin.get("/metrics").status_code == 200
        assert kept(admin) == connections


def test_the_oldest_connection_without_a_key_goes_first(public: Port) -> None:
    for _ in range(CONNECTIONS):
        public.hold(NOBODYS["half a head"])
    first = public.held[0]
    with public.proxy.client(INNOCENT) as client:
        turn(public.proxy, client)
    until(lambda: is_closed(first), "the oldest is closed")
    assert not any(map(is_closed, public.held[-CONNECTIONS // 2 :]))
