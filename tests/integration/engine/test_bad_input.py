"""What a request has to be: refused with the status and shape of the protocol, and the engine stays up."""

import socket
from typing import Any

import httpx
import pytest
from tests.machine import seconds

USER = {"role": "user", "content": "hi"}


def refused(engine: Any, body: dict[str, Any]) -> str:
    """Post a chat request that must be refused with a 400; returns the message."""
    ended = engine.finished()["total"]
    response = engine.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()
    assert set(error) == {"object", "message", "type", "param", "code"}
    assert (error["object"], error["code"]) == ("error", 400)
    assert engine.client.get("/health").status_code == 200
    assert engine.finished()["total"] == ended, "the log has what ran alone"
    return str(error["message"])


@pytest.mark.parametrize("more", [{"n": 0}, {"metadata": {"script": "{"}}], ids=str)
def test_values_that_no_request_may_have(engine: Any, more: dict[str, Any]) -> None:
    refused(engine, {"messages": [USER], **more})
    refused(engine, {"messages": [USER], "stream": True, **more})  # a real status for streams too


def test_a_request_that_never_fits_the_kv_pool(start_engine: Any) -> None:
    engine = start_engine("--kv-tokens", "1024")
    body = {"messages": [{"role": "user", "content": "x" * 8000}]}
    assert "exceed the maximum allowed length" in refused(engine, body)


@pytest.mark.parametrize("script", [[{"output_tokens": 1e15}], {"output_tokens": 10**12, "text": "short"}])
def test_a_script_cannot_ask_for_more_than_the_request_may_have(engine: Any, script: Any) -> None:
    body = {"messages": [USER], "max_tokens": 9, "metadata": {"script": script}}
    answer = engine.client.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] <= 9


def test_a_script_that_is_too_deep(engine: Any) -> None:
    assert "not a script" in refused(engine, {"messages": [USER], "metadata": {"script": "[" * 100_000}})


@pytest.mark.parametrize("more", [{"n": 128}, {"logprobs": True, "top_logprobs": 128}], ids=str)
def test_answers_that_are_forced_to_be_long_have_a_limit_in_all(engine: Any, more: dict[str, Any]) -> None:
    assert "tokens in all" in refused(engine, {"messages": [USER], "ignore_eos": True, **more})


def test_head_is_answered_without_a_body(engine: Any) -> None:
    """Else what follows on the connection would be taken for the body."""
    for _ in range(2):
        response = engine.client.head("/v1/chat/completions")
        assert (response.status_code, response.content) == (405, b"")
        assert engine.client.get("/ready").status_code == 200


def test_numbers_of_any_length_in_bootstrap_paths(start_engine: Any) -> None:
    engine = start_engine("--role", "prefill")
    long = "9" * 5000
    with httpx.Client(base_url=f"http://127.0.0.1:{engine.bootstrap_port}", timeout=seconds(10)) as client:
        assert client.post(f"/room/{long}", json={"rid": "r", "prompt_tokens": 1}).status_code == 404
        ranks = dict.fromkeys(("prefill_cp_rank", "target_tp_rank", "target_pp_rank"), "0")
        assert client.get("/route", params={"prefill_dp_rank": long, **ranks}).status_code == 400
        assert client.get("/health").text == "OK"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"NOT HTTP\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\nbig: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_malformed_http_is_answered_and_closed(engine: Any, sent: bytes, status: bytes) -> None:
    host, port = engine.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=seconds(5)) as connection:
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
    with socket.create_connection((host, int(port)), timeout=seconds(5)) as connection:
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
