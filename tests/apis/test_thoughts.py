"""What the model thought goes back to its server under the name that the server has for it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.apis.played import Answered, Said, Scene, completion

USAGE = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
FIRST = {"role": "user", "content": "one"}
NEXT = {"role": "user", "content": "two"}


def said(name: str) -> Said:
    return completion({"content": "Hello", name: "I think."}, USAGE)


def chat(name: str) -> Callable[[list[Answered]], bytes]:
    """The second turn of a client of chat that calls thoughts by this name."""
    answer = {"role": "assistant", "content": "Hello", name: "I think."}
    return lambda _: json.dumps({"model": "kimi", "messages": [FIRST, answer, NEXT]}).encode()


def messages(answered: list[Answered]) -> bytes:
    """A turn of a client of Anthropic's, which sends back what it got."""
    turns: list[Any] = [FIRST]
    for each in answered:
        turns += [{"role": "assistant", "content": json.loads(each.body)["content"]}, NEXT]
    return json.dumps({"model": "claude-x", "max_tokens": 9, "messages": turns}).encode()


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("known", ["reasoning", "reasoning_content"])
def test_a_client_of_chat_may_call_thoughts_by_either_name(tmp_path: Path, name: str, known: str) -> None:
    scene = Scene(tmp_path / "p", [said(name), said(name)], engine_count=1)
    scene.play_turns("/v1/chat/completions", [chat(known), chat(known)])
    assert scene.sent[0][1]["messages"][1][known] == "I think."  # nothing is known of the server yet
    assert scene.sent[1][1]["messages"][1] == {"role": "assistant", "content": "Hello", name: "I think."}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_of_a_translated_answer_go_back_under_their_name(tmp_path: Path, name: str) -> None:
    scene = Scene(tmp_path / "p", [said(name), said(name)], engine_count=1)
    scene.play_turns("/v1/messages", [messages, messages])
    assert scene.sent[1][1]["messages"][1] == {"role": "assistant", "content": "Hello", name: "I think."}
