"""Turns that wait until there is KV memory for them, over real sockets, before an engine with a small pool."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.subjects.processes import answer, events, until
from tests.subjects.scripted import Handler, Script
from tests.subjects.websockets import MODEL, Socket

from .test_admission import USAGE, Gate, Scene, scene, worker

pytestmark = pytest.mark.full

KEPT = "warmroute_body_memory_bytes"
POOL = 30_000
"""Tokens; an unknown prompt counts as a token for 4 bytes or so."""


def pool_of(tokens: int) -> bytes:
    """What an engine with a pool of this size reports at `/v1/loads`."""
    row = {"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0, "num_total_tokens": 0}
    return json.dumps({"loads": [row | {"max_running_requests": 100, "max_total_num_tokens": tokens}]}).encode()


def small_pool(it: Scene) -> None:
    """Have the engine report a pool that holds one long conversation, and the proxy know it."""
    it.engine.loads = pool_of(POOL)
    until(lambda: worker(it).get("token_limit") == POOL, "the pool is known")


def long_text(name: str, thousands: int = 18) -> str:
    """About so many thousand tokens, of which no other text has any."""
    return f"{name} " + f"{name}-word " * (thousands * 4000 // (len(name) + 6))


def test_a_turn_whose_kv_does_not_fit_waits_for_memory(tmp_path: Path) -> None:
    with scene(tmp_path, running=100) as it:
        small_pool(it)
        first = it.send(long_text("first"))
        it.runs(1)
        second = it.wait(long_text("second"), stream=True)
        queue = it.queue()
        assert queue["for_memory"] == 1
        assert it.metric("warmroute_queue_memory_requests") == 1
        small = it.send("a small one passes")
        it.runs(2)
        assert it.queue()["for_memory"] == 1
        it.gate.open_for_all()
        answers = [answer(sock) for sock in (first, second, small)]
        assert {status for status, _, _ in answers} == {200}
        assert events(answers[1][2])
        assert it.metric("warmroute_queue_memory_wait_seconds_count") == 1
        with it.proxy.admin() as admin:
            decisions = admin.get("/admin/decisions").json()["decisions"]
            working_set = admin.get("/admin/admission").json()["working_set"]
        assert sorted(decision["memory_wait_s"] > 0 for decision in decisions) == [False, False, True]
        (books,) = working_set.values()
        assert books["pool_tokens"] == POOL
        assert books["in_use"] == 0


def test_after_the_bound_it_is_served_whatever_it_evicts(tmp_path: Path) -> None:
    with scene(tmp_path, running=100, limits="working_set_wait_s = 0.3") as it:
        small_pool(it)
        first = it.send(long_text("first"))
        it.runs(1)
        second = it.send(long_text("second"))
        it.runs(2)  # although the first one has not ended
        it.gate.open_for_all()
        assert {answer(sock)[0] for sock in (first, second)} == {200}


def test_it_is_off_by_one_key(tmp_path: Path) -> None:
    with scene(tmp_path, running=100, limits="working_set_wait_s = 0") as it:
        small_pool(it)
        asked = [it.send(long_text(name)) for name in ("first", "second", "third")]
        it.runs(2)
        it.gate.open_for_all()
        assert {answer(sock)[0] for sock in asked} == {200}
        assert it.metric("warmroute_queue_memory_wait_seconds_count") == 0


def test_a_session_that_could_not_begin_is_told_why_and_keeps_its_place(tmp_path: Path) -> None:
    key = {"x-session-affinity": "ticket-1"}
    with scene(tmp_path, running=100) as it:
        small_pool(it)
        full_of_running_sessions(it)
        status, headers, body = answer(it.send(long_text("new"), headers={**key, "x-warmroute-wait": "no"}))
        assert (status, 1 <= int(headers["retry-after"]) <= 60) == (429, True)
        message = json.loads(body)["error"]["message"]
        assert "no new one can begin yet: about" in message
        assert "0 sessions are before this one" in message
        assert it.metric('warmroute_refused_total{reason="wait_declined"}') == 1
        later = it.wait(long_text("later"))
        status, _, body = answer(it.send(long_text("last"), headers={"x-warmroute-wait": "no"}))
        assert status == 429
        assert "2 sessions are before this one" in json.loads(body)["error"]["message"]
        again = it.wait(long_text("new"), headers=key)
        assert it.queue()["to_begin"] == it.metric("warmroute_queue_begin_requests") == 2
        it.gate.open_for_all()
        ids = []
        for sock in (again, later):
            status, headers, _ = answer(sock)
            assert status == 200
            ids.append(headers["x-warmroute-receipt"])
        with it.proxy.admin() as admin:
            decided = [each["id"] for each in admin.get("/admin/decisions").json()["decisions"]]
        assert sorted(ids, key=decided.index, reverse=True) == ids, "the one that kept its place went first"
        assert it.metric("warmroute_begun_total") == 2


def test_new_sessions_wait_as_others_where_the_door_is_off(tmp_path: Path) -> None:
    with scene(tmp_path, running=100, limits="working_set_wait_s = 0.3\nnew_sessions_wait = false") as it:
        small_pool(it)
        full_of_running_sessions(it)
        new = it.send(long_text("new"))
        it.runs(3)
        it.gate.open_for_all()
        assert answer(new)[0] == 200


def full_of_running_sessions(it: Scene) -> None:
    """One session has the memory, and a turn of another one waits for it."""
    running = it.queue()["requests"]
    it.send(long_text("first"))
    until(lambda: worker(it)["running"] > 0, "a session runs")
    it.send(long_text("running"), turns=2)
    it.waiting(running + 1)


def test_a_stream_that_waits_goes_to_another_region_until_its_head_is_sent(tmp_path: Path) -> None:
    text, up = long_text("second", 9), 'warmroute_region_up{peer="west"}'
    with scene(tmp_path, region="west") as west:
        west.engine.script = counted(west.gate)
        west.gate.open_for_all()
        of_east: dict[str, Any] = {"peer": ("west", west.proxy.url), "keys": west.proxy.keys}
        with scene(tmp_path, limits="head_hold_s = 3600\nworking_set_wait_s = 3600", **of_east) as it:
            small_pool(it)
            it.proxy.sees("west")
            it.send(long_text("first"))
            it.runs(1)
            assert answer(it.send(text))[1]["x-warmroute-home"] == "west", "the engine here has no room"
            west.proxy.stop()
            until(lambda: it.metric(up) == 0, "the other region is away")
            waits = it.wait(text, turns=2, stream=True)
            assert it.queue()["for_memory"] == 1
            west.proxy.start(int(west.proxy.url.rpartition(":")[2]))
            assert answer(waits)[1]["x-warmroute-home"] == "west"


def test_how_a_turn_ends_is_known_from_its_answer_and_from_its_client(tmp_path: Path) -> None:
    """What is over is protected no longer, so that the next session finds room at once."""
    with scene(tmp_path, running=100) as it:
        small_pool(it)
        it.gate.open_for_all()
        assert answer(it.send(long_text("first"), headers={"x-warmroute-expect": "end"}))[0] == 200
        assert books(it)["protected_tokens"] == 0
        assert answer(it.send(long_text("second"), headers={"x-warmroute-expect": "sideways"}))[0] == 200
        assert books(it)["protected_tokens"] > 0


def test_the_end_of_a_session_is_told_between_its_turns(tmp_path: Path) -> None:
    with scene(tmp_path, running=100) as it:
        small_pool(it)
        it.gate.open_for_all()
        key = {"x-session-affinity": "ticket-4711"}
        assert answer(it.send(long_text("first"), headers=key))[0] == 200
        held = books(it)["protected_tokens"]
        assert held > 0

        def say(word: str, tenant: int = 0, headers: dict[str, str] = key) -> int:
            with it.proxy.client(tenant) as client:
                return client.post("/v1/sessions/expect", headers={**headers, "x-warmroute-expect": word}).status_code

        assert say("human") == 204
        assert say("end", tenant=1) == 204  # that tenant's session of this name, which there is not
        assert say("end", headers={"x-session-affinity": "another"}) == 204
        assert books(it)["protected_tokens"] == held
        assert [say("tool"), say("sideways"), say("end", headers={})] == [400, 400, 400]
        assert say("end", headers={"x-session-affinity": "x" * 300}) == 400
        assert books(it)["protected_tokens"] == held
        assert say("end", headers={"x-opencode-session-id": "ticket-4711"}) == 204
        found = books(it)
        assert (found["protected_tokens"], found["tokens"] > 0) == (0, True)


def test_a_client_that_closes_its_websocket_between_turns_has_ended_its_conversations(tmp_path: Path) -> None:
    """The next session finds room at once, and other conversations of the same session stay protected."""
    key = {"x-session-affinity": "ticket-4711"}
    with scene(tmp_path, running=100) as it:
        small_pool(it)
        it.engine.script = counted(it.gate)
        it.gate.open(2)
        with Socket(it.proxy, headers=key | {"thread-id": "sub-agent"}) as sub_agent:
            sub_agent.answer(long_text("sub", 4))
            held = books(it)["protected_tokens"]
            with Socket(it.proxy, headers=key | {"thread-id": "main"}) as main:
                main.answer(long_text("first"))
                it.send("small")  # while nothing runs, a worker takes any turn
                it.runs(3)
                it.wait(long_text("second"))
            until(lambda: it.queue()["requests"] == 0, "the second turn finds room")
            it.runs(4)
            it.gate.open(2)
            until(lambda: books(it)["in_use"] == 0, "all are served")
            assert books(it)["protected_tokens"] > held > 0


def test_a_client_that_closes_its_websocket_within_a_turn_or_connects_again_may_go_on(tmp_path: Path) -> None:
    key = {"x-session-affinity": "ticket-4711"}
    with scene(tmp_path, running=100) as it:
        small_pool(it)
        it.gate.open()
        with Socket(it.proxy, headers=key) as first:
            first.answer(long_text("first"))
            it.gate.open()
            with Socket(it.proxy, headers=key) as again:
                again.answer(long_text("first"))
                first.connection.close()
                held = books(it)["protected_tokens"]
                assert held > 0
                again.send(long_text("first"))
                it.runs(3)
        it.gate.open()
        until(lambda: books(it)["in_use"] == 0, "the turn is broken off")
        assert books(it)["protected_tokens"] > 0


def test_a_conversation_that_goes_on_elsewhere_is_not_over_when_a_websocket_closes(tmp_path: Path) -> None:
    """On another connection, as that of a sub-agent with the same prompt, or by POST."""
    key = {"x-session-affinity": "ticket-4711"}
    with scene(tmp_path, running=100) as it:
        small_pool(it)
        it.gate.open_for_all()
        with Socket(it.proxy, headers=key) as first:
            first.answer(long_text("first"))
            kept = it.metric(KEPT)
            with Socket(it.proxy, headers=key) as second:
                second.answer(long_text("first"))
            kept_are(it, kept)
            assert books(it)["protected_tokens"] > 0
            first.answer(long_text("first"))
            by_post = {"model": MODEL, "messages": [{"role": "user", "content": long_text("first")}]}
            with it.proxy.send(by_post, headers=key) as sock:
                assert answer(sock)[0] == 200
        kept_are(it, 0)
        assert books(it)["protected_tokens"] > 0
        with Socket(it.proxy, headers=key) as last, Socket(it.proxy, headers=key) as before:
            before.answer(long_text("first"))
            last.answer(long_text("first"))
            before.connection.close()
        until(lambda: books(it)["protected_tokens"] == 0, "the last connection has ended it")


def test_a_turn_that_failed_is_none_that_its_client_is_done_with(tmp_path: Path) -> None:
    """It connects again for its retry."""
    key = {"x-session-affinity": "ticket-4711"}
    with scene(tmp_path, running=100, limits="queue_requests = 1") as it:
        small_pool(it)
        it.gate.open_for_all()
        with Socket(it.proxy, headers=key) as socket:
            socket.answer(long_text("first"))
            it.engine.script = lambda handler: handler.reply(400, b'{"message":"no"}')
            assert socket.ask(long_text("first"))["type"] == "error"
        kept_are(it, 0)
        assert books(it)["protected_tokens"] > 0


def kept_are(it: Scene, size_bytes: float) -> None:
    """Wait until all WebSockets together keep `size_bytes`. The proxy has seen a close once its bytes are gone."""
    until(lambda: it.metric(KEPT) == size_bytes, f"{size_bytes} bytes are kept")


def counted(gate: Gate) -> Script:
    """An engine that counts the tokens of its prompts, as the proxy estimates them at first."""

    def answer(handler: Handler) -> None:
        gate(handler, {**USAGE, "prompt_tokens": len(handler.engine.bodies[-1]) // 4})

    return answer


def books(it: Scene) -> dict[str, int]:
    with it.proxy.admin() as admin:
        (found,) = admin.get("/admin/admission").json()["working_set"].values()
    return dict(found)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A small pool, and streams that show a sign of life soon."""
    with scene(tmp_path_factory.mktemp("held"), running=100, limits="head_hold_s = 0.1") as it:
        small_pool(it)
        it.engine.script = counted(it.gate)
        yield it


@pytest.mark.parametrize(
    ("path", "body", "first_line", "sign", "last"),
    [
        ("/v1/chat/completions", {"stream": True}, "", ":", "[DONE]"),
        (
            "/v1/messages",
            {"max_tokens": 5, "stream": True},
            "event: message_start",
            "event: ping",
            "message_stop",
        ),
        ("/v1/responses", {"stream": True}, "", ":", "response.completed"),
        ("/v1beta/models/kimi-k2.5:streamGenerateContent?alt=sse", {}, "", "", '"finishReason"'),  # an empty line
    ],
)
def test_a_stream_that_waits_shows_a_sign_of_life(
    held: Scene, path: str, body: dict[str, object], first_line: str, sign: str, last: str
) -> None:
    it, text = held, long_text(f"second-{path}")
    messages: dict[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    prompts: dict[str, dict[str, object]] = {
        "/v1/chat/completions": messages, "/v1/messages": messages, "/v1/responses": {"model": MODEL, "input": text}
    }  # fmt: skip
    prompt = prompts.get(path, {"contents": [{"role": "user", "parts": [{"text": text}]}]})
    before = len(it.engine.bodies)
    first = it.send(long_text(f"first-{path}"))
    it.runs(before + 1)
    lines: list[str] = []
    ends = False
    with it.proxy.client() as client, client.stream("POST", path, json=body | prompt) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            lines.append(line)
            if line.startswith(sign) and not ends:
                assert it.queue()["for_memory"] == 1
                it.gate.open(2)
                ends = True
    assert answer(first)[0] == 200
    assert lines[0].startswith(first_line)
    assert ends
    assert any(last in line for line in lines)
