"""The chain over a prompt: what makes a difference to it, and what does not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from warmroute_proxy.core.prompt.canonical import MAX_PARTS, MalformedPrompt
from warmroute_proxy.core.prompt.chain import Fingerprint
from warmroute_proxy.core.prompt.fingerprint import STRIDE_BYTES, fingerprint_chat, fingerprint_text

SYSTEM = {"role": "system", "content": "You are terse."}
ASK = {"role": "user", "content": "What is in main.py?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path":"main.py"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "print(1)"}
READ = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object"}}}
LIST = {"type": "function", "function": {"name": "list", "description": "Lists.", "parameters": {"type": "object"}}}


def chat(*messages: Any, tools: Any = None, seed: int = 1, indent: int | None = None) -> Fingerprint:
    raw_tools = None if tools is None else Raw(json.dumps(tools, indent=indent).encode())
    return fingerprint_chat(raw_tools, Raw(json.dumps(list(messages), indent=indent).encode()), seed)


def hashes(*messages: Any, **options: Any) -> list[int]:
    return chat(*messages, **options).chain.hashes


def test_each_turn_extends_the_chain_of_the_turn_before() -> None:
    first = chat(SYSTEM, ASK, tools=[READ, LIST]).chain
    second = chat(SYSTEM, ASK, CALL, RESULT, tools=[READ, LIST]).chain
    assert len(first.hashes) == 4
    assert second.hashes[:4] == first.hashes
    assert second.ends[:4] == first.ends
    assert second.total_bytes > first.total_bytes


def test_tools_come_first_as_in_templates() -> None:
    with_tools = hashes(SYSTEM, ASK, tools=[READ])
    other_prompt = hashes({"role": "system", "content": "Another."}, ASK, tools=[READ])
    assert with_tools[0] == other_prompt[0]
    assert with_tools[1] != other_prompt[1]
    assert set(with_tools).isdisjoint(hashes(SYSTEM, ASK))


@pytest.mark.parametrize(
    "same",
    [
        {"content": "What is in main.py?", "role": "user"},
        {"role": "user", "content": [{"type": "text", "text": "What is in main.py?"}]},
        {"role": "user", "content": [{"text": "What is in main.py?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "What is in main.py?", "cache_control": {"type": "ephemeral"}},
        {"role": "user", "content": "What is in main.py?", "id": "msg_1", "name": None, "tool_calls": []},
    ],
)
def test_the_form_of_a_message_makes_no_difference(same: Any) -> None:
    assert hashes(SYSTEM, same) == hashes(SYSTEM, ASK)


def test_space_and_member_order_make_no_difference() -> None:
    assert hashes(SYSTEM, ASK, CALL, RESULT, indent=2) == hashes(SYSTEM, ASK, CALL, RESULT)
    backwards = dict(reversed(CALL.items()))
    assert hashes(SYSTEM, ASK, backwards) == hashes(SYSTEM, ASK, CALL)


def test_empty_content_is_absent_content() -> None:
    forms: list[Any] = [
        {"role": "assistant"},
        *({"role": "assistant", "content": c} for c in ("", None, [], [{"text": ""}])),
    ]
    assert len({tuple(hashes(ASK, form)) for form in forms}) == 1


def test_thoughts_count_alike_under_either_name() -> None:
    said = {"role": "assistant", "content": "Hello"}
    found = [hashes(said | {name: "I think."}) for name in ("reasoning", "reasoning_content")]
    assert found[0] == found[1] != hashes(said)


def test_cache_control_in_tools_makes_no_difference() -> None:
    inside = {"type": "function", "function": {**READ["function"], "cache_control": {"type": "ephemeral"}}}  # type: ignore[dict-item]
    beside = {**READ, "cache_control": {"type": "ephemeral"}}
    assert hashes(ASK, tools=[inside]) == hashes(ASK, tools=[beside]) == hashes(ASK, tools=[READ])


@pytest.mark.parametrize(
    "other",
    [
        {"role": "system", "content": "What is in main.py?"},
        {"role": "user", "content": "What is in main.pyc"},
        {"role": "user", "content": "What is in main.py?", "name": "ann"},
        {"role": "user", "content": "What is in main.py?", "reasoning_content": "hm"},
        {"role": "user", "content": [{"type": "text", "text": "What is in"}, {"type": "text", "text": " main.py?"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/1.png"}}]},
    ],
)
def test_what_a_template_prints_makes_a_difference(other: Any) -> None:
    assert hashes(SYSTEM, other)[0] == hashes(SYSTEM, ASK)[0]
    assert hashes(SYSTEM, other)[1] != hashes(SYSTEM, ASK)[1]


def test_tool_calls_and_results_count_by_id_name_and_arguments() -> None:
    def call(id_: str, name: str, arguments: str) -> tuple[int, ...]:
        one = {"id": id_, "function": {"name": name, "arguments": arguments}}
        return tuple(hashes({"role": "assistant", "tool_calls": [one]}))

    assert len({call("1", "a", "{}"), call("2", "a", "{}"), call("1", "b", "{}"), call("1", "a", "[]")}) == 4
    assert hashes(RESULT) != hashes({**RESULT, "tool_call_id": "call_2"})


def test_images_count_by_content_and_long_ones_do_not_count_as_text() -> None:
    def image(url: str, **more: str) -> Any:
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url, **more}}]}

    long_a, long_b = "data:image/png;base64," + "A" * 100_000, "data:image/png;base64," + "B" * 100_000
    assert hashes(image(long_a)) != hashes(image(long_b))
    assert hashes(image(long_a)) == hashes(image(long_a, detail="low"))
    assert chat(image(long_a)).chain.total_bytes < 200


def test_long_parts_are_cut_at_the_stride() -> None:
    text = "x" * (5 * STRIDE_BYTES)
    whole, other_tail = (
        chat({"role": "user", "content": text}).chain,
        chat({"role": "user", "content": text + "y"}).chain,
    )
    assert whole.hashes[:5] == other_tail.hashes[:5]
    assert whole.hashes[5] != other_tail.hashes[5]
    assert whole.ends[:5] == [STRIDE_BYTES * n for n in range(1, 6)]


def test_two_seeds_share_nothing() -> None:
    assert set(hashes(SYSTEM, ASK, CALL, tools=[READ])).isdisjoint(hashes(SYSTEM, ASK, CALL, tools=[READ], seed=2))


def test_the_digest_of_tools_and_system_depends_on_them_alone() -> None:
    digest = chat(SYSTEM, ASK, tools=[READ]).tools_system_digest
    assert chat(SYSTEM, RESULT, ASK, tools=[READ], seed=9).tools_system_digest == digest
    assert chat(SYSTEM, ASK, SYSTEM, tools=[READ]).tools_system_digest == digest
    assert chat(SYSTEM, ASK, tools=[LIST]).tools_system_digest != digest
    assert chat(ASK, tools=[READ]).tools_system_digest != digest


def test_turn_and_structural_bytes_count_assistant_messages() -> None:
    first = chat(SYSTEM, ASK, tools=[READ])
    second = chat(SYSTEM, ASK, CALL, RESULT, tools=[READ])
    third = chat(SYSTEM, ASK, CALL, RESULT, {"role": "assistant", "content": "1"}, ASK, tools=[READ])
    assert [first.turn, second.turn, third.turn] == [1, 2, 3]
    assert first.structural_bytes == 0
    assert second.structural_bytes == first.chain.total_bytes
    assert third.structural_bytes == second.chain.total_bytes


def test_a_list_of_raw_messages_gives_the_same_chain() -> None:
    items = [Raw(json.dumps(message).encode()) for message in (SYSTEM, ASK, CALL)]
    assert fingerprint_chat(None, items, 1) == chat(SYSTEM, ASK, CALL)


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([], "messages"),
        ({"role": "user"}, "messages"),
        ([ASK, "hello"], "messages[1]"),
        ([ASK, {"content": "no role"}], "messages[1].role"),
        ([{"role": None, "content": "x"}], "messages[0].role"),
        ([ASK, {"role": "user", "content": 7}], "messages[1].content"),
        ([ASK, {"role": "user", "content": {"text": "x"}}], "messages[1].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        ([ASK, {"role": "assistant", "tool_calls": {}}], "messages[1].tool_calls"),
        ([ASK, {"role": "assistant", "tool_calls": [{"function": "f"}]}], "messages[1].tool_calls[0].function"),
        ([ASK] * (MAX_PARTS + 1), "messages"),
        ([ASK, {"role": "user", "content": [{"text": "x"}] * (MAX_PARTS + 1)}], "messages[1].content"),
    ],
)
def test_a_malformed_prompt_is_refused_with_its_place(messages: Any, path: str) -> None:
    with pytest.raises(MalformedPrompt) as refusal:
        fingerprint_chat(None, Raw(json.dumps(messages).encode()), 1)
    assert refusal.value.path == path
    assert "hello" not in str(refusal.value)
    if isinstance(messages, list) and len(messages) <= MAX_PARTS:
        with pytest.raises(MalformedPrompt) as refusal:
            fingerprint_chat(None, [Raw(json.dumps(message).encode()) for message in messages], 1)
        assert refusal.value.path == path


@pytest.mark.parametrize(
    ("tools", "path"), [({}, "tools"), ([1], "tools[0]"), ([READ, {"function": []}], "tools[1].function")]
)
def test_malformed_tools_are_refused_with_their_place(tools: Any, path: str) -> None:
    with pytest.raises(MalformedPrompt) as refusal:
        chat(ASK, tools=tools)
    assert refusal.value.path == path


@pytest.mark.parametrize("text", [b"\xff", rb"\ud800", rb"\x"])
def test_text_that_is_not_unicode_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedPrompt):
        fingerprint_chat(None, Raw(b'[{"role":"user","content":"' + text + b'"}]'), 1)


def test_completion_prompts() -> None:
    def text(prompt: Any) -> Fingerprint:
        return fingerprint_text(Raw(json.dumps(prompt).encode()), 1)

    long = "x" * (3 * STRIDE_BYTES)
    assert text(long).chain.hashes[:3] == text(long + "y").chain.hashes[:3]
    assert text(["a", "b"]).chain.hashes[0] == text("a").chain.hashes[0]
    assert text([1, 2, 3]).chain.hashes != text([1, 2, 4]).chain.hashes
    assert text("a").turn == 1
    assert text("a").asked is None
    nothing: list[Any] = [[], 5, {}]
    for empty in nothing:
        with pytest.raises(MalformedPrompt):
            text(empty)


_TEXT = st.text(max_size=8) | st.just("")
_PART = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": _TEXT}),
    st.just({"type": "image_url", "image_url": {"url": "http://x/1.png"}}),
    st.fixed_dictionaries({"type": st.just("input_text"), "text": _TEXT}),
)
_CONTENT = st.none() | _TEXT | st.lists(_PART, max_size=3)
_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"])}, optional={"content": _CONTENT}),
    min_size=1,
    max_size=6,
)


@given(_MESSAGES, st.data())
def test_any_prefix_of_a_conversation_is_a_prefix_of_its_chain(
    messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    whole = chat(*messages).chain
    head = chat(*messages[: data.draw(st.integers(1, len(messages)))]).chain
    assert whole.hashes[: len(head.hashes)] == head.hashes
    assert whole.ends[: len(head.ends)] == head.ends
