"""What large bodies leave in the buffers of TLS connections is counted, and bounded for each tenant."""

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.integration.proxy.test_tls import SecureProxy
from tests.subjects.processes import chat, until
from tests.subjects.scripted import ScriptedEngine
from warmroute_proxy.server.http.tls_buffers import BUFFERS_BYTES

from .conftest import HOSTILE, INNOCENT
from .test_memory import answered

MEMORY_BYTES = 16 * BUFFERS_BYTES
LARGE = 900_000
KEPT = 2
"""Of one tenant's: half of a quarter of the memory."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureProxy]:
    limits = f"body_memory_bytes = {MEMORY_BYTES}\nbody_bytes = 1000000\nkept_prompt_bytes = 0"
    folder = tmp_path_factory.mktemp("tls") / "p"
    with ScriptedEngine("e0", answered) as engine, SecureProxy(folder, [engine.toml()], limits=limits) as started:
        yield started


def connect(proxy: SecureProxy) -> http.client.HTTPSConnection:
    address = urlsplit(proxy.url)
    return http.client.HTTPSConnection(address.hostname or "", address.port, context=proxy.trusting, timeout=60)


def ask(proxy: SecureProxy, connection: http.client.HTTPSConnection, tenant: int, size: int) -> bool:
    """Ask with so much text. Returns whether the connection is kept."""
    headers = {"authorization": f"Bearer {proxy.keys[tenant]}", "content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(chat("x" * size)).encode(), headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    return answer.getheader("connection") != "close"


def counted(proxy: SecureProxy) -> float:
    return proxy.metric("warmroute_body_memory_bytes ")


def test_connections_that_were_used_for_much_count_until_they_close(proxy: SecureProxy) -> None:
    connections = [connect(proxy) for _ in range(8)]
    for _ in range(10):  # how much one read brings, and so which of them count, is the system's to say
        for each in connections:
            ask(proxy, each, HOSTILE, LARGE)
        assert counted(proxy) <= KEPT * BUFFERS_BYTES
    until(lambda: not all(ask(proxy, each, HOSTILE, LARGE) for each in connections), "others are closed")
    assert counted(proxy) == KEPT * BUFFERS_BYTES
    innocent = connect(proxy)
    until(
        lambda: ask(proxy, innocent, INNOCENT, LARGE) and counted(proxy) > KEPT * BUFFERS_BYTES, "there is place left"
    )
    for each in (*connections, innocent):
        each.close()
    until(lambda: counted(proxy) == 0, "all is given back")


def test_small_requests_keep_their_connections(proxy: SecureProxy) -> None:
    connections = [connect(proxy) for _ in range(8)]
    assert all(ask(proxy, each, HOSTILE, 1000) for each in connections)
    until(lambda: counted(proxy) == 0, "nothing is counted")
    for each in connections:
        each.close()
