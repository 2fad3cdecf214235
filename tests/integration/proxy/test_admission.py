"""More requests than engines can run: who goes, who waits, who is turned away, over real sockets.

The engines are mocks that answer when they are told to, so that who waits for whom is seen and not timed.
"""

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warmroute
from tests.machine import configured, seconds
from tests.subjects.ports import free_port
from tests.subjects.processes import ProxyProcess, answer, chat, events, until
from tests.subjects.scripted import ROLE, Handler, ScriptedEngine, delta, whole

pytestmark = pytest.mark.full

USAGE = {"prompt_tokens": 400, "completion_tokens": 2, "total_tokens": 402}
LAST: dict[str, Any] = {"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": USAGE}


class Gate:
    """Lets so many requests end as it is told to; 0 or more may pass at once."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)
        self.wide_open = False

    def open(self, requests: int = 1) -> None:
        self._passes.release(requests)

    def open_for_all(self) -> None:
        self.wide_open = True
        self.open(2000)

    def __call__(self, handler: Handler, usage: dict[str, int] = USAGE) -> None:
        streamed = json.loads(handler.engine.bodies[-1]).get("stream")
        self._passes.acquire(timeout=seconds(60))
        if streamed:
            handler.stream(ROLE, delta("a"), delta(finish="stop"), LAST | {"usage": usage}, "[DONE]")
        else:
            handler.reply(200, whole(usage))


class Scene:
    """A proxy before one engine that runs so many requests at once, and sockets of clients."""

    def __init__(self, proxy: ProxyProcess, engine: ScriptedEngine, gate: Gate) -> None:
        self.proxy = proxy
        self.engine = engine
        self.gate = gate
        self.sockets: list[socket.socket] = []

    def send(self, text: str, tenant: int = 0, headers: dict[str, str] | None = None, **fields: Any) -> socket.socket:
        """A request whose answer is not read yet."""
        sock = self.proxy.send(chat(text, **fields), tenant, headers)
        self.sockets.append(sock)
        return sock

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()

    def wait(self, text: str, tenant: int = 0, **fields: Any) -> socket.socket:
        """A request that has to wait, once it does."""
        before = self.queue()["requests"]
        sock = self.send(text, tenant, **fields)
        self.waiting(before + 1)
        return sock

    def queue(self) -> dict[str, Any]:
        with self.proxy.admin() as admin:
            found: dict[str, Any] = admin.get("/admin/admission").json()["queue"]
        return found

    def waiting(self, requests: int) -> None:
        until(lambda: self.queue()["requests"] == requests, f"{requests} wait")

    def dispatched(self) -> list[str]:
        """What the engine was asked, in order."""
        return [json.loads(body)["messages"][-1]["content"].split()[0] for body in self.engine.bodies]

    def runs(self, requests: int) -> None:
        until(lambda: len(self.engine.bodies) == requests, f"the engine has been sent {requests}")

    def metric(self, name: str) -> float:
        return self.proxy.metric(f"{name} ")


@contextlib.contextmanager
def scene(folder: Path, running: int = 1, *, region: str = "east", **of_proxy: Any) -> Iterator[Scene]:
    gate = Gate()
    engine = ScriptedEngine("s0", gate)
    table = engine.toml().replace('"east"', f'"{region}"') + f"\nmax_running = {running}"
    if "queue_timeout_s" not in of_proxy.get("limits", ""):  # else who waits would be sent away after 30 s
        of_proxy["limits"] = f"queue_timeout_s = 3600\n{of_proxy.get('limits', '')}"
    proxy = ProxyProcess(folder / "p", [table], region=region, **of_proxy)
    found = Scene(proxy, engine, gate)
    try:
        proxy.start(free_port())  # which it has again when it is started again
        yield found
    finally:
        gate.open_for_all()
        found.close()
        proxy.stop()
        engine.stop()


def test_what_an_engine_cannot_run_waits_and_goes_when_there_is_room(tmp_path: Path) -> None:
    with scene(tmp_path, running=2) as it:
        asked = [it.send("first"), it.send("second")]
        it.runs(2)
        asked += [it.wait("third", stream=True), it.wait("fourth")]
        assert len(it.engine.bodies) == 2
        for done in range(3, 5):
            it.gate.open()
            it.runs(done)
        assert it.dispatched()[2:] == ["third", "fourth"]
        it.gate.open_for_all()
        answers = [answer(sock) for sock in asked]
        assert {status for status, _, _ in answers} == {200}
        assert events(answers[2][2])
        assert it.metric("warmroute_queue_wait_seconds_count") == 2
        assert len(it.proxy.rows(expected=4)) == 4


def test_a_full_queue_is_a_429_that_says_when_to_come_back(tmp_path: Path) -> None:
    with scene(tmp_path, limits="queue_requests = 2") as it:
        it.send("runs")
        it.runs(1)
        waits = [it.wait("waits") for _ in range(2)]
        began_s = time.monotonic()
        status, headers, body = answer(it.send("refused"))
        error = json.loads(body)["error"]
        assert (status, error["code"], error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
        assert 1 <= int(headers["retry-after"]) <= 60
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"] == f"{headers['retry-after']}s"
        later = answer(it.send("refused"))
        apart_s = time.monotonic() - began_s  # the later one may come back a second behind the earlier one
        assert int(later[1]["retry-after"]) + apart_s >= int(headers["retry-after"]) + 1
        assert it.metric('warmroute_refused_total{reason="queue_full"}') == 2
        it.gate.open_for_all()
        assert [answer(sock)[0] for sock in waits] == [200, 200]
        assert len(it.proxy.rows(expected=3)) == 3  # nothing of what was refused


def test_bodies_that_wait_have_a_limit_in_bytes(tmp_path: Path) -> None:
    with scene(tmp_path, limits="queue_bytes = 30000") as it:
        it.send("runs")
        it.runs(1)
        it.wait("waits " * 3000)
        assert answer(it.send("refused " * 3000))[0] == 429


def test_who_waits_too_long_is_told_so(tmp_path: Path) -> None:
    with scene(tmp_path, limits="queue_timeout_s = 0.3") as it:
        it.send("runs")
        it.runs(1)
        status, headers, body = answer(it.send("waits", stream=True))
        assert status == 429
        assert "retry-after" in headers
        assert "within 0.3 s" in json.loads(body)["error"]["message"]
        assert it.metric('warmroute_refused_total{reason="queue_timeout"}') == 1
        assert it.queue()["requests"] == it.queue()["bytes"] == 0


def test_who_leaves_while_waiting_leaves_nothing(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        runs = it.send("runs")
        it.runs(1)
        it.wait("leaves").close()
        it.waiting(0)
        stays = it.wait("stays")
        it.gate.open_for_all()
        assert [answer(sock)[0] for sock in (runs, stays)] == [200, 200]
        assert it.dispatched() == ["runs", "stays"]
        assert it.metric("warmroute_queue_left_total") == 1
        assert len(it.proxy.rows(expected=2)) == 2


def test_who_waits_when_the_proxy_shuts_down_is_sent_elsewhere(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        runs = it.send("runs")
        it.runs(1)
        waits = it.wait("waits")
        assert it.proxy.child is not None
        os.kill(it.proxy.child.pid, signal.SIGTERM)
        status, headers, body = answer(waits)
        assert (status, json.loads(body)["error"]["code"], headers["retry-after"]) == (503, "draining", "1")
        it.gate.open_for_all()
        assert answer(runs)[0] == 200  # what had begun ends


def test_the_engines_own_word_is_the_limit(tmp_path: Path) -> None:
    """Slots, and the pool: what is resident there fills it, whatever was sent."""
    with scene(tmp_path, running=1000) as it:
        row = {"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0, "num_total_tokens": 0}
        it.engine.loads = json.dumps({"loads": [row | {"max_running_requests": 2}]}).encode()
        until(lambda: worker(it).get("running_limit") == 2, "the limit is known")
        for _ in range(2):
            it.send("runs")
        it.runs(2)
        it.wait("waits")
        room = row | {"max_running_requests": 100, "max_total_num_tokens": 500, "num_total_tokens": 1000}
        it.engine.loads = json.dumps({"loads": [room]}).encode()
        until(lambda: "token_limit" in worker(it), "the pool is known")
        assert worker(it)["token_limit"] <= 500
        assert it.queue()["requests"] == 1  # two prompts fill a pool of 500
        it.engine.loads = json.dumps({"loads": [room | {"max_total_num_tokens": 50_000}]}).encode()
        it.runs(3)


def worker(it: Scene) -> dict[str, Any]:
    return it.proxy.workers()["s0"]


def test_a_tenants_minute_is_shown_and_held(tmp_path: Path) -> None:
    with scene(tmp_path, running=100, second="requests_per_minute = 2\ntokens_per_minute = 1200") as it:
        it.gate.open_for_all()
        answers = [answer(it.send("a", tenant=1)) for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        for _, headers, _ in answers:
            assert headers["x-ratelimit-limit-requests"] == "2"
            assert headers["x-ratelimit-limit-tokens"] == "1200"
            assert re.fullmatch(r"(\d+m)?[\d.]+s|\d+ms", headers["x-ratelimit-reset-requests"])
            assert 0 < int(headers["x-ratelimit-remaining-tokens"]) < 1200
        assert answers[1][1]["x-ratelimit-remaining-requests"] == "0"
        assert 1 <= int(answers[2][1]["retry-after"]) <= 30
        assert "2 requests a minute" in json.loads(answers[2][2])["error"]["message"]
        assert it.metric('warmroute_refused_total{reason="requests_per_minute"}') == 1
        status, headers, _ = answer(it.send("b"))  # the other tenant has no limits
        assert (status, [name for name in headers if name.startswith("x-ratelimit")]) == (200, [])


def test_what_a_tenant_has_used_is_put_right_by_what_it_did_use(tmp_path: Path) -> None:
    with scene(tmp_path, running=100, second="tokens_per_minute = 100000") as it:
        it.gate.open_for_all()
        answer(it.send("a" * 20_000, tenant=1))  # estimated at 5,000; the engine says 402
        with it.proxy.admin() as admin:
            left = admin.get("/admin/admission").json()["tenants"]["second"]["tokens_remaining"]
        assert left >= 100_000 - 402


def test_an_answer_has_an_end_in_total(tmp_path: Path) -> None:
    total_s = configured(0.5)
    with scene(tmp_path, running=100, limits=f"total_timeout_s = {total_s}") as it:
        for stream in (False, True):
            status, _, body = answer(it.send("a", stream=stream))
            error = json.loads(body)["error"]
            assert (status, error["code"]) == (504, "deadline_exceeded")
            assert f"{total_s:g} s" in error["message"]
        assert worker(it)["failures_in_a_row"] == 0
        assert [(row["outcome"], row["price_nanousd"]) for row in it.proxy.rows(expected=2)] == [("cut_off", 0)] * 2


def test_a_key_that_was_turned_away_is_a_new_try_and_one_that_waits_is_joined(tmp_path: Path) -> None:
    with scene(tmp_path, limits="queue_requests = 1") as it:
        runs = it.send("runs")
        it.runs(1)
        waits = it.wait("keyed", headers={"idempotency-key": "k1"})
        joins = it.send("keyed", headers={"idempotency-key": "k1"})
        assert answer(it.send("other", headers={"idempotency-key": "k2"}))[0] == 429
        it.gate.open_for_all()
        assert answer(runs)[0] == 200
        assert answer(waits)[2] == answer(joins)[2]
        assert answer(it.send("other", headers={"idempotency-key": "k2"}))[0] == 200
        assert it.dispatched() == ["runs", "keyed", "other"]


def test_a_region_without_room_sends_on_to_one_that_has_it(tmp_path: Path) -> None:
    with (
        scene(tmp_path, region="west") as far,
        scene(tmp_path, limits="queue_requests = 2", peer=("west", far.proxy.url), keys=far.proxy.keys) as it,
    ):
        it.proxy.sees("west")
        here = it.send("here")
        it.runs(1)
        there = it.send("there")
        far.runs(1)
        it.gate.open_for_all()
        far.gate.open_for_all()
        assert answer(here)[1]["x-warmroute-home"] == "east"
        assert answer(there)[1]["x-warmroute-home"] == "west"
        assert far.proxy.rows(expected=1)[0]["forwarded_from"] == "east"


def test_a_client_comes_back_when_it_was_told(tmp_path: Path) -> None:
    with scene(tmp_path, limits="queue_requests = 0") as it:
        runs = it.send("runs")
        it.runs(1)

        def make_room() -> None:
            until(lambda: it.metric('warmroute_refused_total{reason="queue_full"}') >= 1, "it is refused")
            it.gate.open_for_all()

        threading.Thread(target=make_room).start()
        with warmroute.OpenAI(api_key=it.proxy.keys[0], base_url=it.proxy.base_url, max_retries=20) as asks:
            body = chat("comes back")
            found = asks.chat.completions.create(model=body["model"], messages=body["messages"])
            assert found.choices[0].message.content == "hi"
            said: list[Any] = [found.choices[0].message, {"role": "user", "content": "again"}]
            again = asks.chat.completions.create(model=body["model"], messages=[*body["messages"], *said])
            receipts = [each.usage.model_dump()["warmroute"] for each in (found, again) if each.usage]
            report = asks.cache.report()
            assert (report.turns, report.receipts_pending, report.violations_found) == (2, 0, 0)
            assert len({receipt["session"] for receipt in receipts}) == len(report.by_session) == 1
            assert {receipt["id"] for receipt in receipts} <= {row["id"] for row in it.proxy.rows(expected=3)}
        assert answer(runs)[0] == 200
