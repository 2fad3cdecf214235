"""Whatever a history holds, it is served, and a turn that appends to it appends only: in each API."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_messages_prefix import appends

from warmroute_proxy.core.prompt.addresses import PUBLIC
from warmroute_proxy.core.prompt.fingerprint import fingerprint_chat
from warmroute_proxy.dialects import chat_history
from warmroute_proxy.dialects.foreign import MAX_TYPES
from warmroute_proxy.dialects.gemini.request import chat_request as gemini
from warmroute_proxy.dialects.messages.request import chat_request as messages
from warmroute_proxy.dialects.responses.request import chat_request as responses
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.rules import LATE_SYSTEM
from warmroute_proxy.normalising.texts import Texts
from warmroute_proxy.server.base.sealing import Seal

KEY = b"k" * 32
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
TYPES = st.sampled_from(
    [
        "server_tool_use", "mcp_tool_result", "web_search_tool_result", "tool_reference", "tool_removal", "compaction",
        "search_result", "web_search_call", "mcp_call", "shell_call", "agent_message", "compaction_trigger", "hologram",
    ]
)  # fmt: skip
NAMES = st.sampled_from(["title", "url", "query", "tool_name", "source", "data", "results", "hologram", "code", "logs"])
FOREIGN = st.builds(lambda kind, more: {**more, "type": kind}, TYPES, st.dictionaries(NAMES, JSON, max_size=4))
BLOCKS = st.lists(FOREIGN | WORDS.map(lambda text: {"type": "text", "text": text}), max_size=3)
RULES = st.sampled_from([frozenset[str](), frozenset({LATE_SYSTEM})])


def few(dropped: dict[str, int]) -> bool:
    return len(dropped) <= MAX_TYPES + 1 and all(count > 0 for count in dropped.values())


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), BLOCKS), max_size=5), RULES)
def test_messages_of_any_blocks(told: list[tuple[str, Any]], rules: frozenset[str]) -> None:
    asked: list[Any] = [{"role": "user", "content": "begin"}, *({"role": role, "content": c} for role, c in told)]
    asked.append({"role": "user", "content": "go on"})
    bodies = []
    for turn in (asked, [*asked, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]):
        raw = json.dumps({"model": "m", "max_tokens": 5, "messages": turn}).encode()
        found = messages(raw, KEY, lambda _: Texts(rules))
        assert few(found.dropped_blocks)
        bodies.append(found.body)
    assert appends(*bodies)


@given(st.lists(FOREIGN | BLOCKS.map(lambda c: {"role": "user", "content": c}), max_size=5), RULES)
def test_responses_of_any_items(told: list[Any], rules: frozenset[str]) -> None:
    asked = [{"role": "user", "content": "begin"}, *told, {"role": "user", "content": "go on"}]
    bodies = []
    for turn in (asked, [*asked, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]):
        raw = json.dumps({"model": "m", "input": turn}).encode()
        found = responses(raw, Seal(KEY), lambda _: Texts(rules))
        assert few(found.dropped_blocks)
        bodies.append(found.body)
    assert appends(*bodies)


@given(st.lists(st.tuples(st.sampled_from(["user", "model", "critic"]), st.lists(JSON.map(lambda v: {"part": v}))),
                max_size=5))  # fmt: skip
def test_contents_of_any_parts(told: list[tuple[str, Any]]) -> None:
    asked: list[Any] = [{"parts": [{"text": "begin"}]}, *({"role": role, "parts": parts} for role, parts in told)]
    asked.append({"role": "user", "parts": [{"text": "go on"}]})
    bodies = []
    for turn in (asked, [*asked, {"role": "model", "parts": [{"text": "yes"}]}, {"parts": [{"text": "and?"}]}]):
        raw = json.dumps({"contents": turn}).encode()
        found = gemini(raw, "m", Seal(KEY), Texts(frozenset()), streams=False)
        assert few(found.dropped_blocks)
        bodies.append(found.body)
    assert appends(*bodies)


def calling(content: Any, arguments: str) -> Any:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": content, "tool_calls": [{"id": "c", "function": function}]}


TYPED: Any = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "base64"}}]},
        {"role": "user", "content": [{"type": "document", "title": "t", "source": {"type": "text", "data": "d"}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_a", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_a", "is_error": True}]},
        {"role": "system", "content": [{"type": "tool_addition", "tool": {"definition": {"name": "f"}}}]},
    ],
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_a", "output": [{"type": "input_text", "text": "a"}]},
        {"type": "additional_tools", "tools": [{"type": "function", "name": "f", "parameters": {}}]},
    ],
    "contents": [
        {"role": "user", "parts": [{"text": "a"}, {"inlineData": {"mimeType": "image/png", "data": ""}}]},
        {"role": "model", "parts": [{"functionCall": {"id": "1", "name": "f", "args": {}}, "thoughtSignature": "x"}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "1", "name": "f", "parts": [{"text": "a"}]}}]},
    ],
}
"""What clients of each API send, by the member that holds it."""


def replaced(value: Any, at: int, by: Any) -> Any:
    """A copy in which one of its values is another one: `at` counts them."""
    places: list[tuple[Any, Any]] = []

    def walk(inner: Any) -> None:
        for key in inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ():
            places.append((inner, key))
            walk(inner[key])

    copied = json.loads(json.dumps(value))
    walk(copied)
    holder, key = places[at % len(places)]
    holder[key] = by
    return copied


@given(st.sampled_from(sorted(TYPED)), st.lists(st.tuples(st.integers(0, 99), JSON), min_size=1, max_size=3))
def test_values_of_any_type(api: str, changes: list[tuple[int, Any]]) -> None:
    told = TYPED[api]
    for at, by in changes:
        told = replaced(told, at, by)
    bodies = []
    for count in (1, 2):
        if api == "messages":
            said: list[Any] = [{"role": "user", "content": "go on"}] * count
            raw = json.dumps({"model": "m", "max_tokens": 5, "messages": told + said}).encode()
            bodies.append(messages(raw, KEY, lambda _: Texts(frozenset())).body)
        elif api == "input":
            raw = json.dumps({"model": "m", "input": told + [{"role": "user", "content": "go on"}] * count}).encode()
            bodies.append(responses(raw, Seal(KEY), lambda _: Texts(frozenset())).body)
        else:
            raw = json.dumps({"contents": told + [{"parts": [{"text": "go on"}]}] * count}).encode()
            bodies.append(gemini(raw, "m", Seal(KEY), Texts(frozenset()), streams=False).body)
    assert appends(*bodies)


ARGUMENTS = WORDS | st.sampled_from(["{}", '{"a": 1}', "[1]", ""])


@given(st.lists(st.builds(calling, BLOCKS | WORDS | st.none(), ARGUMENTS), min_size=1, max_size=4))
def test_chats_that_are_mended_are_read_and_stay(told: list[Any]) -> None:
    """What is left is what engines read, and nothing more is to be mended in it."""
    raw = msgspec.Raw(json.dumps(told).encode())
    found = chat_history.mended(raw, TranslationWork())
    left = raw if found is None else msgspec.Raw(found[0])
    fingerprint_chat(None, left, 1, PUBLIC)
    assert chat_history.mended(left, TranslationWork()) is None
    for message in json.loads(bytes(left)):
        assert isinstance(json.loads(message["tool_calls"][0]["function"]["arguments"]), dict)
