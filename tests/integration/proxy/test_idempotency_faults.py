"""`Idempotency-Key` when things break: engines that die or refuse, slow readers, bounds, regions, a proxy that ends."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from tests.machine import configured, seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, answer, chat, events, until
from tests.subjects.scripted import ROLE, Handler, delta
from tests.subjects.small_fleet import two_regions

from .test_engine_misbehaves import LAST, serving
from .test_idempotency import FAR_S, Asker, Keyed, long, rows_of

pytestmark = pytest.mark.full


def say(handler: Handler, *texts: str) -> None:
    """A whole stream of these contents."""
    handler.stream(ROLE, *(delta(text) for text in texts), delta(finish="stop"), LAST, "[DONE]")


@pytest.mark.real_deadlines("attempt")
def test_an_engine_dies_while_two_listen_and_a_retry_is_a_new_try(tmp_path: Path) -> None:
    with Keyed(tmp_path, {"p0": "prefill", "d0": "decode", "d1": "decode"}) as fleet:
        busy = fleet.engines["d0"]
        slowly = {"fault": "drip", "delay_s": 0.3}  # so that its answer has not ended when it is killed
        httpx.post(f"{busy.url}/engine/faults", json=slowly).raise_for_status()
        with fleet.proxy.admin() as admin:
            admin.post("/admin/engines/d1/drain").raise_for_status()
            askers = [Asker(fleet.proxy, "dies", long("dies", 400)).begun() for _ in range(2)]
            admin.delete("/admin/engines/d1/drain").raise_for_status()
        os.kill(busy.child.pid, signal.SIGKILL)
        until(lambda: not busy.child.running(), "it is dead")
        assert all(asker.done().failed_clearly for asker in askers)
        assert askers[0].receipt == askers[1].receipt
        until(fleet.idle, "no engine works for anybody")
        row = rows_of(fleet.proxy, askers[0].receipt)[0]
        assert (row["outcome"], row["price_nanousd"]) == ("engine_error", 0)
        again = Asker(fleet.proxy, "dies", long("dies", 400)).done()
        assert again.completed
        assert again.receipt != askers[0].receipt


def test_a_refusal_is_not_kept(tmp_path: Path) -> None:
    answers = iter([503, 400])

    def script(handler: Handler) -> None:
        status = next(answers, 0)
        if status:
            handler.reply(status, b'{"message":"not now"}')
        else:
            say(handler, "now")

    with serving(tmp_path, script) as (proxy, (engine,)):
        body = chat("refused", stream=True)
        statuses = [Asker(proxy, "refused", body).done().status for _ in range(4)]
        assert statuses == [503, 400, 200, 200]
        assert len(engine.bodies) == 3
        assert b"refused" not in b"".join(engine.bodies).replace(b"refused 0", b"")
        assert "idempotency-key" not in engine.heads[-1]


def slow_reader(proxy: ProxyProcess, key: str, body: bytes, version: str = "1.1") -> socket.socket:
    """A client with a key that has sent its request, and takes little of the answer before it is read."""
    parts = urlsplit(proxy.url)
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    found.settimeout(seconds(30))
    found.connect((parts.hostname, parts.port))
    head = f"POST /v1/chat/completions HTTP/{version}\r\nhost: x\r\nauthorization: Bearer {proxy.keys[0]}\r\n"
    head += f"idempotency-key: {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    found.sendall(head.encode() + body)
    return found


def test_a_slow_first_client_holds_up_nobody_and_still_gets_everything(tmp_path: Path) -> None:
    parts = 400
    told = threading.Event()

    def script(handler: Handler) -> None:
        told.set()
        say(handler, *(f"{number:05d}" + "x" * 30_000 for number in range(parts)))

    with serving(tmp_path, script) as (proxy, (engine,)):
        body = json.dumps(chat("slow", stream=True)).encode()
        with slow_reader(proxy, "slow", body) as slow:
            assert told.wait(seconds(20))
            fast = Asker(proxy, "slow", chat("slow", stream=True)).done()
            assert fast.completed
            said = [event["choices"][0]["delta"]["content"][:5] for event in events(fast.text)[1 : parts + 1]]
            assert said == [f"{number:05d}" for number in range(parts)]
            assert answer(slow)[2] == fast.text
        with slow_reader(proxy, "slow", body, version="1.0") as old:
            assert answer(old)[2] == fast.text
        assert len(engine.bodies) == 1


def test_two_requests_with_a_key_on_one_connection(tmp_path: Path) -> None:
    with serving(tmp_path, lambda handler: say(handler, "hello")) as (proxy, (engine,)):
        body = json.dumps(chat("pipelined", stream=True)).encode()
        parts = urlsplit(proxy.url)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {proxy.keys[0]}\r\n"
        head += f"idempotency-key: pipelined\r\ncontent-length: {len(body)}\r\n"
        first, last = f"{head}\r\n".encode(), f"{head}connection: close\r\n\r\n".encode()
        with socket.create_connection((parts.hostname, parts.port), timeout=seconds(20)) as client:
            client.sendall(first + body + last + body)
            text = b"".join(iter(lambda: client.recv(65536), b"")).decode()
        assert text.count("HTTP/1.1 200 OK") == 2
        assert text.count("data: [DONE]") == 2
        assert len(engine.bodies) == 1


def test_a_proxy_that_ends_waits_for_nobody_to_come_back(tmp_path: Path) -> None:
    with Keyed(tmp_path, {"a0": "aggregated"}, limits="keyed_replay_s = 3600", outlive_s=300.0) as fleet:
        left = Asker(fleet.proxy, "left", long("left", 2000)).begun()
        left.leave()
        heard = Asker(fleet.proxy, "heard", long("heard", 400)).begun()
        joined = Asker(fleet.proxy, "heard", long("heard", 400)).begun()
        until(lambda: fleet.running() == 2 or not heard.is_alive(), "both run, or one has ended")
        assert fleet.proxy.child is not None
        os.kill(fleet.proxy.child.pid, signal.SIGTERM)
        assert heard.done().completed
        assert joined.done().completed
        until(lambda: fleet.proxy.child and not fleet.proxy.child.running(), "the proxy ends")
        until(fleet.idle, "no engine works for anybody")
        assert rows_of(fleet.proxy, left.receipt)[0]["outcome"] == "client_left"


class Roaming(NamedTuple):
    """East, where a client asks, and west, where its conversation lives; each with an engine."""

    east: ProxyProcess
    west: ProxyProcess
    engines: list[EngineProcess]

    def ask(self, key: str, tokens: int) -> Asker:
        """Ask for the next turn of the conversation, whose answer has so many tokens."""
        body = {**long("roam", turns=2, tokens=tokens), "prompt_cache_key": "roamer"}
        return Asker(self.east, key, body, more={"x-warmroute-home": "west"})


@contextmanager
def roaming(folder: Path, outlive_s: float) -> Iterator[Roaming]:
    of_east = {"limits": f"keyed_outlive_s = {outlive_s}"}
    with two_regions(folder, speed=1.0, of_east=of_east) as found:
        it = Roaming(*found)
        Asker(it.west, "home", {**chat("roam", max_tokens=2), "prompt_cache_key": "roamer"}).done()
        yield it


def test_a_forwarded_turn_is_joined_where_the_client_asks(tmp_path: Path) -> None:
    with roaming(tmp_path, FAR_S) as it:
        first = it.ask("roams", 150).begun()
        first.leave()
        second = it.ask("roams", 150).done()
        assert second.completed
        assert second.receipt == first.receipt
        assert second.headers["x-warmroute-home"] == "west"
        assert rows_of(it.west, second.receipt)[0]["forwarded_from"] == "east"
        assert it.engines[0].log()["finished"] == []


def test_a_forwarded_turn_to_which_nobody_comes_back_stops_at_its_home(tmp_path: Path) -> None:
    outlive_s = configured(3)
    with roaming(tmp_path, outlive_s) as it:
        first = it.ask("leaves", 4000).begun()
        left_at_s = time.time()
        first.leave()
        until(lambda: it.engines[1].running() == 0, "the home's engine stops", outlive_s + 20)
        row = rows_of(it.west, first.receipt)[0]
        assert row["outcome"] == "client_left"
        assert row["settled_at"] - left_at_s > 0.9 * outlive_s
