"""Request bodies: what is read, what is refused, and that forwarded bytes stay the client's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.intake.body import Body

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(), json_values, max_size=8)
layouts = st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 2}, {"ensure_ascii": False}])


def joined(parts: list[bytes | memoryview]) -> bytes:
    return b"".join(parts)


@given(objects, layouts, st.sets(st.text(), max_size=3))
def test_dropping_and_adding_members_changes_nothing_else(
    document: dict[str, object], layout: dict[str, Any], extra: set[str]
) -> None:
    body = Body(json.dumps(document, **layout).encode())
    drop = frozenset(name for name in document if hash(name) % 2) | extra
    sent = json.loads(joined(body.rewritten(drop, b'"\\u0000added":1')))
    assert sent == {**{name: value for name, value in document.items() if name not in drop}, "\0added": 1}


def test_the_bytes_of_an_untouched_body_are_the_clients_own() -> None:
    raw = b' {"model" : "m",\n "x_unknown": [1.50, 2e0 ] } '
    sent = joined(Body(raw).rewritten(frozenset({"rid"}), b'"rid":"r"'))
    assert sent == b' {"model" : "m",\n "x_unknown": [1.50, 2e0 ] ,"rid":"r"}'


@pytest.mark.parametrize(
    "raw", [b'{"rid":"a","rid":"b"}', b'{"rid":"a","rid":"a"}', b'{"rid":"a","\\u0072id":"b"}', b'{"a":1,"b":2,"a":1}']
)
def test_a_name_that_stands_twice_is_refused_even_when_escaped(raw: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        Body(raw)
    assert (caught.value.status, caught.value.code) == (400, "duplicate_field")


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"x"', b"null", b'{"a":1}x', b"{'a':1}", b'{"a":' + b"[" * 100_000, b'{"\xff":1}', b'{"a":1,}'],
)
def test_what_is_not_one_json_object_is_a_400(raw: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        Body(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@given(st.binary(max_size=200))
def test_any_bytes_are_either_read_or_refused(raw: bytes) -> None:
    try:
        body = Body(raw)
    except Refusal as refusal:
        assert refusal.status == 400
    else:
        assert set(body.spans) == set(body.members)


@given(objects, layouts)
def test_members_stand_where_their_spans_say(document: dict[str, object], layout: dict[str, Any]) -> None:
    raw = json.dumps(document, **layout).encode()
    body = Body(raw)
    assert {
        name: json.loads(b"{" + raw[span.start : span.end] + b"}")[name] for name, span in body.spans.items()
    } == document
    assert raw[body.close :] == b"}"


@given(objects, st.sampled_from([(",", ":"), (", ", ": ")]), st.data())
def test_a_member_that_stands_twice_is_refused_in_either_style(
    document: dict[str, object], separators: tuple[str, str], data: st.DataObject
) -> None:
    """Also where its values are of other lengths, or hold what looks like members."""
    members = [json.dumps(name) + separators[1] + json.dumps(value) for name, value in document.items()]
    name = data.draw(st.sampled_from(sorted(document)) if document else st.text())
    again = data.draw(json_values | st.just(document))
    copies = 1 if document else 2
    for _ in range(copies):
        at = data.draw(st.integers(0, len(members)))
        members.insert(at, json.dumps(name) + separators[1] + json.dumps(again, separators=separators))
    with pytest.raises(Refusal) as caught:
        Body(("{" + separators[0].join(members) + "}").encode())
    assert caught.value.code == "duplicate_field"


@given(objects, layouts, st.sets(st.text(), max_size=3))
def test_the_same_is_sent_whether_a_body_is_of_a_kept_shape_or_walked(
    document: dict[str, object], layout: dict[str, Any], extra: set[str]
) -> None:
    raw = json.dumps(document, **layout).encode()
    drop = frozenset(name for name in document if hash(name) % 2) | extra
    walked = Body(raw + b" ")
    assert joined(Body(raw).rewritten(drop, b'"x":1')) == joined(walked.rewritten(drop, b'"x":1'))
