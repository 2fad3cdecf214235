"""A turn whose effort a model does not take is served with the nearest one, in the words of each server."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apis.case import PATHS
from tests.apis.played import Answered, Said, Scene
from tests.apis.test_shorter_answers import answers, played, receipt_of

QWEN: Final = "Unexpected reasoning effort high. Supported types are xhigh (default), medium, and low."
REFUSALS: Final[dict[str, tuple[int, Any, str, str | None]]] = {
    "SGLang, Qwen3.8": (400, {"object": "error", "message": QWEN, "code": 400}, "high", "xhigh"),
    "llama.cpp, Qwen3.8": (500, {"error": {"message": f"Jinja Exception: {QWEN}", "code": 500}}, "high", "xhigh"),
    "vLLM 0.27, Qwen3.8": (500, {"error": {"message": QWEN, "type": "InternalServerError"}}, "high", "xhigh"),
    "Moonshot, K2.5": (
        400,
        {"error": {"message": "reasoning_effort: expected one of 'low' | 'medium' | 'high', received 'xhigh'"}},
        "xhigh",
        "high",
    ),
    "FastAPI, MiMo": (
        422,
        {"detail": [{"loc": ["body", "reasoning_effort"], "msg": "Input should be 'low', 'medium' or 'high'"}]},
        "max",
        "high",
    ),
    "OpenAI": (
        400,
        {
            "error": {
                "message": "Unsupported value: 'reasoning_effort' does not support 'minimal' with this model. "
                "Supported values are: 'none', 'low', 'medium', and 'high'.",
                "param": "reasoning_effort",
                "code": "unsupported_value",
            }
        },
        "minimal",
        "low",
    ),
    "OpenAI, gpt-4o": (
        400,
        {"error": {"message": "Unrecognized request argument supplied: reasoning_effort"}},
        "high",
        None,
    ),
    "OpenAI, gpt-5.6": (
        400,
        {
            "error": {
                "message": "Function tools with reasoning_effort are not supported for gpt-5.6-sol in "
                "/v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
                "param": "reasoning_effort",
            }
        },
        "high",
        "none",
    ),
    "xAI, grok-4": (400, {"error": "Model grok-4 does not support parameter reasoningEffort."}, "low", None),
    "SGLang, gpt-oss": (400, {"message": "Harmony does not support reasoning effort none"}, "none", None),
    "vLLM, Mistral": (400, {"error": {"message": "Kwargs ['reasoning_effort'] are not supported by it"}}, "max", None),
}
KNOWS_NO_EFFORT: Final = ("OpenAI, gpt-4o", "xAI, grok-4")


def refused(status: int, error: Any) -> Said:
    return Said(json.dumps(error).encode(), status=status)


def efforts(answered: Answered) -> list[str | None]:
    return [sent.get("reasoning_effort") for _, sent in answered.sent]


def asked(effort: str) -> bytes:
    told = [{"role": "user", "content": "one"}]
    return json.dumps(
        {"model": "kimi", "max_tokens": 9, "messages": told, "output_config": {"effort": effort}}
    ).encode()


@pytest.mark.parametrize("server", REFUSALS)
def test_the_nearest_effort_is_asked_for(tmp_path: Path, server: str) -> None:
    status, error, effort, instead = REFUSALS[server]
    answered = played(tmp_path, [refused(status, error), answers()], asked(effort), PATHS["messages"])
    assert efforts(answered) == [effort, instead]
    dropped = "reasoning_effort" if server in KNOWS_NO_EFFORT else f"reasoning_effort.{effort}"
    assert receipt_of(answered)["dropped_fields"] == [dropped]
    assert answered.sent[0][1]["messages"] == answered.sent[1][1]["messages"]


class Filling(Scene):
    """The other requests of the engine grow until it is full, while one of the client's is under way."""

    def answer(self, number: int, body: Any) -> Said:
        assert self.router is not None
        for worker in self.router.fleet.workers.values():
            worker.load.add_running(1, worker.load.capacity.tokens)
        return super().answer(number, body)


def test_the_nearest_effort_is_asked_for_of_an_engine_that_is_full_by_now(tmp_path: Path) -> None:
    scene = Filling(tmp_path / "p", [refused(400, {"message": QWEN}), answers()], engine_count=1)
    answered = scene.play(PATHS["messages"], asked("high"))
    assert (answered.status, efforts(answered)) == (200, ["high", "xhigh"])


def test_no_effort_is_asked_for_twice(tmp_path: Path) -> None:
    answered = played(tmp_path, [refused(400, {"message": QWEN})] * 7, asked("high"), PATHS["messages"])
    assert efforts(answered) == ["high", "xhigh", "medium", "low", None]
    assert answered.status == 400


def test_an_effort_that_no_one_asked_for_is_refused(tmp_path: Path) -> None:
    """GPT-5.6 thinks by default, and does not take tools while it thinks."""
    status, error, _, _ = REFUSALS["OpenAI, gpt-5.6"]
    body = json.dumps({"model": "kimi", "messages": [{"role": "user", "content": "one"}]}).encode()
    answered = played(tmp_path, [refused(status, error), answers()], body)
    assert efforts(answered) == [None, "none"]
    assert receipt_of(answered)["dropped_fields"] == ["reasoning_effort.default"]


def test_a_request_without_an_effort_is_not_sent_again(tmp_path: Path) -> None:
    body = json.dumps({"model": "kimi", "messages": [{"role": "user", "content": "one"}]}).encode()
    answered = played(tmp_path, [refused(500, {"error": {"message": QWEN}})], body)
    assert (answered.status, len(answered.sent)) == (400, 1)


def test_an_effort_in_place_of_a_null(tmp_path: Path) -> None:
    status, error, _, _ = REFUSALS["OpenAI, gpt-5.6"]
    told = [{"role": "user", "content": "one"}]
    body = json.dumps({"model": "kimi", "messages": told, "reasoning_effort": None}).encode()
    answered = played(tmp_path, [refused(status, error), answers()], body)
    assert efforts(answered) == [None, "none"]
