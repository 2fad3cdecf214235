"""Connections that nobody uses make way for those that come."""

import socket
from functools import partial

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, answer, chat, until

from .conftest import HOSTILE, INNOCENT, MakePlace


def open_to(proxy: ProxyProcess, count: int) -> list[socket.socket]:
    """Connections on which nothing is asked."""
    host, port = proxy.url.removeprefix("http://").split(":")
    return [socket.create_connection((host, int(port)), timeout=seconds(20)) for _ in range(count)]


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
    first = place.proxy.send(chat("hello", max_tokens=1), HOSTILE)
    assert answer(first)[0] == 200  # and stays open
    busy = place.proxy.send(LONG, HOSTILE)
    until(lambda: place.engines[0].running() == 1, "a long answer is under way")
    idle = [first, *open_to(place.proxy, 3)]
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
    busy = [place.proxy.send(LONG, HOSTILE) for _ in range(2)]
    until(lambda: place.engines[0].running() == 2, "two long answers are under way")
    with pytest.raises(httpx.HTTPError):
        place.ask(INNOCENT, "hello")
    assert all(each.recv(1) for each in busy)
    for each in busy:
        each.close()
