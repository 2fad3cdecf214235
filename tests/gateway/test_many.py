"""Many requests at once through a real Envoy: what is too much is refused, and nothing goes past the picker."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from tests.gateway.test_protocol import CHAT, Scene, answers, buffered, scene
from tests.machine import configured, seconds
from tests.subjects.ext_proc_client import Conversation, body, head
from tests.subjects.gateway import cluster, fails_open
from tests.subjects.processes import chat, until
from tests.subjects.scripted import ROLE, Handler, delta
from warmroute_proxy.server.picker.listener import _Conversation
from warmroute_proxy.server.picker.stream import Stream

MORE_THAN_ENVOYS_DEFAULT = 1100


@contextlib.contextmanager
def unfinished(it: Scene, count: int, tenant: int = 0) -> Iterator[None]:
    """Requests whose bodies have not come: Envoy has asked the picker about each."""
    before = it.envoy.stat("cluster.warmroute.upstream_rq_active")
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(it.sent(b"{" * 1000, 1, tenant=tenant))
        until(lambda: it.envoy.stat("cluster.warmroute.upstream_rq_active") - before >= count, "the picker is asked")
        yield


def post(it: Scene, key: str) -> Any:
    with it.envoy.client(key) as client:
        return client.post(CHAT, json=chat("more"))


@pytest.fixture
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 8192 else max(soft, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("descriptors")
def test_more_than_1024_requests_are_each_asked_about_and_none_goes_past_the_picker(tmp_path: Path) -> None:
    with scene(tmp_path, fails_open, limits="connections = 4000") as it, unfinished(it, MORE_THAN_ENVOYS_DEFAULT):
        given = post(it, "sk-nobody")
        assert (given.status_code, given.json()["error"]["code"]) == (401, "invalid_api_key")
        assert post(it, it.picker.keys[0]).json()["usage"]["warmroute"]["id"]


def test_where_envoy_itself_has_too_many_it_refuses(tmp_path: Path) -> None:
    def few(config: dict[str, Any]) -> None:
        cluster(config, "warmroute")["circuit_breakers"]["thresholds"][0]["max_requests"] = 1

    with scene(tmp_path, few) as it:
        with unfinished(it, 1):
            assert post(it, "sk-nobody").status_code == 500
        assert not any(engine.bodies for engine in it.engines)


def test_a_tenant_s_requests_leave_room_for_others_and_what_is_too_much_is_refused(tmp_path: Path) -> None:
    with scene(tmp_path, fails_open, limits="connections = 8") as it, unfinished(it, 7):
        given = post(it, it.picker.keys[0])
        assert (given.status_code, given.json()["error"]["code"]) == (429, "too_many_requests")
        assert post(it, it.picker.keys[1]).status_code == 200
        with unfinished(it, 1, tenant=1):
            given = post(it, "sk-nobody")
            assert (given.status_code, given.json()["error"]["code"]) == (503, "overloaded")
            assert given.headers["retry-after"] == "1"
    assert sum(len(engine.bodies) for engine in it.engines) == 1


def test_a_client_that_reads_slowly_is_no_silent_engine(tmp_path: Path) -> None:
    sent, piece = threading.Event(), "x" * 60_000

    def much(handler: Handler) -> None:
        try:
            handler.stream(ROLE, *[delta(piece) for _ in range(1000)], delta(finish="stop"), "[DONE]")
        except OSError:
            pass
        sent.set()

    with scene(tmp_path, engines=1, limits=f"idle_timeout_s = {configured(1)}") as it:
        it.engines[0].script = much
        text = json.dumps(chat("slow", stream=True)).encode()
        with it.sent(text, lines=["connection: close"]) as slow:
            slow.settimeout(seconds(60))
            begun = slow.recv(1000)
            sent.wait(seconds(6))  # three times as long as the engine may be silent
            data = b"".join(iter(lambda: slow.recv(1 << 20), b""))
        assert b"200 OK" in begun
        assert b"data: [DONE]" in data[-200:], data[-1000:]
        assert it.picker.rows(1)[0]["outcome"] == "completed"


def test_a_buffered_body_beyond_the_limit_is_refused_however_much_envoy_buffers(tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        fails_open(config)
        buffered(config)
        del cluster(config, "warmroute")["health_checks"]
        config["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = 16_000_000

    text = json.dumps(chat("w " * 2_000_000)).encode()
    with scene(tmp_path, change, limits="body_bytes = 100000") as it, it.envoy.client(it.picker.keys[0]) as client:
        given = client.post(CHAT, content=iter([text]))  # in chunks: its length is not known
        assert (given.status_code, given.json()["error"]["code"]) == (413, "request_too_large")
    assert not any(engine.bodies for engine in it.engines)


def test_a_body_is_in_memory_no_more_often_than_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "32768")  # so no freed piece of a body stays between others in a heap
    with scene(tmp_path, engines=1, fresh=True) as it, grpc.insecure_channel(it.picker.address) as channel:

        def send(size: int) -> int:
            text = json.dumps(chat("w " * (size // 2))).encode()
            with Conversation(channel, 60) as stream:
                stream.send(head(CHAT, it.picker.keys[0]))
                for at in range(0, len(text), 62_000):
                    stream.send(body(text[at : at + 62_000], ends=at + 62_000 >= len(text)))
                stream.until_body_ends()
            return len(text)

        send(500_000)
        before = it.highest_mib()
        size = send(16_000_000)
        assert (it.highest_mib() - before) * 2**20 / size < 2.5  # copies_of_bodies says 2


async def test_who_reads_waits_for_what_another_task_writes() -> None:
    gate = asyncio.Event()
    read: list[int] = []
    written: list[bytes] = []

    class Context:
        async def read(self) -> Any:
            read.append(len(read))
            return b"asked" if len(read) < 3 else grpc.aio.EOF

        async def write(self, message: bytes) -> None:
            await gate.wait()
            written.append(message)

    class Fake:
        outbox = SimpleNamespace(broken=False, out=deque([b"alone"]), sent=lambda: None)
        has_key = True

        def take(self, _message: bytes) -> None:
            self.outbox.out.append(b"%d" % len(read))

        def lost(self) -> None:
            pass

    conversation = _Conversation.__new__(_Conversation)
    conversation._context, conversation._members, conversation._stream = Context(), set(), cast("Stream", Fake())
    conversation._writing, conversation._writer = asyncio.Lock(), None
    conversation._wake()
    running = asyncio.ensure_future(conversation.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(read) == 1
    gate.set()
    await running
    assert written == [b"alone", b"1", b"2"]


def test_a_picker_that_is_told_to_end_serves_what_is_open_and_takes_nothing_new(tmp_path: Path) -> None:
    gate = threading.Event()

    def slow(handler: Handler) -> None:
        gate.wait(seconds(30))
        answers(handler)

    with scene(tmp_path, engines=1, limits="shutdown_grace_s = 900") as it:
        it.engines[0].script = slow
        given: list[Any] = []
        running = threading.Thread(target=lambda: given.append(it.post(chat("open", stream=True))))
        running.start()
        until(lambda: it.engines[0].bodies, "the request runs")
        assert it.picker.child is not None
        os.kill(it.picker.child.pid, signal.SIGTERM)
        until(lambda: it.picker.health("readiness") == 2, "it is not ready")
        direct = head(CHAT, it.picker.keys[0])
        with grpc.insecure_channel(it.picker.address) as channel, Conversation(channel) as stream:
            stream.send(direct, body(json.dumps(chat("new")).encode()))
            refused = stream.read().immediate_response
            assert (refused.status.code, json.loads(refused.body)["error"]["code"]) == (503, "draining")
        gate.set()
        running.join(seconds(20))
        assert given[0].text.endswith("data: [DONE]\n\n")
        assert it.picker.rows(1)[0]["outcome"] == "completed"
