"""Chat answers with values changed at random: a translator reads one, or says that it cannot, and fails no other way.

What it says is a 502 that is not charged (`test_odd_answers`); another error would be one of the proxy.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.field.fuzz.body_template import CONFIG, SECRETS, TENANT
from tests.hostile.reading import GEMINI, MESSAGES, RESPONSES
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import translated_body
from warmroute_proxy.server.dialects.routes import dialect_of

TERMS = Terms(TENANT, SECRETS, CONFIG)
STREAMED_GEMINI = GEMINI.replace("generateContent", "streamGenerateContent")
SAID: dict[str, Any] = {"contents": [{"parts": [{"text": "a"}]}], "tools": [{"functionDeclarations": [{"name": "f"}]}]}
REQUESTS: dict[str, dict[str, Any]] = {
    MESSAGES: {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]},
    RESPONSES: {"model": "m", "input": "a", "tools": [{"type": "function", "name": "f", "parameters": {}}]},
    GEMINI: SAID,
    STREAMED_GEMINI: SAID,
}
CALL = {"id": "c", "index": 0, "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
MESSAGE = {"role": "assistant", "content": "hi", "reasoning_content": "so", "refusal": None, "tool_calls": [CALL]}
WHOLE = {"id": "x", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}], "usage": USAGE}
DELTAS: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"reasoning_content": "so"},
    {"content": "hi"},
    {"tool_calls": [CALL]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]},
    {"refusal": "no"},
]
STREAM: list[dict[str, Any]] = [
    *({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in DELTAS),
    {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {"id": "x", "choices": [], "usage": USAGE},
]
ODD: tuple[Any, ...] = (
    None, True, -1, 1.5, 1e308, 10**30, "", "a", "\ud800", "\0", [], {}, [None], [[]], {"a": 1}, "stop", "length",
    "tool_calls", "content_filter", [{"type": "text", "text": "t"}], [{"type": "refusal", "refusal": "no"}],
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, each in items for place in places(each, (*path, name)))]


@st.composite
def changed(draw: st.DrawFn, original: Any) -> Any:
    """One to three values of it are others, absent, or there twice."""
    found = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(places(found)[1:] or [("id",)]))
        parent = found
        for name in path:
            parent = parent[name]
        how = draw(st.sampled_from(["other", "other", "absent", "twice"]))
        if how == "absent":
            del parent[last]
        elif how == "twice" and isinstance(parent, list):
            parent.insert(last, json.loads(json.dumps(parent[last])))
        else:
            parent[last] = json.loads(json.dumps(draw(st.sampled_from(ODD))))
        if not found:
            break
    return found


def translated(path: str) -> Any:
    query = b"alt=sse" if path == STREAMED_GEMINI else b""
    dialect = dialect_of(path)
    assert dialect is not None
    return translated_body(dialect, path, query, json.dumps(REQUESTS[path]).encode(), TERMS)


@pytest.mark.parametrize("path", REQUESTS)
@given(changed(WHOLE))
@settings(max_examples=100)
def test_a_whole_one(path: str, answer: Any) -> None:
    try:
        found = translated(path).answer(json.dumps(answer).encode(), "i")
    except ValueError:
        return
    assert isinstance(json.loads(found), dict)


@pytest.mark.parametrize("path", REQUESTS)
@given(changed(STREAM), st.integers(1, 400))
@settings(max_examples=100)
def test_a_stream(path: str, stream: Any, piece: int) -> None:
    events, told = translated(path).events("i"), b""
    sent = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in stream) + b"data: [DONE]\n\n"
    try:
        for at in range(0, len(sent), piece):
            told += events.feed(sent[at : at + piece])
        events.check()
    except ValueError:
        return
    for line in told.decode().split("\n"):
        if line.startswith("data: {"):
            json.loads(line.removeprefix("data: "))
