"""Answers validate strictly as the models of the installed `openai`: those of the embedded engine through a proxy,
whole and streamed, and the recorded ones of SGLang as the proxy rewrites them.

Two things are as OpenAI's own service does them, whose models do not say so: a chunk of a text completion has
`"finish_reason": null` before its end, and the recorded answers have their `top_logprobs` masked.
"""

import json
import warnings
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.subjects.processes import chat, events
from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.server.engines.sse import UsageTracker
from warmroute_proxy.server.request.answer import Answer
from warmroute_proxy.server.request.client_answer import usage_event

GOLDEN: Final = Path(__file__).parents[2] / "contract" / "golden"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
SUM: Final = b'{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}'
TOOL: Final = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
STEPS: Final = [{"text": "I look.", "tool_calls": [{"name": "look", "arguments": {"at": "x"}}], "output_tokens": 12}]
SCRIPT: Final = {"metadata": {"script": json.dumps(STEPS)}, "tools": [TOOL]}
USAGE: Final = {"stream_options": {"include_usage": True}}
RUNNING: Final = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

CHATS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "choices": {"n": 2},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "details": {"return_cached_tokens_details": True},
    "tool_calls": SCRIPT,
    "reasoning": {"reasoning_effort": "high"},
}
PROMPTS: Final[dict[str, dict[str, Any]]] = {
    "text": {},
    "batch": {"prompt": ["hello", "there"]},
    "logprobs": {"logprobs": 1},
}


def check(model: type[BaseModel], answer: dict[str, Any]) -> None:
    """Validate strictly, and write it again without a warning, as `model_dump()` of openai 3.x would give."""
    if model is Completion:
        answer["choices"] = [
            {**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in answer["choices"]
        ]
    model.model_validate_json(json.dumps(answer), strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        openai._models.construct_type(value=answer, type_=model).model_dump(mode="json")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CHATS)
def test_a_whole_chat(client: httpx.Client, name: str) -> None:
    check(ChatCompletion, answered := client.post(CHAT, json=chat("whole", max_tokens=12, **CHATS[name])).json())
    assert answered["metadata"] == {"weight_version": "default"}


@pytest.mark.parametrize("options", [{}, USAGE, RUNNING], ids=["plain", "usage", "running"])
@pytest.mark.parametrize("name", CHATS)
def test_the_chunks_of_a_chat(client: httpx.Client, name: str, options: dict[str, Any]) -> None:
    body = chat("chunks", max_tokens=12, stream=True, **CHATS[name], **options)
    chunks = events(client.post(CHAT, json=body).text)
    assert len(chunks) > 2
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)


@pytest.mark.parametrize("name", PROMPTS)
def test_completions(client: httpx.Client, name: str) -> None:
    body = {"model": "kimi-k2.5", "prompt": "hello", "max_tokens": 6, **PROMPTS[name]}
    check(Completion, answered := client.post(COMPLETIONS, json=body).json())
    assert answered["metadata"]["weight_versions"]  # no member of OpenAI's text completions
    for chunk in events(client.post(COMPLETIONS, json={**body, "stream": True, **USAGE}).text):
        check(Completion, chunk)


def test_the_models(client: httpx.Client) -> None:
    for model in client.get("/v1/models").json()["data"]:
        check(Model, model)


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in GOLDEN.glob("*.json") if path.stem[:4] in {"chat", "comp"})
)
def test_recorded_answers_of_sglang(name: str) -> None:
    recorded = json.loads((GOLDEN / f"{name}.json").read_text())
    if isinstance(recorded, dict):
        body = Answer(json.dumps(recorded, separators=(",", ":")).encode()).settled(SUM, keep_sglext=True)
        check(ChatCompletion if name.startswith("chat") else Completion, _unmasked(json.loads(body)))
        return
    scanner = UsageTracker(keep_sglext=True)
    for event in recorded:
        relayed = scanner.feed(b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode())
        for chunk in events(relayed.decode()):
            check(ChatCompletionChunk if name.startswith("chat") else Completion, _unmasked(chunk))
    assert scanner.aborted == name.endswith("aborted")


def _unmasked(answer: dict[str, Any]) -> dict[str, Any]:
    for choice in answer["choices"]:
        for token in (choice.get("logprobs") or {}).get("content") or []:
            token.update(top_logprobs=[])
    return answer


def test_the_usage_of_an_engine_that_writes_no_usage_chunk() -> None:
    for route, model in ((CHAT, ChatCompletionChunk), (COMPLETIONS, Completion)):
        entry = Entry("wr-1", "t", None, "0", 1, "east", "m", route, True, Rates(1, 1, 1), 5.5, usage=msgspec.Raw(SUM))
        (chunk,) = events(usage_event(UsageTracker(keep_sglext=False), entry, keep_sglext=False).decode())
        check(model, chunk)
