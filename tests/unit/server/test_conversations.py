"""Requests without a session key, read as the proxy reads them: which of them come out as one session."""

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from warmroute.contract.conversations import Conversations
from warmroute_lab.recordings import load_recordings
from warmroute_proxy.server.base.config_file import parse_config
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.caller import Callers
from warmroute_proxy.server.intake.intake import read
from warmroute_proxy.server.intake.parsed_request import CHAT, ParsedRequest

CONFIG: Final = parse_config(
    {
        "proxy": {"region": "r"},
        "region": [{"name": "r"}, {"name": "far", "url": "http://127.0.0.1:2"}],
        "engine": [{"url": "http://127.0.0.1:1", "region": "r"}],
        "model": [{"name": name, "input": "1", "cached": "0.1", "output": "2"} for name in ("m", "other")],
        "tenant": [
            {"name": name, "share_group": "both", "key_sha256": [digit * 64]}
            for name, digit in (("t", "1"), ("u", "2"))
        ]
        + [{"name": "stays", "share_group": "stays", "regions": ["r"], "key_sha256": ["3" * 64]}],
    },
    Path(),
    "test",
)
SECRETS: Final = Secrets(b"k" * 48)
SESSIONS: Final = {
    "aider": [{1, 2}, {3}, {4, 5, 6}],  # a commit message; at 4 the message with its files has moved
    "claude": [{2, 3, 4, 5, 6, 7, 8, 9, 10}, {12, 13, 14}],  # git status in the system prompt
    "codex": [set(range(1, 13))],
    "gemini": [set(range(1, 10))],
    "mswe": [set(range(1, 10))],
    "oc_anthropic": [{1}, set(range(2, 13))],  # a title, as in all of OpenCode's
    "oc_continue": [{1}, set(range(2, 8))],
    "oc_date": [{1}, {2, 3, 4}, {5, 6, 7}],  # today's date in the system prompt
    "oc_main": [{1}, set(range(2, 13))],
    "oc_openai": [{1}, set(range(2, 10))],
    "oc_prune": [{1}, set(range(2, 17)), {17, 18, 19}],  # old tool results are cleared
    "oc_subagent": [{1}, {2, 3, 8, 9}, {4, 5, 6, 7}],  # a child by the task tool
}
"""The requests of each session of a recording, by number."""


class Reader:
    """A proxy's reading of requests, all by one caller."""

    def __init__(self, region: str = "r") -> None:
        self.callers = Callers(SECRETS, Conversations("x"), region=region)

    def read(self, body: dict[str, Any], tenant: int = 0) -> ParsedRequest:
        callers, request = self.callers, Request(0.0, "POST", CHAT)
        request.body = json.dumps(body).encode()
        caller = callers.of(CHAT, CONFIG.tenants[tenant], {})
        return read(request, caller, callers, CONFIG).parsed

    def session(self, messages: Sequence[dict[str, Any]], tenant: int = 0, **more: Any) -> str:
        found = self.read({"model": "m", "messages": messages, **more}, tenant).session
        assert found is not None
        return found


def unsigned(body: dict[str, Any]) -> dict[str, Any]:
    """A recorded body without the fields that name its session."""
    return {**body, "model": "m"} | {"prompt_cache_key": None, "metadata": None}


def in_turns(seed: int) -> list[tuple[str, int, dict[str, Any]]]:
    """All requests of all recordings: each recording's in order, and the recordings one request at a time by chance."""
    draw, left = random.Random(seed), {recording.name: list(recording.requests) for recording in load_recordings()}
    found = []
    while left:
        name = draw.choice(sorted(left))
        request = left[name].pop(0)
        found.append((name, request.n, unsigned(request.body)))
        if not left[name]:
            del left[name]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_each_recorded_conversation_is_one_session_without_its_headers(seed: int) -> None:
    reader = Reader()
    sessions: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for name, n, body in in_turns(seed):
        parsed = reader.read(body)
        assert parsed.routing.derived
        sessions[str(parsed.session)].add((name, n))
    expected = [{(name, n) for n in numbers} for name, groups in SESSIONS.items() for numbers in groups]
    assert sorted(map(sorted, sessions.values())) == sorted(map(sorted, expected))


def test_two_of_each_at_the_same_time_are_two() -> None:
    """The same program, asked the same by two users: no session holds both, whatever comes of the last answer."""
    reader = Reader()
    sessions: dict[str, list[int]] = defaultdict(list)
    for recording in load_recordings(["codex", "mini-swe-agent"]):
        for request in recording.requests:
            for _ in range(2):
                sessions[str(reader.read(unsigned(request.body)).session)].append(request.n)
    assert len(sessions) == 4
    assert all(numbers == sorted(set(numbers)) for numbers in sessions.values())


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


EXAMPLE: Final = [user("Example: dog"), assistant("animal")]


def test_unrelated_chats_behind_the_same_examples_are_sessions_of_their_own() -> None:
    reader = Reader()
    asked = [[*EXAMPLE, user(text)] for text in ("cat", "oak", "stone")]
    sessions = [reader.session(messages) for messages in asked]
    assert len(set(sessions)) == 3
    more = [[*messages, assistant("?"), user("sure?")] for messages in asked]
    assert [reader.session(messages) for messages in reversed(more)] == sessions[::-1]


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "system", "content": "new"}, user("cat"), assistant("a"), user("b")]},
        {"messages": [user("cat"), assistant("another answer"), user("b")]},
        {"messages": [user("Summarise: cat a"), assistant("ok"), user("b")]},
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
        {"model": "other"},
    ],
    ids=["system prompt", "another branch", "compaction", "tools", "model"],
)
def test_everything_else_begins_a_new_conversation(change: dict[str, Any]) -> None:
    reader = Reader()
    first = {"model": "m", "messages": [user("cat")]}
    second = {"model": "m", "messages": [user("cat"), assistant("a"), user("b")]}
    third = {"model": "m", "messages": [*second["messages"], assistant("c"), user("d")]}
    session = reader.read(first).session
    assert reader.read(second).session == session
    assert reader.read({**third, **change}).session != session
    assert reader.read(third).session == session


def test_another_tenant_of_a_share_group_has_conversations_of_its_own() -> None:
    reader = Reader()
    session = reader.session([user("cat")])
    more = [user("cat"), assistant("a"), user("b")]
    assert reader.session(more, tenant=1) != session
    assert reader.session(more) == session


def test_a_request_that_is_sent_again_is_another_sample_unless_it_got_no_answer() -> None:
    reader = Reader()
    first = reader.read({"model": "m", "messages": [user("cat")]})
    sample = reader.session([user("cat")])
    assert sample != first.session
    more = {"model": "m", "messages": [user("cat"), assistant("a"), user("b")]}
    second = reader.read(more)
    assert second.session == sample, "the newest of two that are alike"
    second.left_unanswered()
    again = reader.read(more)
    assert again.session == sample
    second.left_unanswered()  # it was answered meanwhile
    third = {"model": "m", "messages": [*more["messages"], assistant("c"), user("d")]}
    assert reader.read(third).session == sample


def test_an_earlier_request_that_fails_later_leaves_the_newest_one_unanswered() -> None:
    reader = Reader()
    first = reader.read({"model": "m", "messages": [user("cat")]})
    more = {"model": "m", "messages": [user("cat"), assistant("a"), user("b")]}
    second = reader.read(more)
    second.left_unanswered()
    first.left_unanswered()
    assert reader.read(more).session == second.session == first.session


def test_a_message_that_comes_back_shortened_is_of_the_same_conversation() -> None:
    reader = Reader()
    for text in ("fix it", "look at café", "a"):
        session = reader.session([*EXAMPLE, user(f"{text}\n\nTo suggest changes, be brief.")])
        back = [*EXAMPLE, user(text), assistant("done")]
        cut = [*EXAMPLE, user(text[:-1]), assistant("done")]
        assert reader.session([*cut, user("x")]) != session, "half a word"
        assert reader.session([*back, user("more\n\nTo suggest changes, be brief.")]) == session
        assert reader.session([*back, user("more"), assistant("ok"), user("end")]) == session


def test_of_two_alike_the_one_with_less_left_out_is_continued() -> None:
    reader = Reader()
    longer = reader.session([user("fix the bug\n\nBe brief.")])
    shorter = reader.session([user("fix\n\nBe brief.")])
    assert reader.session([user("fix"), assistant("done"), user("more")]) == shorter
    assert reader.session([user("fix the bug"), assistant("done"), user("more")]) == longer


def test_completions_of_a_text_have_no_session() -> None:
    reader = Reader()
    request = Request(0.0, "POST", "/v1/completions")
    request.body = b'{"model":"m","prompt":"cat"}'
    caller = reader.callers.of("/v1/completions", CONFIG.tenants[0], {})
    assert read(request, caller, reader.callers, CONFIG).parsed.session is None


@pytest.mark.parametrize(("region", "is_kept"), [("r", True), ("far", False)])
def test_text_of_a_tenant_is_kept_only_where_it_may_be_served(region: str, is_kept: bool) -> None:
    """Where it may not, its conversation is known by hashes; no message, and nothing of the body around them."""
    reader, tools = Reader(region), [{"type": "function", "function": {"name": "canary", "parameters": {}}}]
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "canary"}]
    sessions = []
    for turn in range(3):
        sessions.append(reader.session(said, 2, tools=tools))
        (newest,) = reader.callers.conversations.newest()
        assert (b"canary" in newest.text) is is_kept
        said += [{"role": "assistant", "content": str(turn)}, {"role": "user", "content": "canary"}]
    assert len(set(sessions)) == 1
    caller = reader.callers.of(CHAT, CONFIG.tenants[2], {})
    assert bool(caller.known_bodies) is is_kept


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": None}, False),
        ({"temperature": 0.5}, False),
        ({"tool_choice": "none"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "read"}}}, True),
        ({"reasoning_effort": "high"}, True),
    ],
)
def test_settings_that_are_rendered_into_the_prompt_are_told_apart(settings: dict[str, Any], differs: bool) -> None:
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools}
    reader = Reader()
    plain, *others = [reader.read(each).routing.settings for each in (body, *[body | settings] * 3)]
    assert {other != plain for other in others} == {differs}
    assert len({*others}) == 1
