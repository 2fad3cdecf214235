"""Responses in chat: a turn that only appends appends only, and what a model said in one turn is one message."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_messages_prefix import appends
from tests.recordings import recorded

from warmroute_proxy.dialects.responses.request import ChatRequest, chat_request
from warmroute_proxy.dialects.tool_arguments import object_text
from warmroute_proxy.normalising.texts import Texts

ARGUMENTS = st.sampled_from(["{}", '{"a": 1}', "", "[1]", '{"cut'])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="}
PIECES = TEXTS.map(lambda text: {"type": "input_text", "text": text})
CONTENT = TEXTS | st.lists(PIECES, min_size=1, max_size=3)
SAYS = st.builds(
    lambda role, content: {"type": "message", "role": role, "content": content},
    st.sampled_from(["user", "system", "developer"]),
    CONTENT,
) | st.just({"role": "user", "content": [IMAGE]})
REASONING = st.builds(
    lambda text, sealed: {"type": "reasoning", "summary": [], **({"encrypted_content": f"s:{text}"} if sealed else {})},
    TEXTS,
    st.booleans(),
)
ANSWER = TEXTS.map(
    lambda text: {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
)


class Marked:
    """Sealed reasoning has a mark in front."""

    key = b"k"

    def open(self, sealed: str) -> str | None:
        return sealed.removeprefix("s:") if sealed.startswith("s:") else None


SEAL = Marked()


def read(items: Any, instructions: str | None = None) -> ChatRequest:
    asked = {"model": "m", "instructions": instructions, "input": items}
    return chat_request(json.dumps(asked).encode(), SEAL, lambda _: Texts(frozenset()))


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What is asked, what the model says, and what comes behind that: never an item of the model's."""
    items = [draw(SAYS), *draw(st.lists(REASONING, max_size=2)), *draw(st.lists(ANSWER, max_size=1))]
    kinds = draw(st.lists(st.sampled_from(["function_call", "custom_tool_call"]), max_size=3))
    start = draw(st.integers(0, 10**9))
    calls = [
        {
            "type": kind, "call_id": f"c{start + at}", "name": "read",
            "input" if kind == "custom_tool_call" else "arguments": draw(TEXTS | ARGUMENTS),
        }
        for at, kind in enumerate(kinds)
    ]  # fmt: skip
    results: list[dict[str, Any]] = [
        {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": draw(CONTENT | st.just([IMAGE]))}
        for call in calls
    ]
    for said in draw(st.lists(SAYS, max_size=2)):
        results.insert(draw(st.integers(0, len(results))), said)
    return [*items, *calls, *results, draw(SAYS)]


@given(turns(), turns(), st.none() | TEXTS)
def test_a_turn_that_appends_appends_only(
    before: list[dict[str, Any]], after: list[dict[str, Any]], instructions: str | None
) -> None:
    shorter = read(before, instructions).body
    longer = read(before + after, instructions).body
    assert appends(shorter, longer)


@given(turns())
def test_it_is_a_chat_body(items: list[dict[str, Any]]) -> None:
    """What the model said is one message, with its reasoning, its text and its calls. Its results follow at once."""
    found = msgspec.json.decode(read(items).body)["messages"]
    said = [item for item in items if item.get("role") == "assistant"]
    thought = "".join(
        SEAL.open(item.get("encrypted_content", "")) or "" for item in items if item.get("type") == "reasoning"
    )
    calls = [item for item in items if item.get("type") in ("function_call", "custom_tool_call")]
    assistant = [message for message in found if message["role"] == "assistant"]
    assert len(assistant) == (1 if said or thought or calls else 0)
    for message in assistant:
        assert message.get("reasoning_content", "") == thought
        assert message["content"] == (said[0]["content"][0]["text"] if said else None if calls else "")
        sent = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
        assert sent == [
            object_text(call["arguments"])
            if "arguments" in call
            else msgspec.json.encode({"input": call["input"]}).decode()
            for call in calls
        ]
    results = [message["tool_call_id"] for message in found if message["role"] == "tool"]
    assert results == [call["call_id"] for call in calls]
    if calls:
        first = found.index(assistant[0]) + 1
        assert [message["role"] for message in found[first : first + len(calls)]] == ["tool"] * len(calls)


@given(CONTENT)
def test_a_text_is_the_same_with_and_without_an_item(content: Any) -> None:
    text = content if isinstance(content, str) else content[0]["text"]
    assert read(text).body == read([{"role": "user", "content": [{"type": "input_text", "text": text}]}]).body


@pytest.mark.parametrize(("name", "first"), [("codex", 0), ("oc_openai", 1)])
def test_a_recorded_session_appends_only(name: str, first: int) -> None:
    """OpenCode asks for a title first, which is another prompt."""
    bodies = [
        chat_request(json.dumps(turn.body, ensure_ascii=False).encode(), SEAL, lambda _: Texts(frozenset())).body
        for turn in recorded(name)[first:]
    ]
    assert len(bodies) > 7
    for shorter, longer in itertools.pairwise(bodies):
        assert appends(shorter, longer)
