"""What a client says on a WebSocket is read once, and means what it would mean in any other form of the same JSON."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.dialects.raw_json import BadRequest
from warmroute_proxy.dialects.responses import client_events
from warmroute_proxy.dialects.responses.client_events import ClientEvent, InvalidStream, client_event, created_request

NAMES = ("input", "model", "metadata", "stream", "tools", "response_id", "stream_id", "generate", "event_id", "unknown")
VALUES: st.SearchStrategy[Any] = st.sampled_from([None, True, 0, -1.5e300, "", "é\ud7ff\n", [], {}, ["a", {"b": [1]}]])


@st.composite
def event(draw: st.DrawFn) -> bytes:
    """An event whose members may stand there twice, with escapes in their names and white space around them."""
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    members = ['"type":"response.create"']
    for name, value in draw(st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=8)):
        escaped = f"\\u{ord(name[0]):04x}{name[1:]}" if draw(st.booleans()) else name
        members.append(f'{space}"{escaped}"{space}:{space}{json.dumps(value)}{space}')
    return f"{{{','.join(members)}}}".encode()


@given(event())
def test_members_are_those_of_the_object(raw: bytes) -> None:
    try:
        found = created_request(raw, client_event(raw))
    except (BadRequest, InvalidStream):
        return
    whole = {name: value for name, value in json.loads(raw).items() if value is not None}
    expected = {name: value for name, value in whole.items() if name not in client_events._ENVELOPE}
    members = {name: json.loads(bytes(value)) for name, value in found.members.items()}
    if found.items is not None:
        members["input"] = [json.loads(bytes(item)) for item in found.items]
    assert members == {**expected, "stream": True}


@pytest.mark.parametrize("more", ["", ',"event_id":"e"'])
def test_what_is_no_member_of_a_request_is_told_as_over_http(more: str) -> None:
    raw = b'{"type":"response.create","model":"m","input":"x","response_id":"r"%b}' % more.encode()
    assert "response_id" in created_request(raw, client_event(raw)).members


@pytest.mark.parametrize("wrong", ["7", "[]", '"a b"', '""', "true", f'"{"x" * 257}"'])
def test_a_stream_has_a_name(wrong: str) -> None:
    with pytest.raises(InvalidStream):
        client_event(b'{"type":"response.create","stream_id":%b}' % wrong.encode())


@pytest.mark.parametrize("name", [*ClientEvent.__struct_fields__, "metadata", "unknown"])
def test_nothing_is_built_of_what_is_not_read(name: str) -> None:
    raw = b'{"%b":[%b],"type":"response.create"}' % (name.encode(), b",".join([b"{}"] * 100_000))
    tracemalloc.start()
    try:
        client_event(raw)
    except (BadRequest, InvalidStream):
        pass
    finally:
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most_bytes < len(raw)
