"""Gemini's contents in chat: a turn that only appends appends only, with and without ids of calls."""

import itertools
import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_messages_prefix import appends
from tests.recordings import recorded

from warmroute_proxy.dialects.gemini.request import ChatRequest, chat_request
from warmroute_proxy.normalising.texts import Texts

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=3))
ARGS = st.dictionaries(TEXTS, VALUES, max_size=3)
PIECE = TEXTS.map(lambda text: {"text": text})
IMAGE = st.just({"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}})
SAYS = st.lists(PIECE | IMAGE, min_size=1, max_size=3).map(lambda parts: {"role": "user", "parts": parts})
THOUGHT = TEXTS.map(lambda text: {"text": text, "thought": True})
SYSTEM = st.none() | st.lists(PIECE, max_size=2).map(lambda parts: {"parts": parts})


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What is asked, what the model says, and the results of its calls."""
    model = [*draw(st.lists(THOUGHT, max_size=1)), *draw(st.lists(PIECE, max_size=2))]
    with_ids, start = draw(st.booleans()), draw(st.integers(0, 10**9))
    names = draw(st.lists(st.sampled_from(["read", "write"]), max_size=4))
    ids: list[dict[str, Any]] = [{"id": f"c{start + at}"} if with_ids else {} for at in range(len(names))]
    for found, name in zip(ids, names, strict=True):
        piece: dict[str, Any] = {"functionCall": {"name": name, "args": draw(ARGS), **found}}
        if draw(st.booleans()):
            piece["thoughtSignature"] = "s:" + draw(TEXTS)
        model.append(piece)
    results = [
        {"functionResponse": {"name": name, "response": draw(ARGS), **found}}
        for found, name in zip(ids, names, strict=True)
    ]
    contents: list[dict[str, Any]] = [draw(SAYS)]
    if model:
        contents.append({"role": "model", "parts": model})
    if results:
        contents.append({"role": "user", "parts": results + draw(st.lists(PIECE, max_size=1))})
    return contents


class Marked:
    """Sealed thoughts have a mark in front."""

    key = b"k"

    def open(self, sealed: str) -> str | None:
        return sealed.removeprefix("s:") if sealed.startswith("s:") else None


def read(contents: list[dict[str, Any]], system: Any = None, **more: Any) -> ChatRequest:
    asked = {"contents": contents, "systemInstruction": system, **more}
    return chat_request(json.dumps(asked).encode(), "m", Marked(), Texts(frozenset()), streams=True)


@given(turns(), turns(), SYSTEM)
def test_a_turn_that_appends_appends_only(
    before: list[dict[str, Any]], after: list[dict[str, Any]], system: Any
) -> None:
    shorter = read(before, system).body
    longer = read(before + after, system).body
    assert appends(shorter, longer)


@given(turns())
def test_it_is_a_chat_body(contents: list[dict[str, Any]]) -> None:
    """Arguments are what they were, every result has its call, and no id is given twice."""
    found = msgspec.json.decode(read(contents).body)["messages"]
    pieces = [piece for content in contents for piece in content["parts"]]
    calls = [call for message in found for call in message.get("tool_calls", ())]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [
        piece["functionCall"]["args"] for piece in pieces if "functionCall" in piece
    ]
    ids = [call["id"] for call in calls]
    assert len(set(ids)) == len(ids)
    names = {call["id"]: call["function"]["name"] for call in calls}
    results = [message["tool_call_id"] for message in found if message["role"] == "tool"]
    assert sorted(results) == sorted(ids)
    assert [names[result] for result in results] == [
        piece["functionResponse"]["name"] for piece in pieces if "functionResponse" in piece
    ]


@given(turns())
def test_names_in_snake_case_are_the_same(contents: list[dict[str, Any]]) -> None:
    renamed = json.dumps(contents)
    for camel, snake in (
        ("functionCall", "function_call"),
        ("functionResponse", "function_response"),
        ("inlineData", "inline_data"),
        ("mimeType", "mime_type"),
        ("thoughtSignature", "thought_signature"),
    ):
        renamed = renamed.replace(f'"{camel}":', f'"{snake}":')
    assert read(json.loads(renamed)).body == read(contents).body


def test_a_recorded_session_appends_only() -> None:
    bodies = [read(**renamed(turn.body)).body for turn in recorded("gemini")]
    assert len(bodies) > 7
    for shorter, longer in itertools.pairwise(bodies):
        assert appends(shorter, longer)


def renamed(body: dict[str, Any]) -> dict[str, Any]:
    return {"system" if name == "systemInstruction" else name: value for name, value in body.items()}
