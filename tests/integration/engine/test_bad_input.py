"""What a request has to be: refused with the status and shape of the protocol, and the engine stays up."""

import socket
from typing import Any

import pytest

USER = {"role": "user", "content": "hi"}


def refused(engine: Any, body: Any = None, *, raw: bytes | None = None, headers: dict[str, str] | None = None) -> str:
    """Post a chat request that must be refused with a 400; returns the message."""
    head = {"content-type": "application/json", **(headers or {})}
    if raw is None:
        response = engine.client.post("/v1/chat/completions", json=body, headers=head)
    else:
        response = engine.client.post("/v1/chat/completions", content=raw, headers=head)
    assert response.status_code == 400
    error = response.json()
    assert set(error) == {"object", "message", "type", "param", "code"}
    assert (error["object"], error["code"]) == ("error", 400)
    assert engine.client.get("/health").status_code == 200
    return str(error["message"])


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"1", b'{"messages":"\xff"}', b"[" * 100_000, b'{"a":"\\ud800"}'])
def test_a_body_that_is_no_json_object(engine: Any, raw: bytes) -> None:
    refused(engine, raw=raw)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "assistant", "tool_calls": "x"}]},
        {"messages": [USER], "max_tokens": -1},
        {"messages": [USER], "max_tokens": "five"},
        {"messages": [USER], "max_tokens": 1.5},
        {"messages": [USER], "n": 0},
        {"messages": [USER], "stream": "maybe"},
        {"messages": [USER], "stop": 5},
        {"messages": [USER], "stream_options": []},
        {"messages": [USER], "tools": {}},
        {"messages": [USER], "rid": 5},
        {"messages": [USER], "cache_salt": 5},
        {"messages": [USER], "model": 5},
        {"messages": [USER], "metadata": {"script": "{"}},
    ],
)
def test_wrong_types_and_values(engine: Any, body: dict[str, Any]) -> None:
    refused(engine, body)
    refused(engine, {**body, "stream": body.get("stream", True)})  # a real status for streams too


def test_the_content_type_has_to_be_json(engine: Any) -> None:
    assert "application/json" in refused(engine, raw=b'{"messages":[]}', headers={"content-type": "text/plain"})


def test_a_prompt_or_an_answer_that_is_too_long(engine: Any) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 80_000}]}
    assert "longer than the model's context length" in refused(engine, long)
    assert "Requested token count exceeds" in refused(engine, {"messages": [USER], "max_tokens": 20_000})


def test_a_request_that_never_fits_the_kv_pool(start_engine: Any) -> None:
    engine = start_engine("--kv-tokens", "1024")
    body = {"messages": [{"role": "user", "content": "x" * 8000}]}
    assert "exceed the maximum allowed length" in refused(engine, body)


def test_data_parallel_ranks_are_checked(engine: Any) -> None:
    assert "integer" in refused(engine, {"messages": [USER]}, headers={"x-data-parallel-rank": "one"})
    assert "out of range" in refused(engine, {"messages": [USER]}, headers={"x-data-parallel-rank": "1"})
    assert "out of range" in refused(engine, {"messages": [USER], "routed_dp_rank": -1})


def test_native_generate_has_an_error_shape_of_its_own(engine: Any) -> None:
    response = engine.client.post("/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": -1}})
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message"}


def test_unknown_paths_and_methods(engine: Any) -> None:
    assert engine.client.get("/nope").status_code == 404
    assert engine.client.get("/v1/chat/completions").status_code == 405


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"NOT HTTP\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\nbig: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_malformed_http_is_answered_and_closed(engine: Any, sent: bytes, status: bytes) -> None:
    host, port = engine.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(sent)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
    assert received.startswith(b"HTTP/1.1 " + status)
    assert engine.client.get("/health").status_code == 200


def test_pipelined_requests_are_answered_in_order(engine: Any) -> None:
    host, port = engine.url.removeprefix("http://").split(":")
    body = b'{"messages":[{"role":"user","content":"slow"}],"rid":"pipelined"}'
    first = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        last = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        connection.sendall(first % len(body) + body + last)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
    assert 0 < received.index(b'"chat.completion"') < received.index(b'"served"')


def test_prompts_are_not_logged(start_engine: Any) -> None:
    canary = "canary-7f3a"
    engine = start_engine()
    for body in ({"messages": [{"role": "user", "content": canary}]}, {"messages": [canary]}, {"prompt": canary}):
        engine.client.post("/v1/chat/completions", json=body)
    engine.client.post("/v1/chat/completions", content=canary, headers={"content-type": "application/json"})
    assert canary not in engine.stop()
