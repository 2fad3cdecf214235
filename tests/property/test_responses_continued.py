"""A conversation that is kept and continued by what is new is, in chat, the one whose client sends all of it again."""

from sys import getrefcount
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_responses_prefix import ANSWER, REASONING, SAYS, SEAL, TEXTS

from warmroute_proxy.dialects.raw_json import BadRequest
from warmroute_proxy.dialects.responses.client_events import created_request
from warmroute_proxy.dialects.responses.conversation import MAX_KEPT_BYTES, Continued, ResponsesConversation, continued
from warmroute_proxy.dialects.responses.item_reading import MAX_CALL_ID_CHARS
from warmroute_proxy.dialects.responses.request import ChatRequest, OtherScope, chat_request
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts

Item = dict[str, Any]
OUTPUTS = TEXTS | st.just([{"type": "input_image", "image_url": "https://images.example/a.png"}])
CHANGES: list[Item] = [{"reasoning": {"effort": "low"}}, {"text": {"format": {"type": "json_object"}}}]
UPDATES = st.sampled_from(CHANGES).map(lambda changed: {"type": "configuration_update", **changed})
SAID: Item = {"role": "user", "content": "hello"}


def texts(_: str) -> Texts:
    return Texts(frozenset())


@st.composite
def turn(draw: st.DrawFn) -> tuple[list[Item], list[Item], list[Item]]:
    """What the client sends, what the model answers, and what answers its calls."""
    calls = [
        {"type": "function_call", "call_id": f"c{draw(st.integers(0, 10**9))}", "name": "read", "arguments": "{}"}
        for _ in range(draw(st.integers(0, 2)))
    ]
    results: list[Item] = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": draw(OUTPUTS)} for call in calls
    ]
    for said in draw(st.lists(SAYS | UPDATES, max_size=1)):
        results.insert(draw(st.integers(0, len(results))), said)
    output: list[Item] = [*draw(st.lists(REASONING, max_size=1)), *draw(st.lists(ANSWER, max_size=2)), *calls]
    return draw(st.lists(SAYS, min_size=1, max_size=2)), output, results


TURNS = st.lists(turn(), min_size=1, max_size=4)


def whole(items: list[Item], more: Item) -> ChatRequest:
    asked = {"model": "m", "stream": True, **more, "input": items}
    return chat_request(msgspec.json.encode(asked), SEAL, texts)


def ask(
    items: Any, more: Item, before: ResponsesConversation | None, *, asks: bool = True
) -> tuple[ChatRequest, Continued]:
    event = {"type": "response.create", "stream_id": "s", "model": "m", **more, "input": items}
    members, found = created_request(msgspec.json.encode(event))
    return continued(members, found, SEAL, texts, TranslationWork(), before, asks=asks)


@given(TURNS, st.lists(TEXTS, min_size=4, max_size=4))
def test_each_turn_is_the_same_chat(turns: list[tuple[list[Item], list[Item], list[Item]]], words: list[str]) -> None:
    items: list[Item] = []
    conversation: ResponsesConversation | None = None
    results: list[Item] = []
    for (said, output, answers), instructions in zip(turns, words, strict=False):
        added = results + said
        items += added
        more = {"instructions": instructions}  # they may change from turn to turn
        found, grows = ask(added, more, conversation)
        expected = whole(items, more)
        assert (found.body, found.dropped_blocks) == (expected.body, expected.dropped_blocks)
        conversation = grows.answered(output, SEAL)
        items += output
        results = answers


@given(TURNS, st.data())
def test_results_come_in_pieces_twice_or_never(
    turns: list[tuple[list[Item], list[Item], list[Item]]], data: st.DataObject
) -> None:
    """What chat makes of that is one question; that it is the same in both ways is another."""
    items: list[Item] = []
    conversation: ResponsesConversation | None = None
    results: list[Item] = [{"type": "function_call_output", "call_id": "unknown", "output": "x"}]
    for said, output, answers in turns:
        pieces = data.draw(st.lists(st.sampled_from([*results, *said]), min_size=1, max_size=4))
        try:
            expected = whole([*items, *pieces], {})
        except BadRequest:
            with pytest.raises(BadRequest):
                ask(pieces, {}, conversation)
            continue
        found, grows = ask(pieces, {}, conversation)
        assert (found.body, found.dropped_blocks) == (expected.body, expected.dropped_blocks)
        conversation = grows.answered(output, SEAL)
        items += [*pieces, *output]
        results += answers


@given(turn(), turn(), turn())
def test_branches_do_not_know_of_each_other(
    first: tuple[list[Item], list[Item], list[Item]],
    left: tuple[list[Item], list[Item], list[Item]],
    right: tuple[list[Item], list[Item], list[Item]],
) -> None:
    said, output, results = first
    trunk = ask(said, {}, None)[1].answered(output, SEAL)
    items = [*said, *output, *results]
    for _ in range(2):
        branches = [(branch, ask(results + branch[0], {}, trunk.copy())[1]) for branch in (left, right)]
        for (added, answered, more), grows in branches:
            grown = grows.answered(answered, SEAL)
            found, _ = ask([*more, *added], {}, grown)
            assert found.body == whole([*items, *added, *answered, *more, *added], {}).body


@given(turn(), turn())
def test_a_turn_that_does_not_end_well_adds_nothing(
    first: tuple[list[Item], list[Item], list[Item]], failed: tuple[list[Item], list[Item], list[Item]]
) -> None:
    said, output, results = first
    kept = ask(said, {}, None)[1].answered(output, SEAL)
    size_bytes = kept.size_bytes
    ask(results + failed[0], {}, kept)
    assert kept.size_bytes == size_bytes
    more = [*results, *said]
    assert ask(more, {}, kept)[0].body == whole([*said, *output, *more], {}).body


def test_what_only_prepares_may_be_empty_and_is_continued() -> None:
    empty = ask([], {}, None, asks=False)[1].prepared()
    assert empty.size_bytes == 0
    assert ask("hello", {}, empty)[0].body == whole([SAID], {}).body
    prepared = ask("hello", {"instructions": "A."}, None, asks=False)[1].prepared()
    expected = whole([SAID], {"instructions": "A."}).body
    assert ask([], {"instructions": "A."}, prepared)[0].body == expected


def test_what_codex_says_of_itself_changes_nothing() -> None:
    more: Item = {"instructions": "A.", "metadata": {"a": "b"}, "unknown": 1, "truncation": "auto"}
    found, told = whole([SAID], more), whole([SAID], {**more, "client_metadata": {"turn": "2"}})
    assert (found.body, found.dropped, found.unlisted) == (told.body, told.dropped, told.unlisted)
    assert found.dropped == {"truncation", "unknown"}
    assert found.unlisted == {"unknown"}


@pytest.mark.parametrize("over", ["HTTP", "a WebSocket"])
def test_what_an_answer_is_translated_by_does_not_hold_the_whole_request(over: str) -> None:
    """The memory of the body is given back when the answer has begun."""
    more: Item = {"metadata": {"a": "b"}, "tool_choice": "auto", "text": {"verbosity": "low"}, "instructions": "A."}
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    asked = {"type": "response.create", "model": "m", **more, "tools": tools, "input": [SAID]}
    raw = msgspec.json.encode(asked)
    before = getrefcount(raw)
    if over == "HTTP":
        found = chat_request(raw, SEAL, texts)
    else:
        found, _ = continued(*created_request(raw), SEAL, texts, TranslationWork(), None, asks=True)
    assert found.echoed["metadata"] == msgspec.Raw(b'{"a":"b"}')
    assert getrefcount(raw) == before


def test_a_conversation_that_was_read_by_other_rules_is_not_continued() -> None:
    kept = ask("hello", {}, None)[1].prepared()
    members, items = created_request(b'{"type":"response.create","model":"m","input":"x"}')
    with pytest.raises(OtherScope):
        continued(members, items, SEAL, lambda _: Texts(frozenset({"other"})), TranslationWork(), kept, asks=True)


def test_what_is_kept_is_the_conversation_once() -> None:
    conversation: ResponsesConversation | None = None
    for number in range(50):
        _, grows = ask("word " * 400 + str(number), {}, conversation)
        conversation = grows.answered([], SEAL)
    assert conversation is not None
    buffer = conversation._messages
    assert buffer.__sizeof__() <= 1.2 * conversation.size_bytes


def test_a_conversation_that_would_be_no_light_body_is_not_light() -> None:
    """Each turn is a body of its size and shape, so what would be too much as one is too much to keep."""
    small: Any = [{"role": "user", "content": "x"}] * 200
    parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 200}]
    tools: Any = [{"type": "additional_tools", "tools": [{"type": "function", "name": "x" * 100_000}]}]
    large: Any = [{"role": "user", "content": "x" * 300_000}]
    calls: Any = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * 100
    for items, least, most in ((small, 4, 8), (parts, 4, 8), (tools, 20, 21), (large, 6, 7), (calls, 4, 8)):
        conversation, turns = ResponsesConversation(), 0
        while conversation.is_light and conversation.size_bytes <= MAX_KEPT_BYTES and turns < 50:
            conversation = ask(items, {}, conversation, asks=False)[1].prepared()
            turns += 1
        assert least < turns <= most, (turns, conversation.size_bytes)


def test_ids_of_any_length_are_short_in_chat() -> None:
    """A call and its result have the same id, and other ids have others."""
    long = "x" * (MAX_CALL_ID_CHARS + 1)
    calls = [{"type": "function_call", "call_id": each, "name": "f", "arguments": "{}"} for each in (long, f"{long}y")]
    results = [{"type": "function_call_output", "call_id": each, "output": each[-1]} for each in (f"{long}y", long)]
    found = msgspec.json.decode(whole([SAID, *calls, *results], {}).body)["messages"]
    ids = [call["id"] for call in found[1]["tool_calls"]]
    assert [message["tool_call_id"] for message in found[2:]] == ids[::-1]
    assert len({*ids}) == 2
    assert max(map(len, ids)) < 40


def test_images_of_results_stand_behind_the_last_result_of_a_later_input() -> None:
    calls = [{"type": "function_call", "call_id": name, "name": "read", "arguments": "{}"} for name in "ab"]
    image = [{"type": "input_image", "image_url": "https://images.example/a.png"}]
    first = [SAID, *calls, {"type": "function_call_output", "call_id": "a", "output": image}]
    rest = [{"type": "function_call_output", "call_id": "b", "output": "x"}, SAID]
    _, grows = ask(first, {}, None, asks=False)
    assert ask(rest, {}, grows.answered([], SEAL))[0].body == whole([*first, *rest], {}).body
