"""What is not served, and in which shape it is said: by the schema, by what was asked for, by a full queue."""

from typing import Any

import pytest
from tests.contract.subject import (
    CHAT,
    COMPLETION,
    GENERATE,
    MAKE,
    Json,
    Subject,
    chat,
    completion,
    endless,
    events,
    generate,
    unique,
)

pytestmark = pytest.mark.full

USAGE = {"stream_options": {"include_usage": True}}


def flat(response: Any, status: int, kind: str) -> str:
    """Check that a response is an error in the flat shape; returns its message."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"object", "message", "type", "param", "code"}
    assert (body["object"], body["type"], body["param"], body["code"]) == ("error", kind, None, status)
    assert body["message"]
    return str(body["message"])


@pytest.mark.parametrize("raw", [b"", b"{", b'{"messages":"\xff"}', b"[" * 5000, b'{"a":"\\ud800"}'], ids=repr)
@pytest.mark.parametrize("path", [CHAT, COMPLETION, GENERATE])
def test_what_is_not_json_is_refused_flat(engine: Subject, path: str, raw: bytes) -> None:
    response = engine.client.post(path, content=raw[:2000], headers={"content-type": "application/json"})
    flat(response, 400, "Bad Request")


@pytest.mark.parametrize(
    "more",
    [
        *[{"messages": messages} for messages in (None, "hi", ["hi"])],
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "alien", "content": "hi"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "assistant", "tool_calls": "x"}]},
        *[{name: 5} for name in ("stop", "rid", "cache_salt", "extra_key", "model")],
        *[{name: "x"} for name in ("n", "stream", "max_tokens", "temperature")],
        {"max_tokens": 1.5},
        {"model": None},
        {"stream_options": []},
        {"tools": {}},
    ],
    ids=str,
)
def test_a_chat_that_breaks_the_schema_is_refused_streamed_or_not(engine: Subject, more: Json) -> None:
    for stream in (False, True):
        flat(engine.post(CHAT, {**chat("hi"), "stream": stream, **more}), 400, "Bad Request")


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (COMPLETION, {"prompt": 5}),
        (COMPLETION, {"prompt": [1.5]}),
        (COMPLETION, {"prompt": {}}),
        (COMPLETION, {"prompt": None}),
        (GENERATE, {"text": 5}),
        (GENERATE, {"sampling_params": 5}),
        (GENERATE, {"rid": 5}),
    ],
    ids=str,
)
def test_other_requests_that_break_the_schema_are_refused_flat_as_well(engine: Subject, path: str, more: Json) -> None:
    flat(engine.post(path, {**MAKE[path]("hi"), **more}), 400, "Bad Request")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"messages": []}, "cannot be empty"),
        ({"max_tokens": -1}, "must be at least 0"),
        ({"temperature": -1}, "temperature must be"),
        ({"top_p": 2}, "top_p must be"),
        ({"routed_dp_rank": 1}, "out of range"),
        ({"routed_dp_rank": -1}, "out of range"),
        ({"max_tokens": 1_000_000}, "too large"),
    ],
    ids=str,
)
def test_a_wish_that_cannot_be_granted_is_refused_streamed_or_not(engine: Subject, more: Json, said: str) -> None:
    for stream in (False, True):
        response = engine.post(CHAT, {**chat("hi"), "stream": stream, **more})
        assert said in flat(response, 400, "BadRequestError")


@pytest.mark.parametrize("prompt", ["", [], [""]], ids=repr)
def test_an_empty_completion_is_refused(engine: Subject, prompt: Any) -> None:
    assert "cannot be empty" in flat(engine.post(COMPLETION, completion(prompt)), 400, "BadRequestError")


def test_the_content_type_has_to_be_json(engine: Subject) -> None:
    response = engine.client.post(CHAT, content=b'{"messages":[]}', headers={"content-type": "text/plain"})
    assert "application/json" in flat(response, 400, "Bad Request")


def test_a_rank_in_the_head_has_to_be_a_number_in_range(engine: Subject) -> None:
    for path in (CHAT, COMPLETION):
        response = engine.post(path, MAKE[path]("hi"), headers={"x-data-parallel-rank": "one"})
        assert "integer" in flat(response, 400, "400")
    response = engine.post(CHAT, chat("hi"), headers={"x-data-parallel-rank": "1"})
    assert "out of range" in flat(response, 400, "BadRequestError")
    assert engine.post(CHAT, chat("hi", routed_dp_rank=0)).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_prompt_longer_than_the_context_is_refused_with_a_status_also_for_streams(engine: Subject, path: str) -> None:
    long = "x y " * engine.facts()["context_length"]
    for stream in (False, True):
        response = engine.post(path, MAKE[path](long, stream=stream))
        assert "longer than the model's context length" in flat(response, 400, "BadRequestError")
    limit = engine.facts()["context_length"]
    response = engine.post(path, MAKE[path]("hi", max_tokens=limit))
    assert "Requested token count exceeds the model's maximum context length" in flat(response, 400, "BadRequestError")


def test_generate_refuses_in_a_shape_of_its_own_and_its_streams_with_an_event(engine: Subject) -> None:
    long = generate("x y " * engine.facts()["context_length"])
    response = engine.post(GENERATE, long)
    assert response.status_code == 400
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"message"}
    (event,) = engine.events(GENERATE, long)
    assert event["error"].pop("message") == response.json()["error"]["message"]
    assert event == {"error": {"type": "invalid_request_error", "code": 400, "retryable": False}}


@pytest.mark.parametrize("path", [CHAT, COMPLETION, GENERATE])
def test_an_id_that_is_live_is_refused(engine: Subject, path: str) -> None:
    rid = unique()
    said = f"Duplicate request ID detected: {rid}"
    with engine.open(CHAT, endless(chat("the first", rid=rid))) as lines:
        next(lines)
        response = engine.post(path, MAKE[path]("the second", rid=rid))
        assert response.status_code == 400
        assert said in response.text
        if path == GENERATE:
            assert engine.events(path, generate("the second", rid=rid))[0]["error"]["message"] == said
        else:
            streamed = engine.post(path, MAKE[path]("the second", rid=rid, stream=True))
            assert said in flat(streamed, 400, "BadRequestError")
        engine.abort(rid)
        events(lines)
    assert engine.post(path, MAKE[path]("the second", rid=rid)).status_code == 200  # free again


def crowd(engine: Subject) -> None:
    """Fill every running slot and the queue."""
    slots, queue = engine.load()["max_running_requests"], engine.facts()["max_queued_requests"]
    for number, waiting in ((slots, 0), (queue, queue)):
        for i in range(number):
            engine.send(CHAT, endless(chat(f"crowd {i}", stream=True)))
        engine.until_live(slots, waiting)


def test_a_full_queue_is_a_503_and_in_a_stream_an_error_event_under_200(engine: Subject) -> None:
    crowd(engine)
    said = "The request queue is full."
    for path in (CHAT, COMPLETION, GENERATE):
        assert flat(engine.post(path, MAKE[path]("one more")), 503, "503") == said
    for path in (CHAT, COMPLETION):
        error, usage = engine.events(path, MAKE[path]("one more", **USAGE))
        kind = {"object": "error", "type": "SERVICE_UNAVAILABLE", "param": None, "code": 503}
        assert error == {"error": {**kind, "message": said}}
        assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 0)
    (event,) = engine.events(GENERATE, generate("one more"))
    reason = {"type": "abort", "status_code": 503, "message": said}
    assert event["meta_info"]["finish_reason"] == reason
    assert event["text"] == ""
    assert flat(engine.post(CHAT, chat("one more", n=2)), 503, "503") == said


def test_error_events_are_spaced_and_others_are_not(engine: Subject) -> None:
    """Whoever looks for `"error":` in raw bytes must not look for what follows it."""
    crowd(engine)
    raw = engine.post(CHAT, chat("one more", stream=True, **USAGE)).text
    assert raw.startswith('data: {"error": {"object": "error", ')
    assert '"choices":[]' in raw


@pytest.mark.parametrize("path", ["/get_load", "/nope"])
def test_unknown_paths_are_404(engine: Subject, path: str) -> None:
    response = engine.get(path)
    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})


def test_the_wrong_method_is_405(engine: Subject) -> None:
    response = engine.get(CHAT)
    assert (response.status_code, response.json()) == (405, {"detail": "Method Not Allowed"})


@pytest.mark.parametrize("body", [{"rid": 5}, {"abort_all": "perhaps"}], ids=str)
def test_an_abort_that_breaks_the_schema_is_refused(engine: Subject, body: Json) -> None:
    flat(engine.post("/abort_request", body), 400, "Bad Request")
    head = {"content-type": "application/json"}
    flat(engine.client.post("/abort_request", content=b"", headers=head), 400, "Bad Request")
