"""Whole answers with the settled usage in the place of the engine's: however they are written, nothing else changes."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.request.answer import Answer

SETTLED = b'{"settled":true}'
USAGE = {"prompt_tokens": 5, "completion_tokens": 2}

TEXTS = st.one_of(
    st.text(),
    st.sampled_from(['"usage":{"a":1}', ',"usage":{', '\\","usage":{}', "}", '"sglext"', "\u2028\x00é"]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["usage", "sglext", "a", "é"]), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(["id", "choices", "metadata", "usage", "sglext", "us\\u0061ge", 'a"b', "x"])


def written(members: list[tuple[str, Any]], space: str, ascii_only: bool) -> bytes:
    def dump(value: Any) -> str:
        return json.dumps(value, separators=("," + space, ":" + space), ensure_ascii=ascii_only)

    parts = [dump(name) + ":" + space + dump(value) for name, value in members]
    return ("{" + ("," + space).join(parts) + "}").encode("utf-8", "surrogatepass")


def of_choice(choices: Any) -> Any:
    """The usage that stands in the first choice, as Moonshot writes it. Some servers write choices as an object."""
    values = list(choices.values()) if isinstance(choices, dict) else choices if isinstance(choices, list) else []
    objects = [choice for choice in values if isinstance(choice, dict)]
    return objects[0].get("usage") if objects else None


@given(
    st.lists(st.tuples(NAMES, VALUES), unique_by=lambda member: member[0], max_size=6),
    st.booleans(),
    st.sampled_from(["", " "]),
    st.booleans(),
    st.booleans(),
)
@example([("choices", [{"usage": False}])], False, "", False, False)
@example([("choices", {"usage": {"usage": False}})], False, "", False, False)
def test_only_the_accounts_change(
    members: list[tuple[str, Any]], with_usage: bool, space: str, ascii_only: bool, keep: bool
) -> None:
    if with_usage:
        members = [("usage", USAGE) if name == "usage" else (name, value) for name, value in members]
    try:
        raw = written(members, space, ascii_only)
        raw.decode()
    except UnicodeDecodeError:  # a lone surrogate
        return
    answer = Answer(raw)
    found = json.loads(answer.settled(SETTLED, keep_sglext=keep))
    expected = {name: value for name, value in members if name != "usage" and (keep or name != "sglext")}
    assert found == {**expected, "usage": {"settled": True}}
    assert list(found)[-1] == "usage"
    was = dict(members)
    assert (json.loads(answer.usage) if answer.usage else None) == was.get("usage", of_choice(was.get("choices")))
    assert (json.loads(answer.sglext) if answer.sglext else None) == was.get("sglext")


@pytest.mark.parametrize(
    "behind",
    [b',"usage":{"a":2}', b',"\\u0075sage":{"a":1}', b',"x":1,"x":2', b',"sglext":{},"sglext":{}', b"}", b" x"],
)
def test_what_is_not_one_object_with_one_account_is_refused(behind: bytes) -> None:
    for front in (b'"id":"x"', b'"usage":{"a":1}', b'"\\u0075sage":{"a":1}'):
        raw = b"{%b,%b%b}" % (front, b'"usage":{"a":1}', behind)
        with pytest.raises(Refusal):
            Answer(raw)


def test_a_name_that_stands_twice_in_front_is_no_way_around_the_receipt() -> None:
    for first in (b'"usage"', b'"\\u0075sage"'):
        with pytest.raises(Refusal):
            Answer(b'{%b:{"a":1},"usage":{"a":1}}' % first)
