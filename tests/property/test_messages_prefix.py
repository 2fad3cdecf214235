"""Anthropic's messages in chat: a turn that only appends appends only, and `cache_control` makes no difference."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recordings import recorded

from warmroute_proxy.dialects.messages.request import chat_request
from warmroute_proxy.dialects.messages.signatures import signature_of
from warmroute_proxy.normalising.rules import DEFAULT_NAMES
from warmroute_proxy.normalising.texts import Texts

KEY = b"k" * 32
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=3))
INPUTS = st.dictionaries(TEXTS, VALUES, max_size=3)
TEXT = TEXTS.map(lambda text: {"type": "text", "text": text})
IMAGE = st.just({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}})
SIGNED = TEXTS.map(lambda text: {"type": "thinking", "thinking": text, "signature": signature_of(KEY, text)})
FOREIGN = TEXTS.map(lambda text: {"type": "thinking", "thinking": text, "signature": "s"})
COUNTERS = st.integers(0).map(lambda left: f"<total_tokens>{left} tokens left</total_tokens>")
CONTENT = TEXTS | st.lists(TEXT, min_size=1, max_size=3)
SAYS = (TEXTS | st.lists(TEXT | IMAGE, min_size=1, max_size=3)).map(
    lambda content: {"role": "user", "content": content}
)
SYSTEM = (CONTENT | COUNTERS).map(lambda content: {"role": "system", "content": content})
ANSWERS = (TEXTS | st.lists(TEXT | SIGNED | FOREIGN, min_size=1, max_size=3)).map(
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


def chat_body(raw: bytes) -> bytes:
    return chat_request(raw, KEY, lambda _model: Texts(DEFAULT_NAMES)).body


def appends(shorter: bytes, longer: bytes) -> bool:
    """Whether a chat body is another one with more messages, byte for byte."""
    before, after = (msgspec.json.decode(each, type=dict[str, msgspec.Raw]) for each in (shorter, longer))
    messages, more = bytes(before.pop("messages")), bytes(after.pop("messages"))
    return before == after and more.startswith(messages[:-1] + b",")


@given(exchanges(), exchanges(), st.none() | CONTENT)
def test_a_turn_that_appends_appends_only(
    before: list[dict[str, Any]], after: list[dict[str, Any]], system: Any
) -> None:
    shorter = chat_body(body(before, system))
    longer = chat_body(body(before + after, system))
    assert appends(shorter, longer)


@given(exchanges(), st.integers(), st.integers())
def test_what_a_rule_takes_out_makes_no_difference(messages: list[dict[str, Any]], one: int, other: int) -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.177.{}; cc_entrypoint=cli; cch={};"
    blocks = [
        [{"type": "text", "text": line.format(nonce, nonce)}, {"type": "text", "text": "s"}] for nonce in (one, other)
    ]
    assert (
        chat_body(body(messages, blocks[0])) == chat_body(body(messages, blocks[1])) == chat_body(body(messages, "s"))
    )


def appended(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a request repeats the one before and adds messages, whatever marks it has."""
    same = all(stripped(before.get(name)) == stripped(after.get(name)) for name in ("system", "tools", "model"))
    messages = stripped(before["messages"])
    return same and stripped(after["messages"])[: len(messages)] == messages


def stripped(value: Any) -> Any:
    """Without marks, and with each text content as blocks."""
    if isinstance(value, list):
        return [stripped(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: stripped(each) for name, each in value.items() if name != "cache_control"}
    if isinstance(found.get("content"), str):
        found["content"] = [{"type": "text", "text": found["content"]}]
    return found


@pytest.mark.parametrize(("name", "pairs", "appending"), [("claude", 11, 10), ("oc_anthropic", 11, 10)])
def test_recorded_turns_that_append_append_only(name: str, pairs: int, appending: int) -> None:
    """Of Claude Code's, one has another git status; of OpenCode's, the first is the title's."""
    bodies = [request.body for request in recorded(name)]
    found = []
    for before, after in pairwise(bodies):
        shorter, longer = (chat_body(json.dumps(each).encode()) for each in (before, after))
        found.append(appends(shorter, longer))
        assert found[-1] == appended(before, after)
    assert (len(found), sum(found)) == (pairs, appending)


@given(exchanges(), CONTENT)
def test_cache_control_makes_no_difference(messages: list[dict[str, Any]], system: Any) -> None:
    """Clients move it from message to message, and make a block of a text for it."""
    assert chat_body(body(marked(messages), marked_content(system))) == chat_body(body(messages, system))


@given(exchanges())
def test_it_is_a_chat_body(messages: list[dict[str, Any]]) -> None:
    """Every message has a role of chat, every result its call, and arguments are what the input was."""
    found = msgspec.json.decode(chat_body(body(messages)))
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
