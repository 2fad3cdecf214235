"""The turns of a WebSocket of Responses as the SDK counts them, whatever order the events of the server have."""

import json
from typing import Any

import openai
import pytest

import warmroute
from warmroute._observer import Call
from warmroute.ways.connections import MAX_UNDER_WAY, _Turns


class Counted(Call):
    """A call that says when it has ended."""

    def __init__(self, ended: list[Any]) -> None:
        super().__init__(None, None, None)
        self._ended = ended

    def ended(self) -> None:
        self._ended.append(self)


class Scene:
    """The turns of one connection, whose server is the test."""

    def __init__(self) -> None:
        self.client = warmroute.OpenAI(api_key="k", base_url="http://127.0.0.1:1/v1", guard="raise", session="s")
        self.turns = _Turns(self.client, self.client._observer)

    def ask(self, text: str, **more: Any) -> None:
        self.turns.sent(json.dumps({"type": "response.create", "model": "m", "input": text, **more}))

    def tell(self, kind: str, response_id: str = "", answer: str = "", **more: Any) -> None:
        output = [{"type": "message", "role": "assistant", "content": answer}] if answer else []
        usage = {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6, "input_tokens_details": {"cached_tokens": 0}}
        response = {"response": {"id": response_id, "output": output, "usage": usage}} if response_id else {}
        self.turns.received(json.dumps({"type": kind, **response, **more}))

    def items(self, stream: str | None = None) -> list[Any]:
        """What the last response of a stream continues, and says."""
        return [item["content"] for item in self.turns._last_responses[stream].items]

    def turns_counted(self) -> int:
        report = self.client.cache.report()
        assert report.internal_errors == 0
        return report.turns


@pytest.mark.parametrize("named", [True, False])
def test_turns_that_are_sent_at_once_are_answered_in_their_order(named: bool) -> None:
    scene = Scene()
    scene.ask("first")
    scene.ask("second", previous_response_id=None)
    for number, text in enumerate(("first", "second")):
        if named:
            scene.tell("response.created", f"r{number}")
        scene.tell("response.completed", f"r{number}", f"answer {number}")
        assert scene.items() == [text, f"answer {number}"]
    assert scene.turns._under_way == {}
    assert scene.turns_counted() == 2


def test_an_error_ends_the_turn_that_it_refuses() -> None:
    scene = Scene()
    scene.ask("refused")
    scene.tell("error", error={"code": "model_not_found"})
    scene.ask("runs")
    scene.tell("response.created", "r1")
    scene.tell("error", error={"code": "invalid_value"})  # an event that is no turn
    scene.ask("one too many")
    scene.tell("error", error={"code": "too_many_requests"})
    scene.tell("error", stream_id="another")
    scene.tell("response.completed", "r1", "answer")
    assert scene.items() == ["runs", "answer"]
    assert scene.turns._under_way == {}
    assert scene.turns_counted() == 1


def test_a_turn_that_continues_an_unknown_response_is_not_compared() -> None:
    scene = Scene()
    for number, day in enumerate(("Fri Nov 20 2026", "Sat Nov 21 2026")):
        scene.ask(f"What is open on {day}?", instructions="Be brief.", previous_response_id=f"stored {number}")
        scene.tell("response.completed", f"r{number}", "answer")
        scene.ask("What then?", instructions="Be brief.", previous_response_id=f"r{number}")
        scene.tell("response.completed", f"s{number}", "answer")
    assert scene.client.cache.guard.events == ()
    assert scene.turns_counted() == 4


def test_streams_are_lines_of_their_own() -> None:
    scene = Scene()
    scene.ask("a", stream_id="a")
    scene.ask("b", stream_id="b")
    scene.tell("response.created", "rb", stream_id="b")
    scene.tell("response.completed", "rb", "to b", stream_id="b")
    scene.tell("response.completed", "ra", "to a", stream_id="a")
    assert (scene.items("a"), scene.items("b")) == (["a", "to a"], ["b", "to b"])


def test_what_is_under_way_ends_with_the_connection_and_has_a_limit() -> None:
    scene = Scene()
    ended: list[Any] = []
    for number in range(MAX_UNDER_WAY + 1):
        scene.ask(f"{number}", stream_id=f"s{number % 3}")
        (asked, *_) = reversed(scene.turns._under_way[f"s{number % 3}"])
        assert asked.call is not None
        asked.call = Counted(ended)
    assert len(ended) == MAX_UNDER_WAY
    scene.turns.closed()
    assert len(ended) == MAX_UNDER_WAY + 1
    assert scene.turns._under_way == {}


def test_the_connections_of_a_wrapped_client_are_observed() -> None:
    plain = openai.OpenAI(api_key="k", base_url="http://127.0.0.1:1/v1")
    assert type(warmroute.wrap(plain).responses.connect()) is not type(plain.responses.connect())
