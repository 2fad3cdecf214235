"""An engine reports counts that cannot be true: nobody pays for them, receipts say so, and the worker is named."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.subjects.processes import ProxyProcess, until
from tests.subjects.scripted import Handler, ScriptedEngine, delta, whole
from tests.subjects.stopped import Stopped

LARGEST = 2**31 - 1
WORDS = 20
COUNTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "more than max_tokens": ({"completion_tokens": 17}, {"max_tokens": 16}),
    "the largest number": ({"completion_tokens": LARGEST}, {}),
    "the largest number within max_tokens": ({"completion_tokens": 2_000_000_000}, {"max_tokens": LARGEST}),
    "with thoughts that nobody could think": ({"completion_tokens": LARGEST, "reasoning_tokens": LARGEST}, {}),
    "a prompt of the largest number": ({"prompt_tokens": LARGEST, "completion_tokens": WORDS}, {}),
    "a prompt all of it cached": (
        {"prompt_tokens": LARGEST, "prompt_tokens_details": {"cached_tokens": LARGEST}, "completion_tokens": WORDS},
        {},
    ),
    "in other terms": ({"input_tokens": LARGEST, "output_tokens": LARGEST}, {}),
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1_000_000},
    "/v1/responses": {"input": "hello"},
}
LIMITS = {"/v1/responses": "max_output_tokens"}


class Lying(Stopped):
    """An engine that reports what it is told to, and a proxy in front of it."""

    def __init__(self, folder: Any) -> None:
        self.usage: dict[str, Any] = {}
        self.engine = ScriptedEngine("east-e0", self.answer)
        self.proxy = ProxyProcess(folder / "p", [self.engine.toml()]).start()

    def answer(self, handler: Handler) -> None:
        counted = {"prompt_tokens": 12, "completion_tokens": WORDS, **self.usage}
        if "input_tokens" in self.usage:
            counted = self.usage
        counted["total_tokens"] = sum(
            value for name, value in counted.items() if name in {"prompt_tokens", "completion_tokens"}
        )
        if not json.loads(self.engine.bodies[-1]).get("stream"):
            handler.reply(200, whole(counted))
            return
        usage = {"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": counted}
        handler.stream(*[delta("word ")] * WORDS, delta(finish="stop"), usage, "[DONE]")

    def ask(self, path: str, **fields: Any) -> dict[str, Any]:
        """The row of a request."""
        with self.proxy.client() as client:
            answer = client.post(path, json={"model": "kimi", **BODIES[path], **fields})
        assert answer.status_code == 200, answer.text
        return self.proxy.row(answer.headers["x-warmroute-receipt"])

    def stop(self) -> None:
        self.proxy.stop()
        self.engine.stop()


@pytest.fixture(scope="module")
def lying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lying]:
    with Lying(tmp_path_factory.mktemp("lying")) as found:
        yield found


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("counts", COUNTS)
def test_nobody_pays_for_an_impossible_count(lying: Lying, path: str, stream: bool, counts: str) -> None:
    lying.usage = {}
    sound = lying.ask(path, stream=stream)
    lying.usage, limits = COUNTS[counts]
    fields = {LIMITS.get(path, name): value for name, value in limits.items()}
    row = lying.ask(path, stream=stream, **fields)
    assert row["price_nanousd"] <= 2 * sound["price_nanousd"]
    assert row["completion_tokens"] <= WORDS
    assert row["prompt_tokens"] < 100
    estimated = set(json.loads(row["usage"])["warmroute"]["estimated"])
    assert estimated & {"prompt_tokens", "completion_tokens"}


def test_the_worker_is_named(lying: Lying) -> None:
    lying.usage = {"completion_tokens": LARGEST}

    def is_named() -> bool:
        lying.ask("/v1/chat/completions")
        with lying.proxy.admin() as admin:
            raised = admin.get("/admin/conditions").json()["raised"]
        return any(row["condition"] == "counts_are_impossible" and "east-e0" in row["subject"] for row in raised)

    until(is_named, "the condition is raised")


def test_tokens_without_text_are_charged_where_the_client_demands_them(lying: Lying) -> None:
    lying.usage = {"completion_tokens": 2_000}
    row = lying.ask("/v1/chat/completions", max_tokens=2_000, ignore_eos=True)
    assert row["completion_tokens"] == 2_000
    lying.usage = {"completion_tokens": 2_000}
    assert lying.ask("/v1/chat/completions", max_tokens=3_000)["completion_tokens"] < 300


def test_a_picture_may_have_any_tokens(lying: Lying) -> None:
    lying.usage = {"prompt_tokens": 50_000}
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    row = lying.ask("/v1/chat/completions", messages=[{"role": "user", "content": [picture]}])
    assert row["prompt_tokens"] == 50_000
