"""Counts of tokens are free, so they have a limit of their own: by tenant, and beyond it an estimate that says so."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.hostile.conftest import HOSTILE, INNOCENT
from tests.subjects.processes import ProxyProcess, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from warmroute_proxy.server.dialects.token_counts import MAX_AT_ONCE

COUNT = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses/input_tokens"
GEMINI = "/v1beta/models/kimi-k2.5:countTokens"
EXACT = 7


class Counting:
    """A proxy before an engine that notes who asks it to count, and may be told to wait."""

    def __init__(self, folder: Path, second: str = "", **options: str) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.ids = b""
        self.engine = ScriptedEngine("east-e0", self.answer)
        self.proxy = ProxyProcess(folder / "p", [self.engine.toml()], second=second, **options).start()  # type: ignore[arg-type]

    def answer(self, handler: Handler) -> None:
        if handler.path != "/v1/tokenize":
            handler.reply(200, whole({"prompt_tokens": 5, "completion_tokens": 1}))
            return
        self.may_answer.wait()
        handler.reply(200, b'{"tokens":[%b],"count":%d,"max_model_len":9}' % (self.ids, EXACT))

    def count(self, tenant: int, text: str, path: str = COUNT) -> dict[str, Any]:
        bodies: dict[str, dict[str, Any]] = {
            COUNT: {"model": "kimi", "messages": [{"role": "user", "content": text}]},
            RESPONSES: {"model": "kimi", "input": text},
            GEMINI: {"contents": [{"parts": [{"text": text}]}]},
        }
        with self.proxy.client(tenant) as client:
            answer = client.post(path, json=bodies[path])
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def is_exact(self, tenant: int, text: str, path: str = COUNT) -> bool:
        found = self.count(tenant, text, path)
        estimated = bool(found["warmroute"]["estimated"])
        assert estimated == (EXACT not in found.values())
        return not estimated

    def stop(self) -> None:
        self.may_answer.set()
        self.proxy.stop()
        self.engine.stop()


Make = Callable[..., Counting]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def made(**options: str) -> Counting:
            counting = Counting(tmp_path, **options)
            stack.callback(counting.stop)
            return counting

        yield made


@pytest.mark.parametrize("path", [COUNT, RESPONSES, GEMINI])
def test_beyond_the_limit_a_tenant_gets_estimates_and_others_do_not(make: Make, path: str) -> None:
    counting = make(limits="counted_tokens_per_minute = 20_000")
    text = "tell me more, " * 5000  # nearly a minute's tokens: the next are estimated for more than half a minute
    exact = [counting.is_exact(HOSTILE, text, path) for _ in range(20)]
    assert exact[0]
    assert sum(exact) < 10
    assert not exact[-1]
    assert counting.is_exact(INNOCENT, text, path)


def test_a_prompt_of_more_than_a_minutes_tokens_is_estimated_and_others_are_not(make: Make) -> None:
    counting = make(limits="counted_tokens_per_minute = 20_000")
    assert not counting.is_exact(HOSTILE, "tell me more, " * 9000)
    assert counting.is_exact(HOSTILE, "tell me more, " * 5000)  # more than is saved up
    assert not counting.is_exact(HOSTILE, "tell me more")


def test_one_tenant_leaves_others_room_at_an_engine(make: Make) -> None:
    counting = make()
    counting.may_answer.clear()
    with ThreadPoolExecutor(2 * MAX_AT_ONCE) as threads:
        hostile = [threads.submit(counting.is_exact, HOSTILE, f"{number}") for number in range(2 * MAX_AT_ONCE - 1)]
        until(lambda: sum(each.done() for each in hostile) == len(hostile) - MAX_AT_ONCE // 2, "some are estimated")
        innocent = threads.submit(counting.is_exact, INNOCENT, "mine")
        until(lambda: any(b"mine" in body for body in counting.engine.bodies), "the engine is asked for it")
        counting.may_answer.set()
        assert innocent.result()
        assert sum(each.result() for each in hostile) == MAX_AT_ONCE // 2


def test_a_tenant_has_one_large_prompt_counted_at_a_time(make: Make) -> None:
    """An engine answers nobody else while its tokenizer runs, and several in a row hold it as one of their size."""
    counting = make()
    counting.may_answer.clear()
    with ThreadPoolExecutor(6) as threads:
        large = [threads.submit(counting.is_exact, HOSTILE, f"{number}" + "go on. " * 20_000) for number in range(4)]
        until(lambda: sum(each.done() for each in large) == 3, "all but one are estimated")
        small = threads.submit(counting.is_exact, HOSTILE, "small")
        innocent = threads.submit(counting.is_exact, INNOCENT, "mine " + "go on. " * 20_000)
        until(lambda: any(b"mine" in body for body in counting.engine.bodies), "the engine is asked for it")
        until(lambda: any(b"small" in body for body in counting.engine.bodies), "the engine is asked for it")
        counting.may_answer.set()
        assert innocent.result()
        assert small.result()
        assert sum(each.result() for each in large) == 1
    assert counting.is_exact(HOSTILE, "later " + "go on. " * 20_000)


def test_counts_take_nothing_of_other_limits(make: Make) -> None:
    """As agents count, between their turns."""
    counting = make(second="requests_per_minute = 1")
    for number in range(5):
        assert counting.is_exact(1, f"{number}")
    with counting.proxy.client(1) as client:
        answers: list[httpx.Response] = [client.post("/v1/chat/completions", json=chat()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert counting.is_exact(1, "and after that")


def test_an_engine_lists_no_more_tokens_than_the_prompt_has_bytes(make: Make) -> None:
    counting = make()
    counting.ids = b"151644," * 300 + b"1"
    assert counting.is_exact(INNOCENT, "x" * 300)
    counting.ids = b"151644," * 100_000 + b"1"
    assert not counting.is_exact(INNOCENT, "x" * 300), "700 KB of an engine were held for a prompt of 300 bytes"
    assert counting.is_exact(INNOCENT, "x" * 100_000), "the answer fits a prompt of that length"
