"""Attacks on the price: a client computes, and sees to it that the engine's count of tokens never comes."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, events, until
from tests.subjects.scripted import Handler, ScriptedEngine, delta, whole
from warmroute.contract import receipt as contract_receipt

LONG: dict[str, Any] = {"metadata": {"script": json.dumps({"output_tokens": 20_000})}, "max_tokens": 20_000}
WORDS = 3000  # of a prompt
TOKENS_A_MINUTE, REQUESTS_A_MINUTE = 20_000, 10


@pytest.fixture(scope="module")
def proxy(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("free-proxy")
    with ProxyProcess(folder / "p", [engine.toml("east")], second=f"tokens_per_minute = {TOKENS_A_MINUTE}") as started:
        yield started


def body(name: str, **fields: Any) -> dict[str, Any]:
    """A prompt of some thousand tokens that no other test has sent."""
    text = " ".join(f"{name}{number % 97}" for number in range(WORDS))
    return {"model": "kimi-k2.5", "messages": [{"role": "user", "content": text}], **fields}


def leave(proxy: ProxyProcess, engine: EngineProcess, given: dict[str, Any], tenant: int = 0) -> None:
    """Send a request, and go once its first content is there."""
    with proxy.client(tenant) as client, client.stream("POST", "/v1/chat/completions", json=given) as answer:
        if answer.status_code == 200:
            lines = answer.iter_lines()  # held, because a generator that is dropped closes its answer
            next(line for line in lines if '"content":"' in line.replace('"content":""', ""))
        else:
            answer.read()
            assert answer.status_code == 429
    until(lambda: engine.running() == 0, "the engine stops")


def grown(limit: int, since_s: float) -> float:
    """What has come back of a limit by the minute since a time of the steady clock; more where the machine is slow."""
    return limit * (time.monotonic() - since_s) / 60


def test_who_leaves_several_answers_pays_for_the_prompt(proxy: ProxyProcess, engine: EngineProcess) -> None:
    with proxy.client() as client:
        honest = client.post("/v1/chat/completions", json=body("honest", max_tokens=1)).json()["usage"]
    leave(proxy, engine, body("thief", n=2, stream=True, **LONG))
    row = until(lambda: next((row for row in proxy.rows() if row["outcome"] == "client_left"), None), "the row")
    usage = json.loads(row["usage"])
    assert contract_receipt.check(usage) == []
    assert {"prompt_tokens", "completion_tokens"} <= set(usage["warmroute"]["estimated"])
    assert row["prompt_tokens"] == pytest.approx(honest["prompt_tokens"], rel=0.5)
    assert row["price_nanousd"] >= 0.4 * honest["warmroute"]["price_nanousd"]


def test_a_limit_of_tokens_holds_for_those_who_leave(proxy: ProxyProcess, engine: EngineProcess) -> None:
    """Ten prompts that together are three times the limit: some of them are refused."""
    began_s = time.monotonic()
    with proxy.client(1) as client:
        client.post("/v1/chat/completions", json=body("known", max_tokens=1))
    for number in range(10):
        leave(proxy, engine, body(f"rush{number}", n=2, stream=True, **LONG), tenant=1)
    rows = until(lambda: [row for row in proxy.rows() if row["tenant"] == "second"], "rows")
    prompts = [row["prompt_tokens"] for row in rows]
    assert sum(prompts) <= TOKENS_A_MINUTE + grown(TOKENS_A_MINUTE, began_s) + max(prompts)
    with proxy.admin() as admin:
        left = admin.get("/admin/admission").json()["tenants"]["second"]["tokens_remaining"]
    assert left <= TOKENS_A_MINUTE + grown(TOKENS_A_MINUTE, began_s) - sum(prompts)


def test_several_answers_count_as_so_many_requests(engine: EngineProcess, tmp_path: Path) -> None:
    limits = f"requests_per_minute = {REQUESTS_A_MINUTE}\nrequests_at_once = 8"
    with ProxyProcess(tmp_path / "p", [engine.toml("east")], second=limits) as proxy:
        with proxy.client(1) as client:
            began_s = time.monotonic()
            asked = {"model": "kimi-k2.5", "prompt": ["a b", "c d", "e f"], "n": 2, "max_tokens": 2}
            for path, body_, used in (
                ("/v1/chat/completions", chat("one", n=4, max_tokens=2), 4),
                ("/v1/completions", asked, 4 + 3 * 2),
            ):
                answer = client.post(path, json=body_)
                assert answer.status_code == 200
                left = int(answer.headers["x-ratelimit-remaining-requests"]) - (REQUESTS_A_MINUTE - used)
                assert 0 <= left <= grown(REQUESTS_A_MINUTE, began_s)
            refused = client.post("/v1/chat/completions", json=chat("two", n=8, max_tokens=2))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_engine_that_counts_nothing_is_no_gift(tmp_path: Path, stream: bool) -> None:
    def script(handler: Handler) -> None:
        if stream:
            handler.stream(*[delta(f"word{number} ") for number in range(20)], delta(finish="stop"), "[DONE]")
        else:
            message = {"role": "assistant", "content": "word " * 200}
            handler.reply(200, whole(None, choices=[{"index": 0, "message": message, "finish_reason": "stop"}]))

    with ScriptedEngine("o0", script) as scripted, ProxyProcess(tmp_path / "p", [scripted.toml("openai")]) as proxy:
        extra = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        with proxy.client() as client:
            answer = client.post("/v1/chat/completions", json=body("silent", **extra))
        usage = events(answer.text)[-1]["usage"] if stream else answer.json()["usage"]
        assert contract_receipt.check(usage) == []
        assert {"prompt_tokens", "completion_tokens", "cached_tokens"} <= set(usage["warmroute"]["estimated"])
        size = len(json.dumps(body("silent")))
        assert size / 8 < usage["prompt_tokens"] < size
        assert usage["completion_tokens"] >= 20
        assert usage["warmroute"]["price_nanousd"] >= 600 * usage["prompt_tokens"]


@pytest.mark.real_deadlines("inference_request")
def test_who_leaves_a_server_that_cannot_be_stopped_pays_for_the_prompt(tmp_path: Path) -> None:
    over = threading.Event()
    with (
        ScriptedEngine("o0", lambda handler: handler.cut() if over.wait(seconds(60)) else None) as scripted,
        ProxyProcess(tmp_path / "p", [scripted.toml("openai")]) as proxy,
        ExitStack() as stack,
    ):
        stack.callback(over.set)
        sock = proxy.send(body("gone"))
        until(lambda: scripted.bodies, "it computes")
        sock.close()
        row = proxy.rows(expected=1)[0]
        assert row["outcome"] == "client_left"
        assert row["prompt_tokens"] > 1000
        assert row["price_nanousd"] >= 600 * row["prompt_tokens"]
        assert "prompt_tokens" in json.loads(row["usage"])["warmroute"]["estimated"]
