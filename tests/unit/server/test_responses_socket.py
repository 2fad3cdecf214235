"""Turns on one connection: which begin when, what they continue, what is kept of them, and what cancels them."""

import gc
import json
from typing import Any

import pytest
from tests.field.fuzz.websocket import Echo
from tests.subjects.body_memory import plenty
from tests.subjects.read_slices import Lines

from warmroute.contract import headers as names
from warmroute_proxy.dialects.responses.conversation import ResponsesConversation
from warmroute_proxy.server.arrival import chat_request_of, translate
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.dialects.exchange import DialectExchange
from warmroute_proxy.server.dialects.open_conversations import OpenConversations
from warmroute_proxy.server.dialects.responses_socket import MAX_REFUSED, KeptConversations, ResponsesSocket
from warmroute_proxy.server.dialects.socket_turn import TurnExchange, whole_turn
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.open_connections import OpenConnections
from warmroute_proxy.server.http.websocket import WebSocket

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
MIB = 2**20


class Endpoint(Echo):
    """Answers when a test says so; what prepares is answered at once, unless it is to wait, too."""

    def __init__(self, *, all_wait: bool = False) -> None:
        super().__init__()
        self.all_wait = all_wait
        self.asked: list[TurnExchange] = []

    def handle(self, request: Request, exchange: Exchange) -> None:
        assert isinstance(exchange, TurnExchange)
        if exchange.dialect.asks or self.all_wait:
            self.asked.append(exchange)
        else:
            super().handle(request, exchange)

    def begin(self, at: int = 0, *, elsewhere: bool = False) -> DialectExchange:
        """Begin the answer of a turn, with a first word."""
        exchange = self.asked.pop(at)
        if elsewhere:  # as where a turn is too large for the event loop
            found: Any = whole_turn(bytes(exchange.request.body), self.terms)
            chat = chat_request_of(exchange.request)
            exchange.dialect.translated(found)
        else:
            chat, found = translate(exchange.request, exchange.request.dialect, self.terms)
            exchange.dialect.begins(0)
        self.bodies.append(bytes(chat.body))
        answer = DialectExchange(exchange, chat, exchange.dialect, found)
        receipt = f"wr-{len(self.bodies):024}"
        answer.start(200, [(names.RECEIPT, receipt)], b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
        chat.drop_body()  # no other engine is tried any more
        return answer

    def answer(self, at: int = 0) -> None:
        """Answer a turn."""
        self.begin(at).end(b"data: [DONE]\n\n")


class Socket(WebSocket):
    """A connection that keeps what is sent, in place of frames."""

    def __init__(self, connections: OpenConnections, kept: KeptConversations, endpoint: Endpoint) -> None:
        offer = Request(0.0)
        self.events: list[Any] = []
        self.code = 0
        opened = OpenConversations(lambda _: None, {})
        super().__init__(
            connections, "t", lambda made: ResponsesSocket(made, offer, kept, opened, lambda _: endpoint.terms)
        )

    def send(self, texts: list[bytes]) -> None:
        self.events += map(json.loads, texts)

    def close(self, code: int, reason: str) -> None:
        self.code = code


class Scene:
    """One connection."""

    def __init__(self, *, body_bytes: int = 32 * MIB, all_wait: bool = False) -> None:
        self.endpoint = Endpoint(all_wait=all_wait)
        self.memory = plenty()
        self.connections = OpenConnections(self.endpoint, Limits(body_bytes=body_bytes), lambda: 0.0, self.memory)
        self.connections.reads = Lines()
        self.connections.use("t")
        self.kept = KeptConversations(self.memory)
        self.socket = Socket(self.connections, self.kept, self.endpoint)

    def event(self, kind: str, **more: Any) -> None:
        raw = json.dumps({"type": kind, **more}).encode()
        self.socket._received(raw)

    def ask(self, text: str = "x", **more: Any) -> None:
        self.event("response.create", model="m", input=[{"role": "user", "content": text}], **more)

    def prepare(self, text: str = "x", **more: Any) -> str:
        """The id of the response, or the code of an error."""
        self.ask(text, generate=False, **more)
        last = self.socket.events[-1]
        found: str = last["error"]["code"] if last["type"] == "error" else last["response"]["id"]
        return found

    def ends(self) -> list[Any]:
        """The last events of turns, which are forgotten."""
        found = [event for event in self.socket.events if event["type"] in ENDS]
        self.socket.events.clear()
        return found


def kept_bytes() -> int:
    """Of all conversations that there are."""
    gc.collect()
    return sum(found.size_bytes for found in gc.get_objects() if isinstance(found, ResponsesConversation))


@pytest.mark.parametrize("kind", ["messages", "ids"])
def test_what_is_kept_is_bounded_and_counted(kind: str) -> None:
    scene = Scene()
    previous = ""
    for turn in range(60):
        more = {"previous_response_id": previous} if previous else {}
        call = {"type": "function_call", "name": "f", "arguments": "{}"}
        items = [{**call, "call_id": f"{turn}-{number}-" + "x" * 200} for number in range(150)]
        text = json.dumps({"role": "user", "content": "x" * 200_000})
        scene.event(
            "response.create", model="m", generate=False, input=items if kind == "ids" else [json.loads(text)], **more
        )
        last = scene.socket.events[-1]
        if last["type"] == "error":
            assert last["error"]["code"] == "previous_response_not_found"
            previous = ""
        else:
            previous = last["response"]["id"]
        assert scene.memory.budget.used <= 2 * MIB
        if turn == 5:
            assert 0 < kept_bytes() <= scene.memory.budget.used
    scene.socket.connection_lost(None)
    assert (scene.memory.budget.used, kept_bytes()) == (0, 0)


def test_branches_share_nothing() -> None:
    """What is counted for one is not held by another."""
    scene = Scene()
    for branch in range(8):
        previous = scene.prepare("x" * 1_000, stream_id=f"a{branch}")
        for _ in range(3):
            previous = scene.prepare("y" * 400_000, stream_id="b", previous_response_id=previous)
        scene.prepare("z", stream_id="b")
    assert kept_bytes() == scene.memory.budget.used < 10_000


def test_a_turn_that_fails_leaves_nothing() -> None:
    scene = Scene()
    first = scene.prepare("x" * 1_000)
    used = scene.memory.budget.used
    for _ in range(5):
        scene.ask("y" * 100_000, previous_response_id=first)
        scene.endpoint.begin()
        scene.event("response.cancel")
    assert [each["type"] for each in scene.ends()[1:]] == ["response.failed"] * 5
    assert kept_bytes() == scene.memory.budget.used == used
    scene.ask("again", previous_response_id=first)
    scene.endpoint.answer()
    assert b'"again"' in scene.endpoint.bodies[-1]
    assert b"yyy" not in scene.endpoint.bodies[-1]


def test_what_a_turn_adds_counts_while_its_answer_runs() -> None:
    """Its body is not needed any more then."""
    scene = Scene()
    trunk = scene.prepare("t" * 200_000)
    scene.endpoint.bodies.clear()
    for number in range(8):
        scene.ask("u" * 1_000, stream_id=f"fork{number}", previous_response_id=trunk)
        scene.ask("v" * 200_000, stream_id=f"new{number}")
    running = [scene.endpoint.begin() for _ in range(16)]
    assert (8 + 8 + 1) * 200_000 < scene.memory.budget.used < (8 + 8 + 1) * 210_000
    for answer in running:
        answer.end(b"data: [DONE]\n\n")
    assert kept_bytes() == scene.memory.budget.used


def test_a_branch_that_is_read_late_has_what_it_continues() -> None:
    scene = Scene()
    first = scene.prepare("trunk")
    scene.ask("own", previous_response_id=first)
    scene.ask("branch", previous_response_id=first, stream_id="b")
    scene.endpoint.asked.reverse()
    branch = scene.endpoint.begin()
    scene.endpoint.answer()
    branch.end(b"data: [DONE]\n\n")
    asked = [json.loads(body)["messages"] for body in scene.endpoint.bodies]
    assert [[message["content"] for message in each] for each in asked] == [["trunk", "branch"], ["trunk", "own"]]
    previous = scene.ends()[-1]["response"]["id"]
    scene.ask("more", previous_response_id=previous, stream_id="b")
    scene.endpoint.answer()
    told = [message["content"] for message in json.loads(scene.endpoint.bodies[-1])["messages"]]
    assert told == ["trunk", "branch", "a", "more"]


def test_a_turn_has_the_size_of_a_body_with_what_it_continues() -> None:
    scene = Scene(body_bytes=100_000)
    first = scene.prepare("x" * 60_000)
    assert scene.prepare("x" * 60_000, previous_response_id=first) == "request_too_large"
    assert scene.prepare("x" * 60_000, previous_response_id=first, stream_id="b") == "request_too_large"
    assert scene.prepare("x" * 10_000, previous_response_id=first).startswith("resp_")


def test_a_conversation_of_too_many_messages_is_sent_again() -> None:
    """Each turn would be a body that is too dense for the event loop, though its message is small."""
    scene, previous, turns = Scene(), "", 0
    while turns < 20 and previous != "previous_response_not_found":
        more = {"previous_response_id": previous} if previous else {}
        items = [{"role": "user", "content": "x"}] * 200
        scene.event("response.create", model="m", generate=False, input=items, **more)
        last = scene.socket.events[-1]
        previous = last["error"]["code"] if last["type"] == "error" else last["response"]["id"]
        turns += 1
    assert 4 < turns <= 8
    assert scene.memory.budget.used == 0, "no turn can continue it"
    assert scene.prepare("all of it").startswith("resp_")


def test_what_prepares_waits_in_the_lines_of_all_requests() -> None:
    scene = Scene(all_wait=True)
    for _ in range(3):
        scene.ask(generate=False)
    assert (len(scene.endpoint.asked), scene.socket.events) == (1, [])


def test_no_turn_begins_while_its_client_does_not_read() -> None:
    scene = Scene()
    for stream in range(4):
        scene.ask(stream_id=f"s{stream % 2}")
    assert len(scene.endpoint.asked) == 2
    scene.socket.pause_writing()
    paused: list[bool] = []
    turn = scene.endpoint.asked[0]
    turn.on_pause = paused.append  # there is an engine to be paused now
    turn.write(b'event: x\ndata: {"type":"x"}\n\n')
    assert paused == [True]
    turn.on_pause = None
    scene.endpoint.answer()
    scene.endpoint.answer()
    assert scene.endpoint.asked == []
    assert scene.socket.idle_since_s == float("inf")
    scene.socket.resume_writing()
    assert len(scene.endpoint.asked) == 2
    scene.endpoint.asked[0].on_pause = paused.append
    scene.endpoint.asked[0].write(b'event: x\ndata: {"type":"x"}\n\n')
    assert paused == [True]


def test_a_cancel_that_names_another_response_is_late() -> None:
    scene = Scene()
    scene.ask()
    scene.ask()
    scene.endpoint.answer()
    first = scene.ends()[0]["response"]["id"]
    scene.endpoint.begin()
    scene.event("response.cancel", response_id=first)
    assert scene.ends() == []
    scene.ask("waits")
    scene.event("response.cancel")
    (failed,) = scene.ends()
    assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "cancelled")
    assert len(scene.endpoint.asked) == 1


def test_an_interrupted_turn_is_continued_by_its_whole_items() -> None:
    """As Codex expects it, if the user writes while the model answers."""
    scene = Scene()
    scene.ask("first")
    answer = scene.endpoint.begin()
    response_id = scene.socket.events[0]["response"]["id"]
    interrupt = {"response_id": response_id, "mode": "discard_partial_items"}
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}
    answer.write(b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode())
    item = next(each["item"] for each in scene.socket.events[::-1] if each["type"] == "response.output_item.added")
    scene.event("response.interrupt", **{**interrupt, "response_id": "resp_other"})
    assert scene.ends() == []
    scene.event("response.interrupt", **interrupt)
    accepted, interrupted, ended = scene.socket.events[-3:]
    assert (accepted["type"], accepted["response_id"]) == ("response.interrupt.accepted", response_id)
    assert (interrupted["type"], interrupted["item_id"]) == ("response.output_item.interrupted", item["id"])
    response = ended["response"]
    assert (ended["type"], response["incomplete_details"]) == ("response.incomplete", {"reason": "interrupted"})
    assert [each["type"] for each in response["output"]] == ["message"]
    scene.event("response.interrupt", **interrupt)
    assert scene.socket.events[-1] == ended
    scene.ask("second", previous_response_id=response_id)
    scene.endpoint.answer()
    messages = json.loads(scene.endpoint.bodies[-1])["messages"]
    assert [(each["role"], each["content"]) for each in messages] == [
        ("user", "first"), ("assistant", "a"), ("user", "second"),
    ]  # fmt: skip


def test_an_interrupted_turn_reports_the_newest_count() -> None:
    """A server that writes its usage into each chunk: the chunks differ in their texts and counts alone."""
    scene = Scene()
    scene.ask("first")
    answer = scene.endpoint.begin()
    for count in range(1, 13):
        chunk = {
            "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}],
            "usage": {"prompt_tokens": 9, "completion_tokens": count},
        }
        answer.write(b"data: %b\n\n" % json.dumps(chunk).encode())
    scene.event("response.interrupt", response_id=scene.socket.events[0]["response"]["id"])
    assert scene.socket.events[-1]["response"]["usage"]["output_tokens"] == 12


def test_a_turn_that_waits_can_be_cancelled() -> None:
    scene = Scene()
    scene.socket.pause_writing()
    scene.ask("first")
    scene.ask("second")
    scene.event("response.cancel")
    (ended,) = scene.ends()
    assert (ended["status"], ended["error"]["code"]) == (499, "cancelled")
    scene.socket.resume_writing()
    assert b"second" in bytes(scene.endpoint.asked[0].request.body)


def test_a_turn_that_was_read_elsewhere_fails_when_it_is_cancelled() -> None:
    scene = Scene()
    scene.ask()
    scene.endpoint.begin(elsewhere=True)
    scene.event("response.cancel")
    assert [each["type"] for each in scene.ends()] == ["response.failed"]


def test_an_answer_that_breaks_off_has_failed() -> None:
    scene = Scene()
    scene.ask()
    scene.endpoint.begin().end()
    (failed,) = scene.ends()
    assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "engine_error")


def test_a_client_whose_events_cannot_be_taken_is_sent_away() -> None:
    scene = Scene()
    for kind in ("x", "response.steer"):
        for _ in range(MAX_REFUSED // 2):
            scene.event(kind, input="x")
    assert scene.socket.code == 0
    scene.event("x")
    assert scene.socket.code == 1008


def test_an_error_of_ours_ends_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()

    def broken(request: Request) -> None:
        raise RuntimeError

    monkeypatch.setattr(scene.endpoint, "on_head", broken)
    scene.ask()
    (ended,) = scene.ends()
    assert (ended["status"], ended["error"]["code"]) == (500, "internal_error")
    monkeypatch.undo()
    assert scene.prepare().startswith("resp_")


@pytest.mark.parametrize("where", ["in line", "under way", "behind another", "continued"])
def test_a_client_that_leaves_within_a_turn_takes_its_memory_with_it(where: str) -> None:
    """At once: the collector runs seldom, and what waits for it is counted."""
    scene = Scene(all_wait=where == "in line")
    answer = None
    gc.disable()
    try:
        if where == "continued":
            scene.ask("x" * 50_000, previous_response_id=scene.prepare("x" * 50_000))
        else:
            scene.ask("x" * 50_000)
        if where == "behind another":
            scene.ask("y" * 50_000)
        if where != "in line":
            answer = scene.endpoint.begin()
        assert scene.memory.budget.used > 50_000
        scene.socket.connection_lost(None)
        assert answer is None or answer.ended
        scene.endpoint.asked.clear()
        answer = None
        assert scene.memory.budget.used == 0
    finally:
        gc.enable()
