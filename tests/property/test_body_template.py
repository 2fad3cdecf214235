"""Whatever is known of a caller's bodies, a body is read, refused and sent on as if it were the first one."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.field.fuzz.body_template import LEAST, LONG, SECRETS, TENANT, caller, check_all, outcome
from tests.search import searched

from warmroute.contract.conversations import Conversations
from warmroute_proxy.core.prompt.canonical import MAX_PARTS
from warmroute_proxy.server.intake.caller import Caller, Callers
from warmroute_proxy.server.intake.known_body import KnownBodies
from warmroute_proxy.server.intake.parsed_request import CHAT

pytestmark = pytest.mark.full

texts = st.sampled_from(["", "hi", 'a "quoted" \\ text', "é ✓", LONG, LONG + "!", "]}", '"messages":[]'])
roles = st.sampled_from(["system", "user", "assistant", "tool", "developer", "other"])
messages: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"role": roles, "content": texts}),
    st.fixed_dictionaries({"role": roles, "content": st.none() | st.just([{"type": "text", "text": "part"}])}),
    st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": st.just([{"id": "c", "function": {}}])}),
    st.fixed_dictionaries({"content": texts}),
)
TOOL = {"type": "function", "function": {"name": "look", "description": LONG}}
around = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m", "alias", "none"]),
        "stream": st.booleans(),
        "stream_options": st.just({"include_usage": True}),
        "max_tokens": st.sampled_from([1, 5000, 0, "x"]),
        "user": st.just("somebody"),
        "metadata": st.just({"user_id": "user_1_session_2", "more": 1}),
        "prompt_cache_key": st.sampled_from(["key", "k\x00"]),
        "tools": st.just([TOOL]),
        "bootstrap_room": st.just(1),
        "x": texts,
    },
)
styles: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{"separators": (",", ":")}, {}, {"indent": 1}, {"ensure_ascii": False}]
)
heads = st.sampled_from([{}, {"x-session-id": "s"}, {"x-session-affinity": "a", "x-warmroute-session-derived": "1"}])


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Bodies with the same around their messages, which grow, are taken back and begin anew."""
    style = draw(styles)
    members = list({"model": "m", **draw(around)}.items())
    at = draw(st.integers(0, len(members)))
    said: list[dict[str, Any]] = [{"role": "user", "content": draw(texts)}, {"role": "assistant", "content": LONG}]
    bodies = []
    for _ in range(draw(st.integers(3, 7))):
        how = draw(st.sampled_from(["same", "more", "more", "more", "back", "other"]))
        if how == "more":
            said = said + draw(st.lists(messages, max_size=2))
        elif how == "back":
            said = said[: draw(st.integers(0, len(said)))]
        elif how == "other":
            said = draw(st.lists(messages, max_size=4))
        document = dict([*members[:at], ("messages", said), *members[at:]])
        bodies.append(json.dumps(document, **style).encode())
    return bodies


@given(conversations(), heads)
@searched(60)
def test_what_is_known_of_a_caller_makes_no_difference(bodies: list[bytes], headers: dict[str, str]) -> None:
    check_all(bodies, headers)


pieces = st.sampled_from(
    [b"]", b"[", b"}", b"{", b",", b'"', b"\\", b" ", b"", b'],"rid":"x","messages":[', b'],"bootstrap_room":1,"y":[',
     b'{"role":"user","content":"x"}', b',{"role":"assistant","content":"y"}', b"\xff", b"null", b"],", b",]"]
)  # fmt: skip


@given(conversations(), heads, st.data())
@searched(60)
def test_no_body_passes_by_resembling_one_that_was_read(
    bodies: list[bytes], headers: dict[str, str], data: st.DataObject
) -> None:
    """Some bytes are put into a body, or taken out of it, wherever it may hurt."""
    whole = list(bodies)
    for raw in bodies:
        begin = data.draw(st.sampled_from([0, raw.find(b'"messages"'), raw.rfind(b"]") - 3, raw.rfind(b'"content"')]))
        at = max(0, min(begin + data.draw(st.integers(0, 40)), len(raw)))
        cut = data.draw(st.integers(0, 3))
        whole.append(raw[:at] + data.draw(pieces) + raw[at + cut :])
        whole.append(raw)
    check_all(whole, headers)


def as_the_first(raw: bytes, asks: Caller, kept: KnownBodies, headers: dict[str, str] | None = None) -> Any:
    """The outcome of a body, which equals its outcome as the first body of its caller."""
    found = outcome(raw, asks, kept)
    assert found == outcome(raw, caller(headers or {}), KnownBodies(min_bytes=LEAST))
    return found


BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, "user": "u"}


def test_a_body_of_a_known_frame_is_not_read_member_by_member(monkeypatch: pytest.MonkeyPatch) -> None:
    from warmroute_proxy.server.intake import intake

    kept, asks = KnownBodies(min_bytes=LEAST), caller({})
    for _ in range(2):
        outcome(json.dumps(BODY).encode(), asks, kept)
    monkeypatch.delattr(intake, "read_whole")
    again = {**BODY, "messages": [{"role": "user", "content": "something else"}]}
    found = outcome(json.dumps(again).encode(), asks, kept)
    assert found[0]["stream"]


def test_frames_of_requests_in_turns_are_learned_though_one_ends_like_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from warmroute_proxy.server.intake import intake

    kept, asks = KnownBodies(min_bytes=LEAST), caller({})
    plain = json.dumps({"model": "m", "messages": BODY["messages"]}).encode()
    listing = json.dumps({"model": "m", "messages": BODY["messages"], "tools": []}).encode()
    for _ in range(3):
        outcome(plain, asks, kept)
        outcome(listing, asks, kept)
    monkeypatch.delattr(intake, "read_whole")
    for raw, names in ((plain, {"model", "messages"}), (listing, {"model", "messages", "tools"})):
        assert outcome(raw, asks, kept)[1].keys() == names


def test_bodies_of_many_clients_do_not_pile_up() -> None:
    """The last conversation is known, the first one is forgotten, and each is read as it should."""
    kept = KnownBodies(4 * len(LONG), LEAST)
    said = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "y"}]
    callers = Callers(SECRETS, Conversations("x"))
    asks = [callers.of(CHAT, TENANT, {"x-session-id": str(number)}) for number in range(8)]
    for each in asks:
        for _ in range(3):
            outcome(json.dumps({**BODY, "messages": said}).encode(), each, kept)
    known = [each.known_bodies[0].conversation is not None for each in asks]
    assert (known[0], known[-1], known) == (False, True, sorted(known))
    assert kept.bytes <= 4 * len(LONG)
    more = json.dumps({**BODY, "messages": [*said, {"role": "user", "content": "more"}]}).encode()
    for number in (0, 7):
        as_the_first(more, asks[number], kept, {"x-session-id": str(number)})


def test_long_tails_are_kept_once_and_the_oldest_are_forgotten() -> None:
    kept, callers = KnownBodies(min_bytes=LEAST, max_long_bytes=6_000), Callers(SECRETS, Conversations("x"))
    for number in range(12):
        asks = callers.of(CHAT, TENANT, {"x-session-id": str(number)})
        tool = {"type": "function", "function": {"name": f"tool{number // 4}", "description": LONG}}
        for _ in range(3):
            raw = json.dumps({**BODY, "tools": [tool, tool]}).encode()
            as_the_first(raw, asks, kept, {"x-session-id": str(number)})
    tails = {
        id(each.template.tail)
        for known in callers._callers.values()
        for each in known.known_bodies
        if each.template.tail
    }
    assert len(tails) == 2  # of three: the first one was forgotten to make room
    assert sum(len(tail) for tail in kept._tails) <= 6_000


def test_values_of_a_frame_are_as_the_first_body_has_them() -> None:
    kept, asks = KnownBodies(min_bytes=LEAST), caller({})
    for _ in range(3):
        said, members, _ = outcome(json.dumps({**BODY, "stream_options": {"include_usage": True}}).encode(), asks, kept)
        assert (said["stream"], said["include_usage"]) == (True, True)
        assert msgspec.json.decode(members["stream"]) is True


def test_no_body_is_of_a_frame_that_was_forgotten() -> None:
    """Whatever it begins with: what stands around its messages was not checked."""
    kept, asks = KnownBodies(min_bytes=LEAST, max_long_bytes=3_000), caller({})
    around = {"model": "alias", "user": "u" * 140, "messages": BODY["messages"]}
    for letter in "aabb":
        outcome(json.dumps({**around, "x": letter * 2_000}).encode(), asks, kept)
    first = json.dumps({**around, "x": "a" * 2_000}).encode()
    forgotten = next(each for each in asks.known_bodies if not each.template.tail)
    start = forgotten.template.start
    other = b'"model":"alias","cache_salt":"another","a":"%b","messages": '
    for begin in (b"\0", b"{", b"", b"["):
        head = begin + other % (b"p" * (start - len(begin) - len(other) + 2))
        assert len(head) == start
        raw = head + first[start:]
        assert outcome(raw, asks, kept) == outcome(raw, caller({}), KnownBodies())
        assert outcome(raw, asks, kept)[0] == 400


def test_a_conversation_does_not_outgrow_the_limit_of_its_messages() -> None:
    kept, asks = KnownBodies(min_bytes=LEAST), caller({})
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "y"}] * (MAX_PARTS // 2 + 5)
    fewer = MAX_PARTS - 8
    for count, status in ((fewer, None), (fewer, None), (MAX_PARTS, None), (MAX_PARTS + 1, 400), (fewer + 6, None)):
        raw = json.dumps({"model": "m", "messages": said[:count]}).encode()
        found = as_the_first(raw, asks, kept)
        assert (found[0] == 400) == (status == 400)


def test_a_conversation_that_outgrows_what_is_kept_is_still_of_its_session() -> None:
    kept, asks = KnownBodies(12_000, LEAST), caller({})
    said = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "y"}] * 15
    for count in (4, 4, 4, 8, 30):
        raw = json.dumps({"model": "m", "messages": said[:count]}).encode()
        found = as_the_first(raw, asks, kept)
        assert found[0]["session"]


@pytest.mark.parametrize("odd", [b'"\xff"', b"[" * 1_000_000 + b"]" * 1_000_000], ids=["text", "depth"])
def test_nothing_goes_on_with_a_conversation_that_was_refused(odd: bytes) -> None:
    """What stands beside a text is checked, too."""
    kept, asks = KnownBodies(min_bytes=LEAST), caller({})
    sound = b'"x"'
    for content in (sound, sound, odd, odd, odd, sound):
        part = b'[{"type":"text","text":"hi","x":%b}]' % content
        said = b'[{"role":"user","content":%b},{"role":"assistant","content":"%b"}]' % (part, LONG.encode())
        raw = b'{"model":"m","messages":%b}' % said
        found = as_the_first(raw, asks, kept)
        assert (found[0] == 400) == (content is odd)


@pytest.mark.parametrize("name", ["metadata", "stream_options"])
def test_callers_do_not_keep_what_is_large_once_it_is_decoded(name: str) -> None:
    """The bytes of a tail are shared by all who send it, what was made of them is not."""
    for size, frames in ((3, 1), (1_000, 0)):
        asks, value = caller({}), {"user_id": "user_1_session_2", **{f"k{number}": number for number in range(size)}}
        raw = json.dumps({**BODY, name: value}).encode()
        for _ in range(2):
            assert outcome(raw, asks, KnownBodies()) == outcome(raw, caller({}), KnownBodies())
        assert len(asks.known_bodies) == frames
