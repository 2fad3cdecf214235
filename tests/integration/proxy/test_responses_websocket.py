"""OpenAI's Responses over a WebSocket: through a real proxy, by the official client, in front of a scripted engine."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.resources.responses.responses import ResponsesConnection
from websockets.exceptions import ConnectionClosed

import warmroute
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, until
from tests.subjects.scripted import Handler, ScriptedEngine
from tests.subjects.websockets import LAST, MODEL, PATH, Socket
from warmroute.contract import receipt as contract_receipt

from .test_responses import OFFER, READ

# The official client connects as `websockets` no longer recommends.
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning"),
]

PATCH: Any = {"type": "custom", "name": "apply_patch", "description": "Changes files."}
_OWN = re.compile(rb'"(rid|cache_salt|extra_key)":"[^"]*"')
_USAGE = {"prompt_tokens": 40, "completion_tokens": 4, "total_tokens": 44}


def delta(**fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "finish_reason": None}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}


def ending(reason: str) -> list[Any]:
    done = {**delta(), "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return [done, {**delta(), "choices": [], "usage": _USAGE}, "[DONE]"]


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"index": number, "id": f"call_{'ab'[number]}", "type": "function", "function": function}


class Agent:
    """A model that does what the last message of its prompt says. A `slow` one waits until it may end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def __call__(self, handler: Handler) -> None:
        asked = handler.engine.sent()["messages"]
        text = json.dumps(asked[-1]["content"])
        if "fail" in text:
            handler.reply(400, b'{"message":"the engine does not like it"}')
        elif "slow" in text:
            handler.stream(delta(content="Slowly."), end=False)
            self.may_end.wait(seconds(30))
            for event in ending("stop"):
                data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            handler.wfile.write(b"0\r\n\r\n")
            handler.close_connection = False
        elif "read" in text:
            calls = [call(0, "read", '{"path":"a.txt"}'), call(1, "apply_patch", '{"input":"+a"}')]
            handler.stream(
                delta(reasoning_content="Let me "), delta(reasoning_content="see."), delta(content="Reading é."),
                delta(tool_calls=calls), *ending("tool_calls"),
            )  # fmt: skip
        else:
            handler.stream(delta(content=f"Answer {len(asked)}."), *ending("stop"))


@pytest.fixture(scope="module")
def agent() -> Agent:
    return Agent()


@pytest.fixture(scope="module")
def engine(agent: Agent) -> Iterator[ScriptedEngine]:
    started = ScriptedEngine("a0", agent)
    yield started
    agent.may_end.set()
    started.stop()


@pytest.fixture(scope="module")
def proxy(engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with ProxyProcess(tmp_path_factory.mktemp("proxy") / "p", [engine.toml()]) as started:
        yield started


@pytest.fixture(scope="module")
def client(proxy: ProxyProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=proxy.keys[0], max_retries=0) as found:
        yield found


def last_event(connection: ResponsesConnection) -> Any:
    for event in connection:
        if event.type in LAST:
            return event
    raise AssertionError("the connection has closed")


def sent(engine: ScriptedEngine) -> bytes:
    """The last body without what belongs to one request."""
    return _OWN.sub(b"", engine.bodies[-1])


def said(engine: ScriptedEngine) -> list[Any]:
    """The contents of the last prompt."""
    return [message["content"] for message in engine.sent()["messages"]]


def test_a_turn_that_sends_what_is_new_reaches_the_engine_as_all_of_it_over_http(
    client: openai.OpenAI, raw: httpx.Client, engine: ScriptedEngine, proxy: ProxyProcess
) -> None:
    more: Any = {"model": MODEL, "instructions": "Be short.", "tools": [READ, PATCH], "temperature": 0.5}
    whole: list[Any] = []
    previous: str | None = None
    results = [{"type": "function_call_output", "call_id": "call_a", "output": "a"},
               {"type": "custom_tool_call_output", "call_id": "call_b", "output": "done"}]  # fmt: skip
    part = {"type": "input_text", "text": "And read b.txt."}
    turns: list[list[Any]] = [
        [{"role": "user", "content": "Please read a.txt."}], results, [{"role": "user", "content": [part]}], results,
    ]  # fmt: skip
    with client.responses.connect() as connection:
        for items in turns:
            connection.response.create(**more, store=False, previous_response_id=previous, input=items)
            done = last_event(connection)
            assert done.type == "response.completed", done
            over_websocket = sent(engine)
            usage = done.response.usage.model_dump()
            assert contract_receipt.check(usage) == []
            row = proxy.row(usage["warmroute"]["id"])
            assert (row["route"], row["outcome"]) == (PATH, "completed")
            whole += items
            body = json.dumps({**more, "store": False, "input": whole, "stream": True}, ensure_ascii=False)
            assert raw.post(PATH, content=body).status_code == 200
            assert over_websocket == sent(engine)
            previous = done.response.id
            whole += [item.to_dict() for item in done.response.output]


def test_streams_run_side_by_side_and_their_own_turns_one_by_one(
    proxy: ProxyProcess, engine: ScriptedEngine, agent: Agent
) -> None:
    agent.may_end.clear()
    with Socket(proxy) as socket:
        socket.send("slow", stream_id="a")
        first = socket.until("response.output_text.delta")
        assert first["stream_id"] == "a"
        socket.send("behind it", stream_id="a")
        beside = socket.ask("beside it", stream_id="b")
        assert (beside["type"], beside["stream_id"]) == ("response.completed", "b")
        assert "stream_id" not in socket.ask("on no stream")
        assert said(engine) == ["on no stream"]
        agent.may_end.set()
        done = [socket.until(*LAST), socket.until(*LAST)]
        assert [(each["type"], each["stream_id"]) for each in done] == [("response.completed", "a")] * 2, done
        assert said(engine) == ["behind it"]  # it continues nothing
        fork = socket.answer("a fork", stream_id="c", previous_response_id=beside["response"]["id"])
        socket.answer("the branch goes on", stream_id="b", previous_response_id=beside["response"]["id"])
        assert said(engine) == ["beside it", "Answer 1.", "the branch goes on"]
        socket.answer("so does the fork", stream_id="c", previous_response_id=fork["id"])
        assert said(engine) == ["beside it", "Answer 1.", "a fork", "Answer 3.", "so does the fork"]


def test_a_turn_that_asks_for_nothing_is_checked_like_any_other(proxy: ProxyProcess) -> None:
    with Socket(proxy) as socket:
        for wrong, status, code in (
            ({"model": "gpt-9"}, 404, "model_not_found"),
            ({"previous_response_id": "resp_never"}, 400, "previous_response_not_found"),
        ):
            refused = socket.ask("x", generate=False, **wrong)
            assert (refused["status"], refused["error"]["code"]) == (status, code), refused
        large = socket.ask(input=[{"role": "user", "content": "x"}] * 4_000, generate=False)
        assert (large["status"], large["error"]["code"]) == (413, "request_too_large")
        item = b'{"type":"custom_tool_call","call_id":"a","name":"n","input":"\xff"}'
        asked = b'{"type":"response.create","generate":false,"model":"kimi-k2.5","input":[%b]}' % item
        socket.connection.protocol.send_text(asked)
        socket.connection.socket.sendall(b"".join(socket.connection.protocol.data_to_send()))
        assert socket.until(*LAST)["error"]["code"] == "invalid_json"
        socket.answer("all is well")


def test_what_is_not_kept_is_not_found(proxy: ProxyProcess) -> None:
    with Socket(proxy) as socket:
        response = socket.answer("here")
        later = socket.answer("later", previous_response_id=response["id"])
        for previous in ("resp_never", response["id"]):  # a stream keeps its last response
            refused = socket.ask("x", previous_response_id=previous, stream_id="s")
            assert (refused["status"], refused["stream_id"]) == (400, "s")
            error = refused["error"]
            assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
        with Socket(proxy) as other:
            assert other.ask("x", previous_response_id=later["id"])["error"]["code"] == "previous_response_not_found"
        socket.answer("it is still here", previous_response_id=later["id"])


def test_an_error_leaves_the_conversation_as_it_was(proxy: ProxyProcess, engine: ScriptedEngine) -> None:
    with Socket(proxy) as socket:
        first = socket.answer("first")["id"]
        refused = socket.ask("fail", previous_response_id=first)
        assert (refused["type"], refused["status"]) == ("error", 400)
        assert refused["error"]["message"] == "the engine does not like it"
        assert refused["headers"]["x-warmroute-receipt"].startswith("wr-")
        wrong = socket.ask("x", previous_response_id=first, temperature=-1)
        assert (wrong["status"], wrong["error"]["param"]) == (400, "temperature")
        model = socket.ask("x", model="gpt-9")
        assert (model["status"], model["error"]["code"]) == (404, "model_not_found")
        socket.answer("again", previous_response_id=first)
    assert said(engine) == ["first", "Answer 1.", "again"]


BAD = [
    ("{", "", None),
    ("[]", "", None),
    ('{"type":"response.unknown"}', "type", None),
    ('{"type":"response.create","stream_id":"a b"}', "stream_id", "invalid_stream_id"),
    ('{"type":"response.create","model":"kimi-k2.5"}', "input", "invalid_value"),
    ('{"type":"response.create","model":"kimi-k2.5","input":"x","background":true}', "background", "invalid_value"),
]


@pytest.mark.parametrize(("text", "param", "code"), BAD)
def test_bad_events_are_named_and_the_connection_goes_on(
    proxy: ProxyProcess, text: str, param: str, code: str | None
) -> None:
    with Socket(proxy) as socket:
        socket.connection.send(text)
        found = socket.event()
        assert (found["type"], found["status"], found["error"]["param"] or "") == ("error", 400, param)
        assert found["error"]["code"] == (code or "invalid_value")
        socket.answer("all is well")


def test_streams_have_a_limit(proxy: ProxyProcess) -> None:
    with Socket(proxy) as socket:
        for kind in ("response.cancel", "response.processed"):  # these make none
            socket.connection.send(json.dumps({"type": kind, "stream_id": "another"}))
        for number in range(32):
            socket.answer("x", stream_id=f"s{number}", generate=False)
        refused = socket.ask("x", stream_id="s32")
        assert (refused["error"]["code"], refused["stream_id"]) == ("websocket_stream_limit_reached", "s32")
        socket.answer("x", stream_id="s0")


def test_a_turn_that_is_cancelled_stops_the_engine(proxy: ProxyProcess, engine: ScriptedEngine, agent: Agent) -> None:
    agent.may_end.clear()
    with Socket(proxy) as socket:
        socket.send("slow")
        begun = socket.until("response.created")["response"]["id"]
        socket.until("response.output_text.delta")
        socket.connection.send('{"type":"response.cancel"}')
        ended = socket.until(*LAST)
        assert (ended["type"], ended["response"]["error"]["code"]) == ("response.failed", "cancelled")
        until(lambda: engine.aborted, "the engine is told")
        agent.may_end.set()
        assert proxy.row(begun.replace("resp_", "wr-"))["outcome"] == "client_left"
        socket.answer("the next one")


def test_a_client_that_leaves_within_a_turn_pays_as_over_http(
    proxy: ProxyProcess, engine: ScriptedEngine, agent: Agent, raw: httpx.Client
) -> None:
    agent.may_end.clear()
    aborted = len(engine.aborted)
    said_before = [{"role": "user", "content": "how " * 300}]
    with Socket(proxy) as socket:
        first = socket.answer(input=said_before)
        socket.send("slow", previous_response_id=first["id"])
        over_websocket = socket.until("response.created")["response"]["id"]
        socket.until("response.output_text.delta")
    whole = [*said_before, *first["output"], {"role": "user", "content": "slow"}]
    with raw.stream("POST", PATH, json={"model": MODEL, "input": whole, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if "output_text.delta" in line)
        over_http = stream.headers["x-warmroute-receipt"]
    until(lambda: len(engine.aborted) == aborted + 2, "the engine is told of both")
    agent.may_end.set()
    rows = [proxy.row(each.replace("resp_", "wr-")) for each in (over_websocket, over_http)]
    paid = [(row["outcome"], row["prompt_tokens"], row["completion_tokens"]) for row in rows]
    assert paid[0] == paid[1]
    assert paid[0][0] == "client_left"


def test_a_large_turn_is_served_and_continued_by_sending_all_of_it(proxy: ProxyProcess, engine: ScriptedEngine) -> None:
    with Socket(proxy) as socket:
        large = socket.answer("a long text " * 200_000)
        assert len(said(engine)[0]) == 2_400_000
        code = socket.ask("more", previous_response_id=large["id"])["error"]["code"]
        assert code == "previous_response_not_found"


def test_a_message_that_is_too_large_is_named(proxy: ProxyProcess) -> None:
    with Socket(proxy) as socket:
        socket.send("x" * 4_200_000)
        refused = socket.event()
        assert (refused["status"], refused["error"]["code"]) == (413, "request_too_large")
        assert "POST" in refused["error"]["message"]
        with pytest.raises(ConnectionClosed) as closed:
            socket.event()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_a_response_is_not_steered_and_runs_on(client: openai.OpenAI, agent: Agent) -> None:
    agent.may_end.clear()
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input="slow")
        running = next(event for event in connection if event.type == "response.created").response.id
        connection.response.steer(previous_response_id=running, input="faster")
        failed = next(event for event in connection if event.type == "response.steer.failed")
        assert (failed.steer.input, failed.error.code) == ("faster", "steering_not_supported")
        agent.may_end.set()
        assert last_event(connection).type == "response.completed"


def test_a_turn_with_a_key_is_charged_once_whatever_connection_its_retry_takes(
    proxy: ProxyProcess, engine: ScriptedEngine, agent: Agent, raw: httpx.Client
) -> None:
    agent.may_end.clear()
    with Socket(proxy) as lost:
        first = lost.answer("first")
        asked = len(engine.bodies)
        lost.send("slow", previous_response_id=first["id"], idempotency_key="one")
        begun = lost.until("response.created")["response"]["id"]
        lost.until("response.output_text.delta")
    whole = [{"role": "user", "content": "first"}, *first["output"], {"role": "user", "content": "slow"}]
    with Socket(proxy) as again:
        again.send(input=whole, idempotency_key="one")
        again.until("response.output_text.delta")
        agent.may_end.set()
        done = again.until(*LAST)["response"]
        assert (done["id"], done["status"]) == (begun, "completed")
        repeated = again.answer(input=whole, idempotency_key="one", stream_id="s")  # of what has ended
        assert repeated["usage"]["warmroute"] == done["usage"]["warmroute"]
        reused = again.ask("another", idempotency_key="one")
        assert (reused["status"], reused["error"]["code"]) == (422, "idempotency_key_reused")
        posted = raw.post(
            PATH, json={"model": MODEL, "input": whole, "stream": True}, headers={"idempotency-key": "one"}
        )
        assert begun in posted.text
        assert len(engine.bodies) == asked + 1
        again.answer("further", previous_response_id=done["id"])  # it goes on with the answer that was joined
        assert said(engine)[-2:] == ["Slowly.", "further"]
        again.answer("aside", previous_response_id=done["id"], stream_id="s")  # so does the other stream that did
        assert said(engine)[-2:] == ["Slowly.", "aside"]
    assert proxy.row(begun.replace("resp_", "wr-"))["outcome"] == "completed"


@pytest.mark.parametrize(
    ("key", "code"), [("", "invalid_idempotency_key"), ("é", "invalid_idempotency_key"), (7, "invalid_value")]
)
def test_a_key_that_is_none_is_refused(proxy: ProxyProcess, key: Any, code: str) -> None:
    with Socket(proxy) as socket:
        refused = socket.ask("x", idempotency_key=key)
        assert (refused["status"], refused["error"]["code"]) == (400, code)
        socket.answer("all is well")


def test_the_offer_is_checked(proxy: ProxyProcess, raw: httpx.Client) -> None:
    assert raw.get(PATH, headers={**OFFER, "authorization": "Bearer wrong"}).status_code == 401
    for wrong in ({"sec-websocket-version": "8"}, {"sec-websocket-key": "short"}, {"connection": "keep-alive"}):
        answer = raw.get(PATH, headers=OFFER | wrong)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request"), wrong
    keyed = raw.get(PATH, headers=OFFER | {"idempotency-key": "once"})
    assert (keyed.status_code, keyed.json()["error"]["code"]) == (400, "invalid_idempotency_key")
    assert raw.request("GET", PATH, headers=OFFER, content=b"{}").status_code == 400


def test_compression_is_declined(proxy: ProxyProcess) -> None:
    with Socket(proxy) as socket:
        request, response = socket.connection.request, socket.connection.response
        assert request is not None
        assert response is not None
        assert "permessage-deflate" in request.headers["sec-websocket-extensions"]
        assert "sec-websocket-extensions" not in response.headers
        socket.answer("a text that could be smaller " * 50)


def test_a_key_that_is_gone_is_refused_at_the_next_turn_and_the_route_can_be_off(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    with ProxyProcess(tmp_path / "p", [engine.toml()]) as proxy:
        with Socket(proxy) as socket:
            first = socket.answer("x")["id"]
            text = proxy.config.read_text()
            gone = text.replace(
                '[[tenant]]\nname = "first"\nkey_sha256 = ["', '[[tenant]]\nname = "first"\nkey_sha256 = ["00'
            )
            gone = re.sub(r'(name = "first"\nkey_sha256 = \["00.{62})..', r"\1", gone)
            proxy.config.write_text(gone.replace("[secret]", "websockets = false\n[secret]", 1))
            with proxy.admin() as admin:
                assert admin.post("/admin/reload").status_code == 200
            refused = socket.ask("y", previous_response_id=first)
            assert (refused["status"], refused["error"]["code"]) == (401, "invalid_api_key")
            assert socket.ask("y", generate=False)["status"] == 401
        with pytest.raises(Exception, match="426"):
            Socket(proxy, tenant=1)


def test_a_proxy_that_ends_finishes_a_turn_and_sends_its_client_away(
    engine: ScriptedEngine, agent: Agent, tmp_path: Path
) -> None:
    agent.may_end.clear()
    with (
        ProxyProcess(tmp_path / "p", [engine.toml()], limits="shutdown_grace_s = 60") as proxy,
        Socket(proxy) as busy,
        Socket(proxy) as idle,
    ):
        busy.send("slow")
        busy.until("response.output_text.delta")
        assert proxy.child is not None
        os.kill(proxy.child.pid, signal.SIGTERM)
        assert idle.event()["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed) as closed:
            idle.event()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        assert busy.ask("too late", stream_id="s")["error"]["code"] == "websocket_connection_limit_reached"
        agent.may_end.set()
        assert busy.until(*LAST)["type"] == "response.completed"
        assert busy.event()["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            busy.event()


def test_the_sdk_guards_and_counts_the_turns_of_a_connection(proxy: ProxyProcess) -> None:
    with warmroute.OpenAI(
        base_url=f"{proxy.url}/v1", api_key=proxy.keys[0], max_retries=0, session="sdk", guard="raise"
    ) as client:
        more: Any = {"model": MODEL, "instructions": "Be short. " * 50}
        with client.responses.connect() as connection:
            previous: str | None = None
            for turn in range(3):
                connection.response.create(**more, input=f"turn {turn}", previous_response_id=previous)
                done = last_event(connection)
                previous = done.response.id
            report = client.cache.report()
            assert (report.turns, report.receipts, report.receipts_pending, report.internal_errors) == (3, 3, 0, 0)
            assert report.violations == ()
            more["instructions"] = "Be long."
            with pytest.raises(warmroute.PrefixBroken):
                connection.response.create(**more, input="turn 3", previous_response_id=previous)
        row = proxy.row(done.response.usage.warmroute["id"])
        with client.responses.connect() as connection:
            connection.response.create(model=MODEL, input="another", instructions="Be short. " * 50)
            assert proxy.row(last_event(connection).response.usage.warmroute["id"])["session"] == row["session"]


async def test_the_sdk_counts_the_turns_of_a_connection_that_is_awaited(proxy: ProxyProcess) -> None:
    async with warmroute.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=proxy.keys[0], max_retries=0) as client:
        async with client.responses.connect() as connection:
            await connection.response.create(model=MODEL, input="hello")
            async for event in connection:
                if event.type in LAST:
                    break
        assert (client.cache.report().receipts, client.cache.report().internal_errors) == (1, 0)
