"""What is wrong with messages, and how they fail. What is right with them are golden cases (`tests/apis`)."""

import json
from typing import Any

import pytest

from warmroute_proxy.dialects.messages.errors import error as error_object
from warmroute_proxy.dialects.messages.events import EventTranslator
from warmroute_proxy.dialects.messages.request import ChatRequest, chat_request
from warmroute_proxy.dialects.raw_json import BadRequest
from warmroute_proxy.normalising.texts import Texts
from warmroute_proxy.server.base.config import ModelConfig
from warmroute_proxy.server.dialects.messages import Messages

KEY = b"k" * 32


def no_rules(_model: str) -> Texts:
    return Texts(frozenset())


def translator() -> EventTranslator:
    return EventTranslator("msg_1", "m", (), KEY)


def read(**members: Any) -> ChatRequest:
    asked = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    return chat_request(json.dumps(asked | members).encode(), KEY, no_rules)


@pytest.mark.parametrize(
    ("members", "where"),
    [
        ({"model": 3}, "model: must be a text"),
        ({"max_tokens": None}, "max_tokens: is required"),
        ({"thinking": "hard"}, "thinking: must be a JSON object"),
        ({"messages": []}, "messages: at least one"),
        ({"messages": "hi"}, "messages: must be a list"),
        ({"stop_sequences": "a"}, "stop_sequences: must be a list of texts"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type: must be one of"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema: is required"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages.0.role: the last message"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages: no message holds anything"),
    ],
)
def test_what_is_wrong_is_named(members: dict[str, Any], where: str) -> None:
    with pytest.raises(BadRequest, match=where.replace("[", r"\[")):
        read(**members)


def test_the_list_of_models_has_the_aliases_that_claude_code_shows() -> None:
    models = [ModelConfig("kimi", ("claude-kimi", "claude-*", "k"), context_tokens=8), ModelConfig("other")]
    listed = Messages().model_list(models)
    told = [(each["id"], each["display_name"], each["max_input_tokens"]) for each in listed["data"]]
    assert told == [("kimi", "kimi", 8), ("other", "other", None), ("claude-kimi", "kimi", 8)]
    assert (listed["first_id"], listed["last_id"]) == ("kimi", "claude-kimi")


def stream_of(*deltas: dict[str, Any], reason: str = "stop") -> bytes:
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}})
    return b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"


def call(index: int, arguments: str, call_id: str | None = None) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": call_id, "function": {"name": "f", "arguments": arguments}}]}


def test_an_error_in_a_stream_is_the_last_event() -> None:
    stream = translator()
    error = b'data: {"error":{"message":"gone","type":"server_error","code":"draining"}}\n\n'
    text = stream.feed(error + stream_of({"content": "a"}))
    assert text.count(b"event: ") == 1
    assert json.loads(text.partition(b"data: ")[2])["error"]["type"] == "overloaded_error"
    assert stream.ended


def test_a_call_that_had_ended_does_not_go_on() -> None:
    more = {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}
    with pytest.raises(ValueError, match="continued a tool call"):
        translator().feed(stream_of(call(0, "{}", "a"), call(1, "", "b"), more))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_errors_have_their_types(status: int, kind: str) -> None:
    found = json.loads(error_object(status, "why", "c"))
    assert found == {"type": "error", "error": {"type": kind, "message": "why", "code": "c"}}
