"""The shipped samples: what they hold, and that conversion kept the prefixes that caching lives on."""

from importlib import resources

import pytest

from warmroute.contract.identity import session_of
from warmroute_lab.engine.model.prompt import ANSWER_HEAD, render
from warmroute_lab.recordings import RecordedRequest, RecordedSession, load_recordings

RECORDINGS = load_recordings()

BREAKS = {
    "claude": [12],  # git status in the system prompt
    "oc_date": [5],  # today's date in the system prompt
    "oc_prune": [17],  # old tool results cleared
    "aider": [2, 4, 5, 6],  # a reminder in the last user message, moved every turn
}
"""Requests that do not extend the one before them in their prompt; all others do."""


def lineage(request: RecordedRequest) -> tuple[object, ...]:
    """What tells the prompts of one recording apart: the session, tools or none, and the first words of the system."""
    lowered = {name.lower(): value for name, value in request.headers.items()}
    return session_of(lowered, request.body), "tools" in request.body, str(request.body["messages"][0]["content"])[:60]


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_prompts_grow_by_appending_but_for_the_known_breaks(recording: RecordedSession) -> None:
    newest: dict[tuple[object, ...], bytes] = {}
    breaks = []
    for request in recording.requests:
        prompt = render(request.body).removesuffix(ANSWER_HEAD)
        if not prompt.startswith(newest.get(lineage(request), b"")):
            breaks.append(request.n)
        newest[lineage(request)] = prompt
    assert breaks == BREAKS.get(recording.name, [])


def test_every_harness_and_every_request_is_there() -> None:
    counts = {recording.name: len(recording.requests) for recording in RECORDINGS}
    assert counts == {
        "aider": 6, "claude": 12, "codex": 12, "gemini": 9, "mswe": 9, "oc_anthropic": 12, "oc_continue": 7,
        "oc_date": 7, "oc_main": 12, "oc_openai": 9, "oc_prune": 19, "oc_subagent": 9,
    }  # fmt: skip
    names = {recording.harness for recording in RECORDINGS}
    assert names == {"aider", "claude-code", "codex", "gemini", "mini-swe-agent", "opencode"}


def test_harnesses_can_be_chosen() -> None:
    assert [recording.name for recording in load_recordings(["codex", "aider"])] == ["aider", "codex"]


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_bodies_are_chat_completions_in_template_order(recording: RecordedSession) -> None:
    for request in recording.requests:
        fields = list(request.body)
        expected = ["model", "tools", "messages"] if "tools" in request.body else ["model", "messages"]
        assert fields[: len(expected)] == expected
        roles = [message["role"] for message in request.body["messages"]]
        assert roles[0] == "system"
        assert set(roles) <= {"system", "developer", "user", "assistant", "tool"}
        assert all(tool["type"] == "function" and tool["function"]["name"] for tool in request.body.get("tools", []))
        assert request.body.get("tool_choice", "auto") == "auto"
        assert request.turn == roles.count("assistant") + 1


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_every_tool_message_answers_a_call_before_it(recording: RecordedSession) -> None:
    for request in recording.requests:
        called = set()
        for message in request.body["messages"]:
            called |= {call["id"] for call in message.get("tool_calls", ())}
            if message["role"] == "tool":
                assert message["tool_call_id"] in called


def test_session_signals_survive_as_each_harness_sends_them() -> None:
    found = {}
    for recording in RECORDINGS:
        request = recording.requests[-1]
        session = session_of({name.lower(): value for name, value in request.headers.items()}, request.body)
        found[recording.name] = session.source if session else None
    opencode = {name: "x-session-affinity" for name in found if name.startswith("oc_")}
    none = dict.fromkeys(("aider", "gemini", "mswe"))
    assert found == opencode | none | {"claude": "x-claude-code-session-id", "codex": "session-id"}


def test_body_signals_survive() -> None:
    by_name = {recording.name: recording.requests[-1].body for recording in RECORDINGS}
    for name in ("codex", "oc_openai"):
        assert by_name[name]["prompt_cache_key"]
    assert "session_id" in by_name["claude"]["metadata"]["user_id"]


def test_no_credentials_and_no_transport_headers() -> None:
    sent = {name.lower() for recording in RECORDINGS for request in recording.requests for name in request.headers}
    assert not sent & {"authorization", "x-api-key", "x-goog-api-key", "cookie", "host", "content-length", "connection"}
    assert "user-agent" in sent


def test_the_samples_are_small() -> None:
    folder = resources.files("warmroute_lab") / "samples"
    assert sum(len((entry).read_bytes()) for entry in folder.iterdir()) < 1_000_000
