"""Large and dense bodies are read by one process: one tenant's keep neither another's from it nor the proxy alive."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.field.fuzz.body_template import CONFIG, SECRETS, TENANT
from tests.hostile.conftest import HOSTILE, INNOCENT
from tests.integration.proxy.test_large_bodies import reader_of
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, answer, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from tests.subjects.stopped import Stopped
from warmroute.contract.conversations import Conversations
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES, MAX_UNREAD, SharedBytes
from warmroute_proxy.server.intake import large_bodies
from warmroute_proxy.server.intake.caller import Callers
from warmroute_proxy.server.intake.large_bodies import LargeBodies
from warmroute_proxy.server.intake.parsed_request import CHAT

LARGE: Final = "tell me more, " * (LARGE_BYTES // 12)
COUNT: Final = "/v1/messages/count_tokens"


def slow_body(size: int = 8_000_000) -> bytes:
    """One that takes long to read: many messages, each of which is new."""
    messages = ",".join(
        f'{{"role":"user","content":[{{"type":"text","text":"{n:0200}"}}]}}' for n in range(size // 280)
    )
    return f'{{"model":"kimi-k2.5","messages":[{messages}]}}'.encode()


def serve(handler: Handler) -> None:
    if handler.path == "/v1/tokenize":
        handler.reply(200, b'{"tokens":[1],"count":1,"max_model_len":9}')
    else:
        handler.reply(200, whole({"prompt_tokens": 5, "completion_tokens": 1}))


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    with (
        ScriptedEngine("east-e0", serve) as engine,
        ProxyProcess(tmp_path / "p", [engine.toml()], limits="shutdown_grace_s = 600") as started,
    ):
        yield started


def post(proxy: ProxyProcess, tenant: int, path: str, content: bytes) -> httpx.Response:
    with proxy.client(tenant) as client:
        return client.post(path, content=content, headers={"content-type": "application/json"}, timeout=seconds(60))


def sent(proxy: ProxyProcess, tenant: int, path: str, content: bytes) -> socket.socket:
    """A request whose answer is not waited for."""
    url = httpx.URL(proxy.url)
    sock = socket.create_connection((url.host, url.port or 80), timeout=seconds(60))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {proxy.keys[tenant]}\r\n"
    sock.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    return sock


def test_another_tenant_waits_for_one_body_at_most(proxy: ProxyProcess) -> None:
    """Free bodies of one tenant wait; a chat of another one is read before most of them."""
    slow = slow_body()
    large = json.dumps(chat(LARGE)).encode()
    assert post(proxy, INNOCENT, "/v1/chat/completions", large).status_code == 200
    (reader,) = reader_of(proxy)
    os.kill(reader, signal.SIGSTOP)  # until all stand in line: it may be quicker than who sends them
    try:
        hostile = [sent(proxy, HOSTILE, COUNT, slow) for _ in range(6)]
        until(lambda: proxy.metric("warmroute_large_bodies_waiting ") == len(hostile), "the bodies wait")
        innocent = sent(proxy, INNOCENT, "/v1/chat/completions", large)
        until(lambda: proxy.metric("warmroute_large_bodies_waiting ") == len(hostile) + 1, "the chat waits")
        done = proxy.metric('warmroute_large_bodies_total{outcome="read"}')
    finally:
        os.kill(reader, signal.SIGCONT)
    with innocent:
        assert answer(innocent)[0] == 200
    assert proxy.metric('warmroute_large_bodies_total{outcome="read"}') - done <= 3  # two of the hostile ones
    for sock in hostile:
        sock.close()
    until(lambda: proxy.metric("warmroute_large_bodies_waiting ") == 0, "what nobody waits for is not read")
    assert proxy.metric('warmroute_large_bodies_total{outcome="client_left"}') >= 3


def test_a_reader_that_hangs_does_not_delay_a_shutdown(proxy: ProxyProcess) -> None:
    assert post(proxy, INNOCENT, "/v1/chat/completions", json.dumps(chat(LARGE)).encode()).status_code == 200
    (reader,) = reader_of(proxy)
    os.kill(reader, signal.SIGSTOP)
    waits = [sent(proxy, HOSTILE, COUNT, slow_body(LARGE_BYTES * 2)) for _ in range(3)]
    until(lambda: proxy.metric("warmroute_large_bodies_waiting ") == len(waits), "the bodies wait")
    child = proxy.child
    assert child is not None
    os.kill(child.pid, signal.SIGTERM)
    with contextlib.ExitStack() as stack:
        answers = [answer(stack.enter_context(sock)) for sock in waits]
    assert [status for status, _, _ in answers] == [529] * len(waits)  # 503, as Anthropic's clients know it
    until(lambda: not child.running(), "the proxy has ended")
    assert not Path(f"/proc/{reader}").exists()


def test_a_dense_body_that_is_small_is_not_read_in_the_loop(proxy: ProxyProcess) -> None:
    dense = b'{"model":"kimi-k2.5","max_tokens":1,"messages":[%b]}' % b",".join([b"{}"] * 100_000)
    assert post(proxy, HOSTILE, "/v1/messages", dense).status_code == 400
    assert proxy.metric('warmroute_large_bodies_total{outcome="refused"}') == 1


def test_one_tenant_gets_half_of_the_places() -> None:
    hostile = []
    while (shared := SharedBytes.of([b"{}"], "hostile")) is not None:
        hostile.append(shared)
    assert len(hostile) == MAX_UNREAD // 2
    innocent = SharedBytes.of([b"{}"], "innocent")
    assert innocent is not None
    del hostile, shared
    assert SharedBytes.of([b"{}"], "hostile") is not None


class _Nowhere:
    """A connection that keeps what is answered. A mock: what is tested is behind it."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Scene(Stopped):
    """A reader of large bodies without a proxy around it."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.callers = Callers(SECRETS, Conversations("x"))
        self.bodies = LargeBodies(CONFIG, self.callers, asyncio.get_running_loop(), self.metrics)

    def stop(self) -> None:
        self.bodies.shut_down()

    def ask(
        self,
        translate: Any = None,
        raw: bytes = b'{"model":"m","messages":[{"role":"user","content":"a"}]}',
        tenant: TenantConfig = TENANT,
    ) -> Any:
        """Returns a future of the intake or the refusal, and the exchange."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Any] = loop.create_future()
        request = Request(0.0, "POST", CHAT)
        shared = SharedBytes.of([raw], tenant.name)
        assert shared is not None
        request.shared, request.body = shared, shared.view()
        exchange = Exchange(_Nowhere(), request)
        caller = self.callers.of(CHAT, tenant, {})
        self.bodies.read(exchange, shared, caller, lambda parsed, _: found.set_result(parsed), translate)
        return found, exchange


def hangs(raw: bytes, terms: Terms) -> Any:
    """A translator that never ends."""
    while True:
        pass


def dies(raw: bytes, terms: Terms) -> Any:
    """A translator that ends its process."""
    os.kill(os.getpid(), signal.SIGKILL)


def breaks(raw: bytes, terms: Terms) -> Any:
    """A translator with an error of ours."""
    raise KeyError


async def test_a_body_that_takes_too_long_is_given_up_and_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "ALLOWED_S", 0.5)
    with Scene() as scene:
        (hung, _), *others = scene.ask(hangs), scene.ask(), scene.ask()
        refusal = await hung
        assert isinstance(refusal, Refusal)
        assert (refusal.status, refusal.code) == (400, "invalid_value")
        assert [(await found).parsed.model.name for found, _ in others] == ["m", "m"]


async def test_a_body_that_ends_its_process_twice_is_refused_and_the_others_are_read() -> None:
    with Scene() as scene:
        (dead, _), (broken, _), (sound, _) = scene.ask(dies), scene.ask(breaks), scene.ask()
        assert (await dead).status == 503
        assert (await broken).status == 500
        assert (await sound).parsed.model.name == "m"
        assert scene.metrics.value(declared.LARGE_BODIES_TOTAL, (("outcome", "read_again"),)) == 1


async def test_one_whose_client_has_left_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "LEFT_S", 0.0)
    monkeypatch.setattr(large_bodies, "ALLOWED_S", 1000.0)
    with Scene() as scene:
        (hung, exchange), (sound, _) = scene.ask(hangs), scene.ask()
        exchange.ended = True
        exchange.on_gone()
        assert (await sound).parsed.model.name == "m"
        assert not hung.done()


async def test_who_leaves_has_had_the_time_that_its_body_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a tenant whose clients all leave while they are read would go first for ever."""
    monkeypatch.setattr(large_bodies, "LEFT_S", 0.0)
    monkeypatch.setattr(large_bodies, "ALLOWED_S", 1000.0)
    order = list[str]()
    other = dataclasses.replace(TENANT, name="other")
    with Scene() as scene:
        await scene.ask(tenant=other)[0]  # the process has started
        (_, leaves), (next_one, _) = scene.ask(hangs), scene.ask()
        innocent, _ = scene.ask(tenant=other)
        next_one.add_done_callback(lambda _: order.append("the hostile tenant's next"))
        innocent.add_done_callback(lambda _: order.append("the other's"))
        await asyncio.sleep(0)
        leaves.ended = True
        leaves.on_gone()
        await asyncio.gather(next_one, innocent)
        await asyncio.sleep(0)
        assert order[0] == "the other's"


async def test_ready_says_when_it_is_the_bottleneck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "SLOW_S", 0.0)
    scene = Scene()
    waits, _ = scene.ask(hangs)
    assert "1 large requests wait to be read" in scene.bodies.problems()[0].text
    scene.bodies.shut_down()
    assert (await waits).code == "draining"
    late, _ = scene.ask()
    assert (await late).code == "draining"


async def test_a_reload_loses_no_body() -> None:
    with Scene() as scene:
        asked = [scene.ask() for _ in range(4)]
        for is_other in (True, False, True):
            scene.bodies.replace(dataclasses.replace(CONFIG, credit_moved=is_other))
            await asyncio.sleep(0)
        assert [(await found).parsed.model.name for found, _ in asked] == ["m"] * 4


async def test_tenants_that_join_or_change_do_not_start_a_process() -> None:
    tenants = [dataclasses.replace(TENANT, name=f"t{number}") for number in range(4)]
    processes = []
    with Scene() as scene:
        for changed in (tenants[:2], tenants, [*tenants[:3], TENANT], tenants[:1]):
            named = {tenant.name: tenant for tenant in changed}
            scene.bodies.replace(dataclasses.replace(CONFIG, tenants=tuple(changed), tenant_by_name=named))
            await scene.ask()[0]
            processes.append(scene.bodies._reader)
    assert processes[0] is processes[1] is processes[2]
    assert processes[2] is not processes[3], "a key differs if there is only one tenant"


MEMORY = {
    "a text": (20_000_000, b'{"role":"user","content":"%b"}' % (b"tell me more. " * 1_400_000)),
    "dense": (1_900_000, b",".join([b'{"role":"user","content":"%x"}' % number for number in range(60_000)])),
    "too dense": (20_000_000, b",".join([b"{}"] * 6_600_000)),
}
FIXED_BYTES = 64 * 2**20


@pytest.mark.parametrize("kind", MEMORY)
def test_reading_takes_twice_the_body_and_a_fixed_part(proxy: ProxyProcess, kind: str) -> None:
    """30 MB of small values took 1.0 to 1.5 GB."""
    small = json.dumps({"model": "kimi", "messages": [{"role": "user", "content": "x" * LARGE_BYTES}]}).encode()
    assert post(proxy, HOSTILE, COUNT, small).status_code == 200
    (reader,) = reader_of(proxy)
    status = Path(f"/proc/{reader}/status")

    def bytes_of(name: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name)) * 1024

    before = bytes_of("VmRSS")
    Path(f"/proc/{reader}/clear_refs").write_text("5")  # the peak begins anew
    size, messages = MEMORY[kind]
    content = b'{"model":"kimi","messages":[%b]}' % messages
    assert len(content) > size * 0.9
    assert post(proxy, HOSTILE, COUNT, content).status_code in {200, 400}
    assert bytes_of("VmHWM") - before < 2.1 * len(content) + FIXED_BYTES
