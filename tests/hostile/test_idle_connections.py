"""Connections that nobody uses make way for those that come."""

import socket
from contextlib import ExitStack
from functools import partial

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, answer, chat, until

from .conftest import HOSTILE, INNOCENT, MakePlace


def is_closed(sock: socket.socket) -> bool:
    """Whether the proxy has closed it; it has sent nothing else."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


LONG = chat("long", stream=True, metadata={"script": '{"output_tokens": 20000}'})


def test_the_connection_that_was_idle_longest_is_closed_before_anybody_is_refused(make_place: MakePlace) -> None:
    place = make_place(1, limits="connections = 5")
    idle = []
    for _ in range(4):
        idle.append(place.proxy.send(chat("hello", max_tokens=1), HOSTILE))
        assert answer(idle[-1])[0] == 200  # and stays open
    busy = place.proxy.send(LONG, HOSTILE)
    until(lambda: place.engines[0].running() == 1, "a long answer is under way")
    for number in range(3):
        newest = place.proxy.send(chat(f"question {number}", max_tokens=1), INNOCENT)
        assert answer(newest)[0] == 200
        until(partial(is_closed, idle[number]), "the one that was idle longest is closed")
        idle.append(newest)
        assert not any(map(is_closed, idle[number + 1 :]))
    assert busy.recv(1)
    for each in (*idle, busy):
        each.close()


def test_one_that_is_in_use_is_never_closed_for_another(make_place: MakePlace) -> None:
    place = make_place(1, limits="connections = 2")
    busy = [place.proxy.send(LONG, tenant) for tenant in (HOSTILE, INNOCENT)]
    until(lambda: place.engines[0].running() == 2, "two long answers are under way")
    with pytest.raises(httpx.HTTPError):
        place.ask(INNOCENT, "hello")
    assert all(each.recv(1) for each in busy)
    for each in busy:
        each.close()


def test_one_tenant_leaves_connections_to_others(make_place: MakePlace) -> None:
    """A tenant has at most 7 times as many in use as are free: of 16, 14. What waits for its body counts, too."""
    place = make_place(1, limits="connections = 16")
    busy = [place.proxy.send(LONG, HOSTILE) for _ in range(7)]
    busy += [begin_body(place.proxy, HOSTILE) for _ in range(7)]
    refused = place.ask(HOSTILE, "hello")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "one tenant" in refused.json()["error"]["message"]
    assert place.ask(INNOCENT, "hello").status_code == 200
    busy.pop().close()
    until(lambda: place.ask(HOSTILE, "hello").status_code == 200, "the place of one that has left is free")
    for each in busy:
        each.close()


def test_an_open_websocket_counts_for_its_tenant(make_place: MakePlace) -> None:
    place = make_place(1, limits="connections = 16")
    url = place.proxy.url.replace("http", "ws") + "/v1/responses"
    with ExitStack() as stack:

        def open_one(tenant: int) -> ClientConnection:
            headers = {"authorization": f"Bearer {place.proxy.keys[tenant]}"}
            return stack.enter_context(connect(url, additional_headers=headers, open_timeout=seconds(20)))

        first = open_one(HOSTILE)
        for _ in range(13):
            open_one(HOSTILE)
        with pytest.raises(InvalidStatus) as refused:
            open_one(HOSTILE)
        assert refused.value.response.status_code == 429
        assert place.ask(HOSTILE, "hello").status_code == 429
        open_one(INNOCENT).close()
        assert place.ask(INNOCENT, "hello").status_code == 200
        first.close()
        until(lambda: place.ask(HOSTILE, "hello").status_code == 200, "the place of one that was closed is free")


def begin_body(proxy: ProxyProcess, tenant: int) -> socket.socket:
    """A request whose body never comes, once the proxy has read its head."""
    host, port = proxy.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=seconds(20))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {proxy.keys[tenant]}\r\n"
    sock.sendall(f"{head}content-length: 100\r\nexpect: 100-continue\r\n\r\n".encode())
    assert sock.recv(100).startswith(b"HTTP/1.1 100 ")
    return sock
