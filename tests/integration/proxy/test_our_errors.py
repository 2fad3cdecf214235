"""Errors of the proxy's own, put in at each step of a turn: its client is told, and nothing of it is left.

They are put in where a compiled proxy looks at run time, too: in a router that is recorded, which is never compiled,
and in what the steps use.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, chat
from tests.subjects.scripted import Handler, ScriptedEngine, delta, whole
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server import routing
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.build import Proxy, build
from warmroute_proxy.server.control.exposition import page_of
from warmroute_proxy.server.engines.kv_events import KvEvents
from warmroute_proxy.server.http.listener import Listener
from warmroute_proxy.server.main import _sweep
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.inference_request import InferenceRequest

USAGE = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
RECORD = 'record = "turns.record"'
LIMITS = "requests_at_once = 1\ntokens_at_once = 100000"


def answers(handler: Handler) -> None:
    """As the prompt wishes."""
    asked = json.loads(handler.engine.bodies[-1])
    wish = asked["messages"][-1]["content"].split()[0]
    if wish == "dies":
        handler.cut()
    elif not asked.get("stream"):
        handler.reply(200, whole(USAGE))
    else:
        handler.stream(delta("hi"), delta(finish="stop"), {"choices": [], "usage": USAGE}, "[DONE]")


class Scene:
    """A proxy of this process, before two engines; its second tenant has limits."""

    def __init__(self, proxy: Proxy, port: int, key: str) -> None:
        self.proxy = proxy
        self._port = port
        self._key = key

    async def ask(self, wish: str, headers: str = "", **fields: Any) -> bytes:
        """All that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, family=socket.AF_INET)
        body = json.dumps(chat(wish, **fields, stream=wish == "stream")).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\n{headers}"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        try:
            async with asyncio.timeout(seconds(20)):
                return await reader.read()
        finally:
            writer.close()

    def left(self) -> dict[str, Any]:
        """What is there of turns: all of it is to be nothing."""
        proxy = self.proxy
        workers = proxy.router.snapshot(proxy.clock())["workers"].values()
        return {
            "live": len(proxy.open_requests.live),
            "queued": proxy.admission.queue.requests,
            "keyed": len(proxy.idempotent_calls.live),
            "of the tenant": sum(q.running + q.tokens_running for _, q in proxy.admission.limits.quotas.all),
            "of engines": sum(worker["running"] + worker["prefill_tokens"] for worker in workers),
            "open": len(proxy.ledger._under_way),
        }

    async def is_whole(self, headers: str) -> None:
        """Nothing is left of a turn, and others are served."""
        await self.nothing_is_left()
        for _ in range(2):  # the tenant may have one at once
            assert (await self.ask("answer", headers)).startswith(b"HTTP/1.1 200 ")
        await self.nothing_is_left()

    async def nothing_is_left(self) -> None:
        try:
            async with asyncio.timeout(seconds(20)):
                while any(self.left().values()):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"left: {self.left()}")


@contextlib.asynccontextmanager
async def scene(folder: Path, limits: str = "") -> AsyncIterator[Scene]:
    engines = [ScriptedEngine(name, answers) for name in ("e0", "e1")]
    process = ProxyProcess(folder, [engine.toml() for engine in engines], second=LIMITS, limits=limits, extra=RECORD)
    proxy = await build(load_config(process.write_config()), None)
    endpoint = proxy.public_endpoint(None, InferenceRequest)  # type: ignore[arg-type]
    listener = Listener(endpoint, proxy.config.limits, proxy.clock, proxy.body_memory, proxy.loop_lag)
    port = await listener.listen("127.0.0.1", 0)
    steps = proxy.sweep_steps([listener.sweep])
    sweep = asyncio.create_task(_sweep(proxy.open_requests, steps, proxy.clock, proxy.loop_lag))
    try:
        yield Scene(proxy, port, process.keys[1])
    finally:
        sweep.cancel()
        await listener.close(1.0)
        proxy.engines.close()
        async with asyncio.timeout(seconds(20)):  # engines may still be answering that they have stopped
            while any(engine.upstream.open for engine in proxy.engines.by_id.values()):
                await asyncio.sleep(0.01)
        proxy.ledger.close()
        assert proxy.recording is not None
        proxy.recording.close()
        for engine in engines:
            engine.stop()


class Breakable(Router):
    """A router whose methods can be replaced, also in a compiled build."""


@pytest.fixture(autouse=True)
def breakable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "Router", Breakable)


def break_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fails: object = 1) -> Callable[[], bool]:
    """A call of a method or function fails: which one, counted from 1, or by an argument of it, or by a question about
    its arguments. Returns how to ask whether it came to that."""
    sound, calls, failed = getattr(owner, name), 0, False

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls, failed
        calls += 1
        if not failed and (calls == fails or fails in args or (callable(fails) and fails(*args))):
            failed = True
            raise RuntimeError("an error of ours")
        return sound(*args, **kwargs)

    monkeypatch.setattr(owner, name, broken)
    return lambda: failed


def is_of_journal(file: int, _: object) -> bool:
    """Whether a journal is written there; the thread that writes the record does so at any time."""
    return "journal" in str(Path(f"/proc/self/fd/{file}").readlink())


@pytest.mark.parametrize("headers", ["", "idempotency-key: k\r\n"])
@pytest.mark.parametrize(
    ("owner", "name", "fails", "wish"),
    [
        (os, "urandom", 1, "answer"),  # a receipt's id
        (Breakable, "place", 1, "answer"),
        (Breakable, "has_capacity", 1, "answer"),
        (os, "write", is_of_journal, "answer"),  # as the entry is opened
        (Breakable, "dispatched", 1, "answer"),
        (KvEvents, "feed", 1, "answer"),  # as the request is to be tagged
        (Breakable, "first_token", 1, "stream"),
        (Breakable, "settled", 1, "answer"),
        (KvEvents, "feed", 2, "answer"),  # as the turn has ended
        (Breakable, "full", 1, "dies"),
        (Metrics, "add", declared.RETRIES_TOTAL, "dies"),
    ],
)
async def test_an_error_at_any_step_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fails: object, wish: str, headers: str
) -> None:
    async with scene(tmp_path) as it:
        failed = break_once(monkeypatch, owner, name, fails)
        assert (await it.ask(wish, headers)).startswith(b"HTTP/1.1 500 ")
        assert failed()
        await it.is_whole(headers)


@pytest.mark.parametrize("headers", ["", "idempotency-key: k\r\n"])
async def test_an_error_as_a_turn_is_counted_leaves_nothing(tmp_path: Path, headers: str) -> None:
    async with scene(tmp_path) as it:
        kinds = iter([None])

        def tokens() -> int:
            for _ in kinds:
                raise RuntimeError("an error of ours")
            return 0

        it.proxy.path.metrics._ended = defaultdict(tokens)
        assert (await it.ask("answer", headers)).startswith(b"HTTP/1.1 500 ")
        await it.is_whole(headers)


async def test_a_turn_that_an_error_of_ours_ended_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(tmp_path) as it:
        break_once(monkeypatch, Breakable, "first_token")
        await it.ask("stream")
        await it.nothing_is_left()
        assert 'warmroute_turns_total{outcome="interrupted"} 1\n' in page_of(it.proxy.metrics, [])


async def test_who_cannot_be_placed_does_not_hold_up_who_waits_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path) as it:
        quota = it.proxy.admission.limits.quotas.of("second", "")[0]
        quota.begin(1)
        asked = [asyncio.create_task(it.ask("answer")) for _ in range(3)]
        async with asyncio.timeout(seconds(20)):
            while it.proxy.admission.queue.requests < 3:
                await asyncio.sleep(0.02)
        break_once(monkeypatch, Breakable, "place")
        quota.end(1)
        assert sorted([(await each)[9:12] for each in asked]) == [b"200", b"200", b"500"]
        await it.nothing_is_left()


async def test_deadlines_hold_after_an_error_in_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(tmp_path, "queue_timeout_s = 0.5") as it:
        failed = break_once(monkeypatch, Admission, "sweep")
        async with asyncio.timeout(seconds(20)):
            while not failed():
                await asyncio.sleep(0.02)
        it.proxy.admission.limits.quotas.of("second", "")[0].begin(1)
        assert (await it.ask("answer")).startswith(b"HTTP/1.1 429 ")
