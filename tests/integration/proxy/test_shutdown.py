"""A proxy that is told to end (SIGTERM), with streams open: what it finishes, what it refuses, what it breaks off."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, events, until
from tests.subjects.scripted import Handler, ScriptedEngine, delta

from .test_faults import Stream


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Slow enough for a stream to be open when signals come: some 300 tokens take 3 s."""
    with EngineProcess(tmp_path_factory.mktemp("engine"), "e0", "aggregated", speed=2.0) as found:
        yield found


@contextlib.contextmanager
def serving(folder: Path, engine: EngineProcess, grace_s: float) -> Iterator[ProxyProcess]:
    limits = f"shutdown_grace_s = {grace_s}\nhead_timeout_s = 3600"  # a head that has begun may be late
    with ProxyProcess(folder / "p", [engine.toml("east")], limits=limits) as proxy:
        yield proxy


def streamed(proxy: ProxyProcess, text: str, tokens: int) -> Stream:
    """A turn that has begun."""
    found = Stream(proxy, chat(text, stream=True, max_tokens=tokens, ignore_eos=True))
    assert found.first.wait(seconds(60))
    return found


def rest(stream: Stream) -> tuple[str, bool]:
    """All of it, and whether it ended in good order."""
    stream.join(seconds(60))
    return stream.text, stream.clean


def begin(proxy: ProxyProcess, head: str) -> socket.socket:
    """A connection on which a request has begun and its head not ended: not idle, so that no time runs out."""
    where = urlsplit(proxy.url)
    found = socket.create_connection((where.hostname, where.port), timeout=seconds(20))
    found.sendall(f"{head}\r\nhost: x\r\n".encode())
    return found


def finish(connection: socket.socket, rest: bytes) -> tuple[int, dict[str, str], Any]:
    connection.sendall(rest)
    response = http.client.HTTPResponse(connection)
    response.begin()
    found = response.status, {name.lower(): value for name, value in response.getheaders()}, json.loads(response.read())
    assert connection.recv(1) == b"", "the connection is closed behind the answer"
    connection.close()
    return found


def refuses(proxy: ProxyProcess) -> bool:
    where = urlsplit(proxy.url)
    try:
        socket.create_connection((where.hostname, where.port), timeout=seconds(20)).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it was still in the listener's queue
        return False
    return False


def signalled(proxy: ProxyProcess, number: signal.Signals = signal.SIGTERM) -> None:
    assert proxy.child is not None
    os.kill(proxy.child.pid, number)
    until(lambda: refuses(proxy), "no new connection is taken")


def ended(proxy: ProxyProcess) -> bool:
    return proxy.child is not None and not proxy.child.running()


def stop_twice(proxy: ProxyProcess) -> None:
    """Two signals at the same time, as systemd and a parent send them: they are one."""
    assert proxy.child is not None
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):  # it sees both when it goes on
        os.kill(proxy.child.pid, number)
    until(lambda: refuses(proxy), "no new connection is taken")


def told(proxy: ProxyProcess, number: signal.Signals) -> bool:
    """Tell it again; whether it has ended."""
    assert proxy.child is not None
    if not ended(proxy):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(proxy.child.pid, number)
    return ended(proxy)


def test_a_proxy_without_requests_does_not_wait_for_its_grace(tmp_path: Path, engine: EngineProcess) -> None:
    with serving(tmp_path, engine, 600) as proxy:
        signalled(proxy)
        until(lambda: ended(proxy), "it has ended")


def test_streams_end_and_kept_connections_hear_that_it_goes(tmp_path: Path, engine: EngineProcess) -> None:
    with serving(tmp_path, engine, 600) as proxy:
        probe = begin(proxy, "GET /ready HTTP/1.1")
        asker = begin(proxy, f"POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer {proxy.keys[0]}")
        stream = streamed(proxy, "open", 300)
        with engine.held():  # else the stream might have ended by then
            stop_twice(proxy)
            status, headers, body = finish(probe, b"\r\n")
            assert (status, headers["connection"], body["reasons"]) == (503, "close", ["shutting down"])
            asked = json.dumps(chat("late")).encode()
            status, headers, body = finish(asker, b"content-length: %d\r\n\r\n%b" % (len(asked), asked))
            assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
            assert body["error"]["code"] == "draining"
            assert "warmroute_turns_live 1" in proxy.metrics(), "operators can look on"

        text, whole = rest(stream)
        assert whole
        assert text.endswith("data: [DONE]\n\n")
        until(lambda: ended(proxy), "the proxy ends by itself")
        assert [row["outcome"] for row in proxy.rows()] == ["completed"]


@pytest.mark.parametrize(
    ("grace_s", "second"),
    [(0.2, None), (3600, signal.SIGTERM), (3600, signal.SIGINT)],
    ids=["after the grace", "after SIGTERM", "after SIGINT"],
)
def test_what_is_left_after_the_grace_or_a_second_signal_ends_with_an_error(
    tmp_path: Path, engine: EngineProcess, grace_s: float, second: signal.Signals | None
) -> None:
    with serving(tmp_path, engine, grace_s) as proxy:
        stream = streamed(proxy, "long", 4000)
        if second is None:
            signalled(proxy)
        else:
            until(lambda: told(proxy, second), "the proxy does not wait for its grace")
        text, whole = rest(stream)
        assert not whole
        assert "[DONE]" not in text
        assert events(text)[-1]["error"]["code"] == "draining"
        until(lambda: ended(proxy), "the proxy ends")
        assert [(row["outcome"], row["price_nanousd"]) for row in proxy.rows()] == [("cut_off", 0)]
    until(lambda: engine.running() == 0, "the engine was told to stop")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_hangup_ends_nothing_where_there_is_no_certificate(
    tmp_path: Path, engine: EngineProcess, processes: int
) -> None:
    with ProxyProcess(tmp_path / "p", [engine.toml("east")], extra=f"processes = {processes}") as proxy:
        stream = streamed(proxy, "goes on", 100)
        assert proxy.child is not None
        os.kill(proxy.child.pid, signal.SIGHUP)
        text, whole = rest(stream)
        assert whole
        assert text.endswith("data: [DONE]\n\n")
        until(lambda: proxy.written().count("no TLS certificate to read again") == processes, "the log says why")


def test_an_engine_of_many_streams_hears_of_each_that_it_is_over(tmp_path: Path) -> None:
    """More than there are idle connections to it: the rest is told over new ones, while everything is closed."""
    over = threading.Event()

    def streams(handler: Handler) -> None:
        handler.stream(delta("begun"), end=False)
        over.wait(seconds(60))

    with ScriptedEngine("e0", streams) as scripted:
        with ProxyProcess(tmp_path / "p", [scripted.toml()], limits="shutdown_grace_s = 0.2") as proxy:
            asked = [proxy.send(chat(f"ask {number}", stream=True)) for number in range(12)]
            until(lambda: len(scripted.bodies) == 12, "all are there")
            signalled(proxy)
            until(lambda: ended(proxy), "the proxy ends")
        rids = {json.loads(body)["rid"] for body in scripted.bodies}
        until(lambda: set(scripted.aborted) == rids, "each was ended")
        over.set()
        for sock in asked:
            with sock, sock.makefile("rb") as stream:
                assert b'"code":"draining"' in stream.read()
