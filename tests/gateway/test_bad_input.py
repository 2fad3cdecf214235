"""What a gateway would never send, and what it may stop sending: nothing is lost, nothing hangs, nothing is left."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages

from tests.gateway.test_protocol import Scene, scene
from tests.machine import configured
from tests.subjects.ext_proc_client import PROCESS, Conversation, answer_body, answer_head, body, head
from tests.subjects.processes import chat, until
from warmroute_proxy.server.engines.leg import Leg, Receiver
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.picker.answer import GatewayAnswer, Outbox
from warmroute_proxy.server.picker.exchange import GatewayExchange
from warmroute_proxy.server.picker.stream import Gateway, Stream

CHAT = "/v1/chat/completions"
USAGE = b'{"prompt_tokens":40,"completion_tokens":2,"total_tokens":42}'
ANSWER = (
    b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},'
    b'"finish_reason":"stop"}],"usage":' + USAGE + b"}"
)
STREAMS = 10_000
HELD = ("warmroute_body_memory_bytes ", "warmroute_worker_running{", "warmroute_queue_requests ")


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("bad")) as found:
        yield found


@pytest.fixture
def channel(it: Scene) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(it.picker.address) as found:
        yield found


def asked(text: str = "a", *, stream: bool = False) -> bytes:
    return json.dumps(chat(text, stream=stream)).encode()


def nothing_is_left(it: Scene) -> None:
    """No request is open, and the next one is served. Its row is there, and so those of all before it."""
    with it.picker.admin() as admin:
        until(lambda: _held(admin.get("/metrics").text) == 0, "no request is open, and no memory is held")
    after = it.post(chat("after"))
    assert after.status_code == 200
    it.picker.row(after.headers["x-warmroute-receipt"])


def _held(metrics: str) -> float:
    """Requests at engines, and bytes of bodies."""
    lines = [line for line in metrics.splitlines() if line.startswith(HELD)]
    assert len(lines) >= len(HELD)
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_half_a_message_ends_its_stream_with_an_error(it: Scene, channel: grpc.Channel) -> None:
    whole = head(CHAT, it.picker.keys[0]).SerializeToString()
    with Conversation(channel) as broken:
        assert broken.send(whole[: len(whole) // 2]).status() is grpc.StatusCode.INTERNAL
    with Conversation(channel) as later:
        later.send(head(CHAT, it.picker.keys[0]), b"\xff" * 100)
        assert later.read().immediate_response.status.code == 500
    nothing_is_left(it)


def test_an_empty_message_or_one_out_of_turn_changes_nothing(it: Scene, channel: grpc.Channel) -> None:
    with Conversation(channel) as stream:
        stream.send(body(b"x"), answer_body(b"y"), b"")
        stream.send(head(CHAT, it.picker.keys[0]), head(CHAT, "another"), body(asked()), body(b"more"))
        _, sent = stream.until_body_ends()
        assert json.loads(sent)["model"] == "kimi-k2.5"
    nothing_is_left(it)


def test_an_answer_to_what_the_picker_was_not_asked_about_passes(it: Scene, channel: grpc.Channel) -> None:
    with Conversation(channel) as stream:
        assert stream.send(answer_head(403)).read().WhichOneof("response") == "response_headers"
        passed = stream.send(answer_body(b"no")).read().response_body.response.body_mutation.streamed_response
        assert (passed.body, passed.end_of_stream) == (b"no", True)
    nothing_is_left(it)


def left(it: Scene) -> int:
    return sum(row["outcome"] == "client_left" for row in it.picker.rows())


@pytest.mark.parametrize("step", range(-1, 7))
def test_a_stream_that_is_reset_leaves_nothing_and_each_dispatch_has_its_row(
    it: Scene, channel: grpc.Channel, step: int
) -> None:
    before = left(it)
    steps = [
        head(CHAT, it.picker.keys[0]),
        body(asked(stream=True)[:20], ends=False),
        body(asked(stream=True)[20:]),
        answer_head(200, "text/event-stream"),
        answer_body(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', ends=False),
        answer_body(b'data: {"choices":[{"index":0,"delta":{"content":"b"}}]}\n\n', ends=False),
        answer_body(b"data: [DONE]\n\n"),
    ]
    stream = Conversation(channel)
    stream.send(*steps[: step + 1])
    if step >= 2:
        stream.until_body_ends()
        if step >= 4:
            assert stream.read().WhichOneof("response") == "response_headers"
    if step == 6:
        until(lambda: stream.read().response_body.response.body_mutation.streamed_response.end_of_stream, "it ends")
    stream.cancel()
    nothing_is_left(it)
    assert left(it) - before == (2 <= step < 6)  # it is dispatched at 2, and its answer ends at 6


def test_a_stream_that_is_reset_while_its_request_waits_leaves_no_place_taken(tmp_path: Path) -> None:
    with scene(tmp_path, engines=1, of_engine="max_running = 1") as it:
        with (
            grpc.insecure_channel(it.picker.address) as channel,
            Conversation(channel) as first,
            it.picker.admin() as admin,
        ):
            first.send(head(CHAT, it.picker.keys[0]), body(asked()))
            first.until_body_ends()
            with Conversation(channel) as second:
                second.send(head(CHAT, it.picker.keys[0]), body(asked()))
                until(lambda: admin.get("/admin/admission").json()["queue"]["requests"] == 1, "the second waits")
            until(lambda: admin.get("/admin/admission").json()["queue"]["requests"] == 0, "it waits no more")
        nothing_is_left(it)


def test_a_gateway_that_half_closes_before_the_answer_is_one_whose_client_has_left(
    it: Scene, channel: grpc.Channel
) -> None:
    stream = Conversation(channel)
    stream.send(head(CHAT, it.picker.keys[0]), body(asked()))
    stream.until_body_ends()
    stream.half_close()
    assert stream.status() is grpc.StatusCode.OK
    nothing_is_left(it)


def test_a_body_that_is_slow_is_a_408(tmp_path: Path) -> None:
    limits = f"body_timeout_s = {configured(0.3)}\nhead_timeout_s = {configured(0.3)}"
    with scene(tmp_path, limits=limits) as it, grpc.insecure_channel(it.picker.address) as channel:
        with Conversation(channel) as stream:
            stream.send(head(CHAT, it.picker.keys[0]), body(b"{", ends=False))
            assert stream.read().immediate_response.status.code == 408
        with Conversation(channel) as silent:
            assert silent.status() is grpc.StatusCode.INTERNAL
        until(lambda: _ends_when_refused(channel), "a stream that stays open after a refusal is ended")
        until(lambda: it.post(chat("after")).status_code == 200, "what is not late is served")


CHOICE = b'{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}'


def _ends_when_refused(channel: grpc.Channel) -> bool:
    """Whether a stream that stays open is ended behind its 401; False where its head has come too late for one."""
    with Conversation(channel) as refused:
        try:
            found = refused.send(head(CHAT, "nobody")).read()
        except grpc.RpcError:
            return False
        assert found.immediate_response.status.code == 401
        return refused.status() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", b"502"),
        (b"{", b"502"),
        (b"no json", b"502"),
        (b'{"choices":[]}', b"502"),
        (b'{"choices":[%b]}' % CHOICE, b"200"),
        (b'{"choices":[%b],"usage":{"prompt_tokens":-1}}' % CHOICE, b"200"),
        (b"\xff\xfe", b"502"),
    ],
    ids=["empty", "half", "text", "no choices", "no usage", "minus", "no text"],
)
def test_an_answer_that_is_none_is_an_error_or_an_estimate(
    it: Scene, channel: grpc.Channel, answer: bytes, status: bytes
) -> None:
    with Conversation(channel) as stream:
        stream.send(head(CHAT, it.picker.keys[0]), body(asked()))
        stream.until_body_ends()
        stream.send(answer_head(200), answer_body(answer))
        begun = stream.read().response_headers.response.header_mutation
        set_to = {each.header.key: each.header.raw_value for each in begun.set_headers}
        assert set_to[":status"] == status
        assert stream.read().response_body.response.body_mutation.streamed_response.end_of_stream
    row = it.picker.row(set_to["x-warmroute-receipt"].decode())
    assert row["outcome"] == ("completed" if status == b"200" else "engine_error")
    assert (row["price_nanousd"] > 0) == (status == b"200")
    nothing_is_left(it)


@pytest.mark.parametrize(
    ("status", "details"), [(200, "via_upstream"), (500, "via_upstream"), (503, "cluster_not_found")]
)
def test_an_answer_without_a_body_is_replaced_by_a_whole_error(
    it: Scene, channel: grpc.Channel, status: int, details: str
) -> None:
    empty = answer_head(status, ends=True)
    fields = empty.attributes["envoy.filters.http.ext_proc"].fields
    fields["response.code_details"].string_value = details
    with Conversation(channel) as stream:
        stream.send(head(CHAT, it.picker.keys[0]), body(asked()))
        stream.until_body_ends()
        replaced = stream.send(empty).read().immediate_response
    assert replaced.status.code >= 500
    assert json.loads(replaced.body)["error"]["message"]
    nothing_is_left(it)


def test_an_answer_in_single_bytes_is_whole(it: Scene, channel: grpc.Channel) -> None:
    with Conversation(channel, 60) as stream:
        stream.send(head(CHAT, it.picker.keys[0]), body(asked()))
        stream.until_body_ends()
        pieces = [answer_body(ANSWER[at : at + 1], ends=False) for at in range(len(ANSWER))]
        stream.send(answer_head(200), *pieces, answer_body(b""))
        assert stream.read().WhichOneof("response") == "response_headers"
        found = json.loads(stream.read().response_body.response.body_mutation.streamed_response.body)
    assert found["usage"]["prompt_tokens"] == 40
    assert found["usage"]["warmroute"]["id"]
    nothing_is_left(it)


def test_modes_that_would_lose_answers_are_refused_by_name(it: Scene, channel: grpc.Channel) -> None:
    for field, mode in (("response_body_mode", 2), ("request_body_mode", 0), ("request_body_mode", 1)):
        message = head(CHAT, it.picker.keys[0])
        setattr(message.protocol_config, field, mode)
        with Conversation(channel) as stream:
            refused = stream.send(message).read().immediate_response
        assert refused.status.code == 500
        assert field in json.loads(refused.body)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status"), [("", 400), ("v1", 400), ("/" + "x" * 9000, 414), ("/v1/chat/completions#a", 400)]
)
def test_a_target_that_is_none_is_refused(it: Scene, channel: grpc.Channel, path: str, status: int) -> None:
    with Conversation(channel) as stream:
        assert stream.send(head(path, it.picker.keys[0])).read().immediate_response.status.code == status


def test_what_is_refused_by_its_head_has_the_shape_of_its_api(it: Scene, channel: grpc.Channel) -> None:
    wrong = head("/v1/messages", it.picker.keys[0])
    wrong.protocol_config.request_body_mode = 0
    many = head("/v1/messages", it.picker.keys[0])
    for number in range(200):
        many.request_headers.headers.headers.add().key = f"x{number}"
    for message in (wrong, many):
        with Conversation(channel) as stream:
            refused = json.loads(stream.send(message).read().immediate_response.body)
        assert refused["type"] == "error"


def test_the_length_of_an_answer_that_comes_too_late_is_not_left_on_another() -> None:
    """It comes between the end of its request and the row, which no client can time."""
    gateway = cast(
        "Gateway",
        SimpleNamespace(
            clock=lambda: 0.0,
            limits=SimpleNamespace(header_bytes=65_536, head_timeout_s=1.0),
            endpoint=SimpleNamespace(on_status=None),
        ),
    )
    stream = Stream(gateway, lambda: None)
    stream._leg = leg = Leg(cast("Receiver", None))
    leg.done = True
    late = answer_head(200)
    length = late.response_headers.headers.headers.add()
    length.key, length.raw_value = "content-length", b"5"
    stream.take(late.SerializeToString())
    stream.answer.whole(504, [("content-type", "application/json")], b"{}")
    begun = messages.ProcessingResponse.FromString(cast("bytes", stream.outbox.out[0])).response_headers.response
    assert list(begun.header_mutation.remove_headers) == ["content-length"]


def test_headers_beyond_the_limits_are_refused(it: Scene, channel: grpc.Channel) -> None:
    many = {f"x{number}": "y" for number in range(200)}
    for headers in (many, {"x-long": "y" * 70_000}):
        with Conversation(channel) as stream:
            message = head(CHAT, it.picker.keys[0])
            for name, value in headers.items():
                added = message.request_headers.headers.headers.add()
                added.key, added.raw_value = name, value.encode()
            assert stream.send(message).read().immediate_response.status.code == 431


@pytest.mark.timeout(240)
async def test_ten_thousand_streams_wait_at_once_and_all_end(tmp_path: Path) -> None:
    patient = "head_timeout_s = 3600\nbody_timeout_s = 3600"  # the first waits until all others are open
    with scene(tmp_path, limits=f"connections = {STREAMS * 8 // 7 + 100}\n{patient}") as it:
        await _many(it)
        nothing_is_left(it)


async def _many(it: Scene) -> None:
    first = head(CHAT, it.picker.keys[0], content_length="1000").SerializeToString()
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(it.picker.address, options=options) for _ in range(4)]
    try:
        calls = []
        for number in range(STREAMS):
            calls.append(channels[number % 4].stream_stream(PROCESS)())
            await calls[-1].write(first)  # a gateway opens no stream before it has the headers
        assert (await asyncio.to_thread(it.post, chat("beside"))).status_code == 200
        for number, call in enumerate(calls[:100]):
            assert not call.done(), (number, await call.code(), await call.details(), await call.read())
            await call.write(body(asked()).SerializeToString())
            answered = messages.ProcessingResponse.FromString(await call.read())
            assert answered.WhichOneof("response") == "request_headers"
        for call in calls:
            call.cancel()
    finally:
        for channel in channels:
            await channel.close()


def test_an_answer_that_breaks_off_without_a_last_word_ends_its_stream_at_once() -> None:
    woken: list[bool] = []
    outbox = Outbox(lambda: woken.append(outbox.broken))
    answer = GatewayAnswer(outbox, lambda _request, _status: None)
    answer.names = []  # the engine's answer has begun
    exchange = GatewayExchange(answer, Request(0.0))
    exchange.start(200, [], b"data: x\n\n")
    assert woken
    assert not woken[-1]
    exchange.abort()
    assert woken[-1]
