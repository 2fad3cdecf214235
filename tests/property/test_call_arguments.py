"""A conversation stays the same when a client writes the arguments of its calls anew."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from warmroute_proxy.core.prompt.canonical import MAX_COMPACTED_BYTES
from warmroute_proxy.core.prompt.fingerprint import fingerprint_chat

pytestmark = pytest.mark.full

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
STYLES = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 0, 2, "\t"])},
    optional={"separators": st.sampled_from([(",", ":"), (" , ", " : ")])},
)


def hashes(arguments: str, **more: Any) -> list[int]:
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": arguments}}
    asked = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call], **more}]
    return fingerprint_chat(None, Raw(json.dumps(asked).encode()), 1).chain.hashes


@given(st.dictionaries(st.text(), VALUES), STYLES, st.booleans())
def test_space_in_arguments_makes_no_difference(arguments: dict[str, Any], style: dict[str, Any], ascii_: bool) -> None:
    style["ensure_ascii"] = ascii_
    compact = json.dumps(arguments, ensure_ascii=ascii_, separators=(",", ":"))
    assert hashes(compact) == hashes(json.dumps(arguments, **style))


@given(st.text(), st.text())
def test_what_is_no_json_counts_as_it_is(one: str, other: str) -> None:
    assert (hashes(f"x{one}") == hashes(f"x{other}")) == (one == other)


def test_the_order_of_keys_and_space_inside_texts_are_rendered_and_count() -> None:
    assert hashes('{"a": 1, "b": 2}') != hashes('{"b": 2, "a": 1}')
    assert hashes('{"a": "x y"}') != hashes('{"a": "xy"}')


def test_members_that_are_null_are_as_if_they_were_absent() -> None:
    assert hashes("{}") == hashes("{}", refusal=None, tool_call_id=None, name=None, reasoning_content=None, audio=None)


def test_long_arguments_are_not_parsed() -> None:
    text = "x" * MAX_COMPACTED_BYTES
    assert hashes(json.dumps([text])) != hashes(json.dumps([text], indent=1))
