"""Anthropic's messages in chat: a turn that only appends appends only, and `cache_control` makes no difference."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.dialects.messages.request import chat_request

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=3))
INPUTS = st.dictionaries(TEXTS, VALUES, max_size=3)
TEXT = TEXTS.map(lambda text: {"type": "text", "text": text})
IMAGE = st.just({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}})
THOUGHT = TEXTS.map(lambda text: {"type": "thinking", "thinking": text, "signature": "s"})
CONTENT = TEXTS | st.lists(TEXT, min_size=1, max_size=3)
SAYS = (TEXTS | st.lists(TEXT | IMAGE, min_size=1, max_size=3)).map(
    lambda content: {"role": "user", "content": content}
)
SYSTEM = CONTENT.map(lambda content: {"role": "system", "content": content})
ANSWERS = (TEXTS | st.lists(TEXT | THOUGHT, min_size=1, max_size=3)).map(
    lambda content: {"role": "assistant", "content": content}
)


@st.composite
def exchanges(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Some messages, of which the last is not the assistant's."""
    asked = draw(SAYS)
    if draw(st.booleans()):
        return [asked, draw(ANSWERS), draw(SAYS)]
    if draw(st.booleans()):
        return [asked, draw(SYSTEM)]
    calls = [
        {"type": "tool_use", "id": f"t{at}", "name": "read", "input": given}
        for at, given in enumerate(draw(st.lists(INPUTS, min_size=1, max_size=3)))
    ]
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": draw(CONTENT), "is_error": draw(st.booleans())}
        for call in calls
    ]
    return [asked, {"role": "assistant", "content": [draw(TEXT), *calls]}, {"role": "user", "content": results}]


def body(messages: list[dict[str, Any]], system: Any = None) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 5, "system": system, "messages": messages}).encode()


@given(exchanges(), exchanges(), st.none() | CONTENT)
def test_a_turn_that_appends_appends_only(
    before: list[dict[str, Any]], after: list[dict[str, Any]], system: Any
) -> None:
    shorter = chat_request(body(before, system)).body
    longer = chat_request(body(before + after, system)).body
    assert longer.startswith(shorter.removesuffix(b"]}") + b",")


@given(exchanges(), CONTENT)
def test_cache_control_makes_no_difference(messages: list[dict[str, Any]], system: Any) -> None:
    """Clients move it from message to message, and make a block of a text for it."""
    assert (
        chat_request(body(marked(messages), marked_content(system))).body == chat_request(body(messages, system)).body
    )


@given(exchanges())
def test_it_is_a_chat_body(messages: list[dict[str, Any]]) -> None:
    """Every message has a role of chat, every result its call, and arguments are what the input was."""
    found = msgspec.json.decode(chat_request(body(messages)).body)
    sent = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    inputs = [block["input"] for block in sent if block["type"] == "tool_use"]
    calls = [call for message in found["messages"] for call in message.get("tool_calls", ())]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == inputs
    results = [message["tool_call_id"] for message in found["messages"] if message["role"] == "tool"]
    assert results == [call["id"] for call in calls]
    assert {message["role"] for message in found["messages"]} <= {"system", "user", "assistant", "tool"}


def marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages, each with a mark."""
    return [{**message, "content": marked_content(message["content"])} for message in messages]


def marked_content(content: Any) -> Any:
    mark = {"cache_control": {"type": "ephemeral"}}
    if isinstance(content, str):
        return [{"type": "text", "text": content, **mark}]
    return [*content[:-1], {**content[-1], **mark}]
