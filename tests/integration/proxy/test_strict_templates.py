"""A model whose template takes one system message: the proxy finds it out, and others become users' messages."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.subjects.processes import ProxyProcess, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole

MODEL = "kimi-k2.5"
LATE = "<system-reminder>\nbe quick\n</system-reminder>"
LONG = "tell me more, " * 220_000  # so that another process reads it
SAID = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
ANSWER = whole({"prompt_tokens": 5, "completion_tokens": 1})


def answers(handler: Handler) -> None:
    handler.reply(200, ANSWER)


@pytest.fixture(scope="module")
def strict() -> Iterator[ScriptedEngine]:
    with ScriptedEngine("east-e0", answers) as made:
        made.takes_late_system = False
        yield made


@pytest.fixture(scope="module")
def raw(strict: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with ProxyProcess(tmp_path_factory.mktemp("strict") / "p", [strict.toml()]) as proxy, proxy.client() as client:
        yield client


def asked(path: str, last: str = "c") -> dict[str, Any]:
    """A request with a system message behind others."""
    if path == "/v1/responses":
        items = [*SAID, {"role": "developer", "content": "be quick"}, {"role": "user", "content": last}]
        return {"model": MODEL, "instructions": "s", "input": items}
    system = [] if path == "/v1/messages" else [{"role": "system", "content": "s"}]
    messages = [*system, *SAID, {"role": "system", "content": "be quick"}, {"role": "user", "content": last}]
    return {"model": MODEL, "max_tokens": 5, "messages": messages, **({} if system else {"system": "s"})}


def roles(engine: ScriptedEngine) -> list[tuple[str, str]]:
    return [(message["role"], message["content"][:60]) for message in engine.sent()["messages"]]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("last", ["c", LONG], ids=["short", "large"])
def test_a_late_system_message_is_a_users(raw: httpx.Client, strict: ScriptedEngine, path: str, last: str) -> None:
    answer = raw.post(path, json=asked(path, last))
    assert answer.status_code == 200, answer.text
    first, *_, late, end = roles(strict)
    assert (first, late, end) == (("system", "s"), ("user", LATE), ("user", last[:60]))
    receipt = answer.json()["usage"]["warmroute"]
    assert receipt["normalised"] == ["late_system"]


def test_an_engine_that_restarts_is_asked_again(tmp_path: Path) -> None:
    with (
        ScriptedEngine("east-e0", answers) as engine,
        ProxyProcess(tmp_path / "p", [engine.toml()]) as proxy,
        proxy.client() as client,
    ):

        def late_role() -> str:
            client.post("/v1/messages", json=asked("/v1/messages"))
            return str(roles(engine)[-2][0])

        assert late_role() == "system"
        engine.takes_late_system = False
        restart(engine, client)
        until(lambda: late_role() == "user", "its new template is known")


def restart(engine: ScriptedEngine, client: httpx.Client) -> None:
    engine.dead = True
    engine.info = json.dumps({**json.loads(engine.info), "start_time": 2}).encode()
    until(lambda: client.get("/ready").status_code == 503, "it is gone")
    engine.dead = False


def test_an_engine_that_restarts_gets_what_it_refused_before(tmp_path: Path) -> None:
    def refuses(handler: Handler) -> None:
        if handler.engine.sent()["top_k"] == 0 and b'"start_time":1' in handler.engine.info:
            handler.reply(400, b'{"message":"top_k must be -1 (disable), or at least 1, got 0."}')
        else:
            handler.reply(200, ANSWER)

    with (
        ScriptedEngine("east-e0", refuses) as engine,
        ProxyProcess(tmp_path / "p", [engine.toml()]) as proxy,
        proxy.client() as client,
    ):

        def top_k() -> int:
            client.post("/v1/chat/completions", json={**asked("/v1/chat/completions"), "top_k": 0})
            return int(engine.sent()["top_k"])

        assert (top_k(), top_k(), len(engine.bodies)) == (-1, -1, 3)
        restart(engine, client)
        until(lambda: top_k() == 0, "it is asked as before")


def test_rules_of_the_config_are_all(strict: ScriptedEngine, tmp_path: Path) -> None:
    with ProxyProcess(tmp_path / "p", [strict.toml()], model='normalise = ["billing_line"]') as proxy:
        with proxy.client() as client:
            assert client.post("/v1/messages", json=asked("/v1/messages")).status_code == 200
        assert roles(strict)[-2] == ("system", "be quick")
