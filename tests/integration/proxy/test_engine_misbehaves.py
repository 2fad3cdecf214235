"""What engines are sent, and what becomes of answers that no engine should give (a scripted mock gives them)."""

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, chat, events, until
from tests.subjects.scripted import ROLE, Handler, Script, ScriptedEngine, delta, whole
from tests.subjects.stopped import Several
from warmroute.contract import receipt as contract_receipt
from warmroute.contract.identity import SESSION_HEADERS

from .test_faults import Stream

pytestmark = pytest.mark.full

USAGE = {
    "prompt_tokens": 400,
    "completion_tokens": 2,
    "total_tokens": 402,
    "prompt_tokens_details": {"cached_tokens": 128},
}
LAST = {"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": USAGE}


@contextlib.contextmanager
def serving(
    folder: Path, *scripts: Script, kind: str = "sglang", limits: str = ""
) -> Iterator[tuple[ProxyProcess, list[ScriptedEngine]]]:
    with (
        Several([ScriptedEngine(f"s{number}", script) for number, script in enumerate(scripts)]) as engines,
        ProxyProcess(folder / "p", [engine.toml(kind) for engine in engines], limits=limits) as proxy,
    ):
        yield proxy, engines


def post(proxy: ProxyProcess, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    with proxy.client() as client:
        return client.post("/v1/chat/completions", json=chat(**fields), headers=headers or {})


def sound(handler: Handler) -> None:
    if json.loads(handler.engine.bodies[-1]).get("stream"):
        handler.stream(ROLE, delta("a"), delta("b"), delta(finish="stop"), LAST, "[DONE]")
    else:
        handler.reply(200, whole(USAGE, x_unknown={"kept": True}))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProxyProcess, ScriptedEngine]]:
    """A proxy before one engine with which nothing is wrong."""
    with serving(tmp_path_factory.mktemp("sound"), sound) as (proxy, (engine,)):
        yield proxy, engine


Served = tuple[ProxyProcess, ScriptedEngine]


def test_an_engine_sees_the_clients_body_and_neither_its_keys_nor_its_session(served: Served) -> None:
    proxy, engine = served
    steering = ("cookie", "x-smg-target-worker", "x-override-rid", "x-data-parallel-rank", "accept-encoding")
    for name in (*SESSION_HEADERS, *steering):
        headers = {name: "sess-4711", "traceparent": "00-ab-cd-01", "x-request-id": "req-1"}
        answer = post(proxy, headers, x_unknown=[1.50, None])
        assert answer.status_code == 200
        assert answer.json()["x_unknown"] == {"kept": True}
        head = engine.heads[-1]
        assert set(head) <= {"host", "content-type", "content-length", "accept", "traceparent", "x-request-id"}
        assert "sess-4711" not in json.dumps(head) + engine.bodies[-1].decode()
    sessions = ("session_id", "prompt_cache_key", "promptCacheKey", "conversation")
    for field in (*sessions, "rid", "priority", "kv_hints"):
        post(proxy, None, **{field: "sess-4711" if field != "priority" else 9})
        assert b"sess-4711" not in engine.bodies[-1]
        if field == "rid":
            assert engine.sent()["rid"] != "sess-4711"
        else:
            assert field not in engine.sent()
    sent = engine.sent()
    added = {"rid", "cache_salt", "return_cached_tokens_details"}
    assert {name: value for name, value in sent.items() if name not in added} == chat()
    assert len(sent["rid"]) == 32
    assert len(sent["cache_salt"]) == 64
    rids = [json.loads(body)["rid"] for body in engine.bodies]
    assert len(set(rids)) == len(rids)


def test_claude_codes_user_id_stays_here_and_other_metadata_passes(served: Served) -> None:
    proxy, engine = served
    user_id = json.dumps({"device_id": "d", "session_id": "sess-4711"})
    named = post(proxy, None, metadata={"user_id": user_id, "team": "a"})
    assert engine.sent()["metadata"] == {"team": "a"}
    assert named.json()["usage"]["warmroute"]["session"]
    post(proxy, None, metadata={"user_id": "just-a-user"})
    assert engine.sent()["metadata"] == {"user_id": "just-a-user"}


def test_the_clients_stream_options_are_kept_and_usage_is_asked_for(served: Served) -> None:
    proxy, engine = served
    post(proxy, stream=True, stream_options={"continuous_usage_stats": True})
    assert engine.sent()["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}


def test_connections_to_an_engine_are_used_again(served: Served) -> None:
    proxy, engine = served
    before = engine.connections
    for number in range(20):
        assert post(proxy, stream=number < 10).status_code == 200
    assert engine.connections <= before + 2  # the first of turns, and of probes


def test_an_engine_that_is_not_sglang_gets_none_of_its_fields(tmp_path: Path) -> None:
    with serving(tmp_path, sound, kind="openai") as (proxy, (engine,)):
        assert post(proxy).status_code == 200
        assert engine.sent() == chat()


def test_a_truncated_stream_does_not_look_finished(tmp_path: Path) -> None:
    """Nothing but the end of the connection ends it, as with HTTP/1.0, and it comes within an event."""

    def ends_within_an_event(handler: Handler) -> None:
        events = [f"data: {json.dumps(each)}\n\n" for each in (ROLE, delta("a"), delta("b"))]
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.end_headers()
        handler.wfile.write("".join(events)[:-20].encode())
        handler.cut()

    with serving(tmp_path, ends_within_an_event) as (proxy, (engine,)):
        assert Stream(proxy, chat(stream=True)).done().failed_clearly
        row = proxy.rows(expected=1)[0]
        assert (row["outcome"], row["price_nanousd"], row["status"]) == ("engine_error", 0, 200)
        until(lambda: engine.aborted == json.loads(row["rids"]), "the engine is told to stop")


def refuses(handler: Handler) -> None:
    handler.reply(503, b'{"object":"error","message":"The request queue is full.","type":"x","param":null,"code":503}')


def busy(handler: Handler) -> None:
    handler.reply(429, b'{"error":{"message":"slow down"}}', retry_after="7")


def goes_on(handler: Handler, begun: bytes, more: bytes) -> None:
    """Until nobody reads it any more."""
    with contextlib.suppress(OSError):
        handler.wfile.write(begun)
        while True:
            handler.wfile.write(more)
    handler.cut()


FULL = {"error": {"object": "error", "message": "The request queue is full.", "code": 503}}
FAILED = {"error": {"object": "error", "message": "transfer failed", "code": 500}}
FAULTS: dict[str, Script] = {
    "an error first": lambda handler: handler.stream(FULL, LAST, "[DONE]"),
    "a role, then an error": lambda handler: handler.stream(ROLE, FAILED, LAST, "[DONE]"),
    "a full queue": refuses,
    "no stream": lambda handler: handler.reply(200, b"{}"),
    "no answer": Handler.cut,
    "a head without end": lambda handler: goes_on(handler, b"HTTP/1.1 200 OK\r\n", b"x: %b\r\n" % (b"y" * 1000)),
    "a header without end": lambda handler: goes_on(handler, b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1000),
    "only roles": lambda handler: handler.stream(*[ROLE] * 10_000),
    "only hints": lambda handler: goes_on(handler, b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 20),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_fails_before_the_first_content_has_a_proper_status(tmp_path: Path, fault: Script) -> None:
    with serving(tmp_path, fault) as (proxy, (engine,)):
        answer = post(proxy, stream=True)
        assert answer.status_code in {502, 503}
        assert answer.json()["error"]["message"]
        assert answer.headers["x-warmroute-receipt"]
        assert answer.headers.get("retry-after") == ("1" if answer.status_code == 503 else None)
        assert len(engine.bodies) == 1  # there is no other engine to try
        row = proxy.rows(expected=1)[0]
        assert (row["outcome"], row["price_nanousd"], row["status"]) == ("engine_error", 0, answer.status_code)
        assert contract_receipt.check(json.loads(row["usage"])) == []


@pytest.mark.parametrize(
    ("fault", "stream"),
    [*((fault, True) for fault in FAULTS.values()), *((fault, False) for fault in (refuses, busy, Handler.cut))],
)
def test_it_is_tried_once_more_on_another_engine(tmp_path: Path, fault: Script, stream: bool) -> None:
    turn = iter([fault, sound])

    def script(handler: Handler) -> None:
        next(turn)(handler)

    with serving(tmp_path, script, script) as (proxy, engines):
        answer = post(proxy, stream=stream)
        assert answer.status_code == 200
        assert [len(engine.bodies) for engine in engines] == [1, 1]
        row = proxy.rows(expected=1)[0]
        rids = json.loads(row["rids"])
        assert len(set(rids)) == 2
        assert row["outcome"] == "completed"
        assert {json.loads(engine.bodies[0])["rid"] for engine in engines} == set(rids)
        until(lambda: [rid for engine in engines for rid in engine.aborted] == rids[:1], "the first attempt is aborted")


@pytest.mark.parametrize("status", [429, 503])
def test_what_all_engines_shed_is_passed_on_with_its_time(tmp_path: Path, status: int) -> None:
    def sheds(handler: Handler) -> None:
        handler.reply(status, b'{"error":{"message":"slow down"}}', retry_after="7")

    with serving(tmp_path, sheds, sheds, sheds) as (proxy, tried):
        answer = post(proxy)
        assert (answer.status_code, answer.headers["retry-after"]) == (status, "7")
        assert sorted(len(engine.bodies) for engine in tried) == [0, 1, 1]
        if status == 429:
            assert answer.json()["error"]["message"] == "slow down"
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
            failures = {worker["failures_in_a_row"] for worker in proxy.workers().values()}
            assert failures == {0}, "to shed load is no fault"


def test_retries_are_a_share_of_what_is_served(tmp_path: Path) -> None:
    with serving(tmp_path, busy, busy) as (proxy, engines):
        for _ in range(30):
            assert post(proxy).status_code == 429
        assert 30 < sum(len(engine.bodies) for engine in engines) < 60  # else each would have been tried twice
        assert "warmroute_retries_refused_total" in proxy.metrics()


def test_a_long_prefill_shows_signs_of_life_and_its_error_is_an_event(tmp_path: Path) -> None:
    held = threading.Event()

    def slow_failure(handler: Handler) -> None:
        assert held.wait(seconds(20))
        handler.reply(500, b'{"object":"error","message":"transfer failed","code":500}')

    with serving(tmp_path, slow_failure, limits="head_hold_s = 0.2") as (proxy, _):
        stream = Stream(proxy, chat(stream=True)).begun()
        held.set()
        assert stream.done().failed_clearly
    assert stream.status == 200
    assert stream.text.startswith(": ")
    assert events(stream.text)[-1]["error"]["message"] == "transfer failed"


def answers_in_latin_1(handler: Handler) -> None:
    handler.reply(400, b'{"object":"error","message":"caf\xe9","code":400}')


def usage_in_latin_1(handler: Handler) -> None:
    handler.reply(200, whole(None)[:-1] + b',"usage":{"prompt_tokens":"\xe9"}}')


def no_content(handler: Handler) -> None:
    handler.reply(204, b"")


@pytest.mark.parametrize(
    ("script", "statuses"), [(answers_in_latin_1, {400}), (usage_in_latin_1, {200, 502}), (no_content, {502})]
)
def test_bytes_that_are_no_json_get_an_answer_too(tmp_path: Path, script: Script, statuses: set[int]) -> None:
    with serving(tmp_path, script) as (proxy, _):
        assert post(proxy).status_code in statuses
        assert proxy.rows(expected=1)[0]["state"] == "settled"
        assert proxy.workers()["s0"]["running"] == 0


def aborted_elsewhere(handler: Handler) -> None:
    if json.loads(handler.engine.bodies[-1]).get("stream"):
        handler.stream(ROLE, delta(finish="abort"), LAST, "[DONE]")
    else:
        handler.reply(200, whole(USAGE).replace(b'"stop"', b'"abort"'))


def test_an_abort_that_nobody_asked_for_is_an_error(tmp_path: Path) -> None:
    """With one of its settings SGLang says nothing else where its queue was full or a transfer failed."""
    with serving(tmp_path, aborted_elsewhere) as (proxy, _):
        assert [post(proxy, stream=stream).status_code for stream in (False, True)] == [503, 503]
        assert [row["outcome"] for row in proxy.rows(expected=2)] == ["engine_error"] * 2


def test_a_probe_answer_that_is_garbage_ends_no_other_probe(tmp_path: Path) -> None:
    with serving(tmp_path, sound, sound) as (proxy, engines):
        for engine in engines:  # ready once: else a 503 says that it starts
            assert engine.was_probed.wait(seconds(20))
        engines[0].ready = engines[1].loads = b"\xff"
        states = {"s0": "draining", "s1": "up"}
        until(lambda: proxy.engine_states() == states, "one is seen to want no work, the other has it")


def test_what_an_engine_sends_behind_its_answer_is_nobodys(tmp_path: Path) -> None:
    """In one write with the answer: the answer is as good as without it, and the connection is not used again."""
    behind = b""

    def talkative(handler: Handler) -> None:
        wfile, written = handler.wfile, io.BytesIO()
        handler.wfile = written
        sound(handler)
        wfile.write(written.getvalue() + behind)
        handler.wfile = wfile

    with serving(tmp_path, talkative) as (proxy, (engine,)):
        for behind in b"x", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{}":  # noqa: B007 - read above
            for stream in (False, True):
                before = engine.connections
                for _ in range(3):
                    answer = post(proxy, stream=stream)
                    assert answer.status_code == 200
                    if stream:
                        assert answer.text.endswith("data: [DONE]\n\n")
                        said = [each["choices"][0]["delta"].get("content") for each in events(answer.text)]
                        assert said[1:3] == ["a", "b"]
                    else:
                        assert answer.json()["choices"][0]["message"]["content"] == "hi"
                assert engine.connections >= before + 2, "the first may have come over the connection of a probe"
        assert [row["outcome"] for row in proxy.rows(expected=18)] == ["completed"] * 18
