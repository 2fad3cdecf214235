"""What engines are sent, and what becomes of answers that no engine should give (a scripted mock gives them)."""

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apis.played import Said, Scene, completion, streamed
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, chat, events, until
from tests.subjects.scripted import ROLE, Handler, Script, ScriptedEngine, delta, whole
from tests.subjects.stopped import Several
from warmroute.contract import receipt as contract_receipt
from warmroute.contract.identity import SESSION_HEADERS
from warmroute_proxy.server.control.exposition import page_of

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
def serving(folder: Path, *scripts: Script, limits: str = "") -> Iterator[tuple[ProxyProcess, list[ScriptedEngine]]]:
    with (
        Several([ScriptedEngine(f"s{number}", script) for number, script in enumerate(scripts)]) as engines,
        ProxyProcess(folder / "p", [engine.toml() for engine in engines], limits=limits) as proxy,
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


CHAT = "/v1/chat/completions"
BUSY = Said(b'{"error":{"message":"slow down"}}', 429, headers={"retry-after": "7"})
FULL = {"object": "error", "message": "The request queue is full.", "type": "x", "param": None, "code": 503}
REFUSES = Said(json.dumps(FULL).encode(), 503)


class Raw(Said):
    """An answer of bytes that go on until nobody reads them any more, or end without a word."""

    def __init__(self, begun: bytes = b"", more: bytes = b"") -> None:
        super().__init__(begun, cut=True)
        self.more = more

    def reads(self) -> Iterator[bytes]:
        if self.body:
            yield self.body
        while self.more:
            yield self.more


FAULTS: dict[str, Said] = {
    "an error first": streamed({"error": FULL}, LAST, "[DONE]"),
    "a role, then an error": streamed(
        ROLE, {"error": {**FULL, "message": "transfer failed", "code": 500}}, LAST, "[DONE]"
    ),
    "a full queue": REFUSES,
    "no stream": Said(b"{}"),
    "no answer": Raw(),
    "a head without end": Raw(b"HTTP/1.1 200 OK\r\n", b"x: %b\r\n" % (b"y" * 1000)),
    "a header without end": Raw(b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1000),
    "only roles": streamed(*[ROLE] * 10_000),
    "only hints": Raw(b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 20),
}


def asked(**fields: Any) -> bytes:
    return json.dumps(chat(**fields)).encode()


def played(folder: Path, *answers: Said, kind: str = "sglang", engines: int = 0) -> Scene:
    return Scene(folder / "p", list(answers), kind=kind, engine_count=engines)


def workers(scene: Scene) -> list[dict[str, Any]]:
    assert scene.router is not None
    return list(scene.router.snapshot(0.0)["workers"].values())


def test_an_engine_that_is_not_sglang_gets_none_of_its_fields(tmp_path: Path) -> None:
    answer = played(tmp_path, completion({"content": "hi"}, USAGE), kind="openai").play(CHAT, asked())
    assert (answer.status, answer.sent) == (200, [(0, chat())])


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_fails_before_the_first_content_has_a_proper_status(tmp_path: Path, fault: Said) -> None:
    answer = played(tmp_path, fault).play(CHAT, asked(stream=True))
    assert answer.status in {502, 503}
    assert json.loads(answer.body)["error"]["message"]
    assert answer.receipt_id
    assert answer.headers.get("retry-after") == ("1" if answer.status == 503 else None)
    assert len(answer.sent) == 1  # there is no other engine to try
    assert answer.row is not None
    row = [answer.row[name] for name in ("outcome", "price_nanousd", "status")]
    assert row == ["engine_error", 0, answer.status]
    assert contract_receipt.check(json.loads(answer.row["usage"])) == []


@pytest.mark.parametrize(
    ("fault", "stream"),
    [*((fault, True) for fault in FAULTS.values()), *((fault, False) for fault in (REFUSES, BUSY, Raw()))],
)
def test_it_is_tried_once_more_on_another_engine(tmp_path: Path, fault: Said, stream: bool) -> None:
    scene = played(tmp_path, fault, completion({"content": "a"}, USAGE, stream=stream))
    answer = scene.play(CHAT, asked(stream=stream))
    assert (answer.status, {engine for engine, _ in answer.sent}) == (200, {0, 1})
    assert answer.row is not None
    assert answer.row["outcome"] == "completed"
    rids = [body["rid"] for _, body in answer.sent]
    assert json.loads(answer.row["rids"]) == rids
    assert len(set(rids)) == len(rids) == 2
    assert scene.aborted == rids[:1]


def test_a_truncated_stream_does_not_look_finished(tmp_path: Path) -> None:
    """Nothing but the end of the connection ends it, as with HTTP/1.0, and it comes within an event."""
    said = "".join(f"data: {json.dumps(each)}\n\n" for each in (ROLE, delta("a"), delta("b")))[:-20]
    scene = played(tmp_path, Raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + said.encode()))
    answer = scene.play(CHAT, asked(stream=True))
    assert "error" in events(answer.body.decode())[-1]
    assert b"[DONE]" not in answer.body
    assert not answer.whole
    assert answer.row is not None
    assert [answer.row[name] for name in ("outcome", "price_nanousd", "status")] == ["engine_error", 0, 200]
    assert scene.aborted == json.loads(answer.row["rids"])


@pytest.mark.parametrize("status", [429, 503])
def test_what_all_engines_shed_is_passed_on_with_its_time(tmp_path: Path, status: int) -> None:
    scene = played(tmp_path, *[replace(BUSY, status=status)] * 2, engines=3)
    answer = scene.play(CHAT, asked())
    assert (answer.status, answer.headers["retry-after"]) == (status, "7")
    assert len({engine for engine, _ in answer.sent}) == len(answer.sent) == 2
    if status == 429:
        error = json.loads(answer.body)["error"]
        assert (error["message"], error["code"]) == ("slow down", "rate_limit_exceeded")
        assert {worker["failures_in_a_row"] for worker in workers(scene)} == {0}, "to shed load is no fault"


def test_retries_are_a_share_of_what_is_served(tmp_path: Path) -> None:
    scene = played(tmp_path, *[BUSY] * 60, engines=2)
    assert {answer.status for answer in scene.play_turns(CHAT, [lambda _: asked()] * 30)} == {429}
    assert 30 < len(scene.sent) < 60  # else each would have been tried twice
    assert "warmroute_retries_refused_total" in page_of(scene.metrics, [])


LATIN_1 = {
    400: (b'{"object":"error","message":"caf\xe9","code":400}', {400}),
    200: (whole(None)[:-1] + b',"usage":{"prompt_tokens":"\xe9"}}', {200, 502}),
    204: (b"", {502}),
}


@pytest.mark.parametrize("status", LATIN_1)
def test_bytes_that_are_no_json_get_an_answer_too(tmp_path: Path, status: int) -> None:
    body, statuses = LATIN_1[status]
    scene = played(tmp_path, Said(body, status))
    answer = scene.play(CHAT, asked())
    assert answer.status in statuses
    assert answer.row is not None
    assert answer.row["state"] == "settled"
    assert workers(scene)[0]["running"] == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_abort_that_nobody_asked_for_is_an_error(tmp_path: Path, stream: bool) -> None:
    """With one of its settings SGLang says nothing else where its queue was full or a transfer failed."""
    said = completion({"content": "a"}, USAGE, reason="abort")
    if stream:
        said = streamed(ROLE, delta(finish="abort"), LAST, "[DONE]")
    answer = played(tmp_path, said).play(CHAT, asked(stream=stream))
    assert answer.status == 503
    assert answer.row is not None
    assert answer.row["outcome"] == "engine_error"


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
