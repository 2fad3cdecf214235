"""Who sends a turn, by the headers and fields that each coding agent really sends: session, agent, parent, kind.

Headers are as recorded from Claude Code 2.1.197, OpenCode 1.18.33, Codex 0.169.0, gemini-cli 0.61.0, aider 0.86.2 and
mini-swe-agent 2.4.6; those of newer versions are from their sources and documentation, which `identity` names.
"""

from typing import Any, NamedTuple

import pytest
from tests.recordings import recorded

from warmroute.contract.identity import described, lineage_parts, session_of


class Identity(NamedTuple):
    session: str | None
    agent: str
    parent: str
    kind: str


def identity(headers: dict[str, str], body: dict[str, Any] | None = None) -> Identity:
    session, parts = session_of(headers, body or {}), lineage_parts(headers)
    return Identity(None if session is None else session.key, parts.agent, parts.parent, described(headers).kind)


CLAUDE = {"user-agent": "claude-cli/2.1.330 (external, cli)", "x-app": "cli", "x-claude-code-session-id": "a119"}
OPENCODE = {"user-agent": "opencode/1.18.33", "x-session-affinity": "ses_a", "x-session-id": "ses_a"}
CODEX = {"originator": "codex_exec", "session-id": "01a1", "thread-id": "01a1", "x-client-request-id": "01a1"}
CASES: list[tuple[str, dict[str, str], dict[str, Any], Identity]] = [
    ("claude: main", CLAUDE, {}, Identity("a119", "", "", "")),
    ("claude: sub-agent", CLAUDE | {"x-claude-code-agent-id": "g1"}, {}, Identity("a119", "g1", "", "sub")),
    (
        "claude: nested sub-agent",
        CLAUDE | {"x-claude-code-agent-id": "g2", "x-claude-code-parent-agent-id": "g1"},
        {},
        Identity("a119", "g2", "g1", "sub"),
    ),
    (
        "claude: compaction, with hints",
        CLAUDE | {"x-claude-code-request-class": "compaction"},
        {},
        Identity("a119", "", "", "compaction"),
    ),
    (
        "claude: title, with hints",
        CLAUDE | {"x-claude-code-request-class": "auxiliary"},
        {},
        Identity("a119", "", "", "auxiliary"),
    ),
    ("claude: no header", {}, {"metadata": {"user_id": '{"session_id":"a119"}'}}, Identity("a119", "", "", "")),
    ("opencode 1.18.33: main, title, compaction", OPENCODE, {}, Identity("ses_a", "", "", "")),
    (
        "opencode 1.18.33: sub-agent",
        {"x-session-affinity": "ses_b", "x-session-id": "ses_b", "x-parent-session-id": "ses_a"},
        {},
        Identity("ses_b", "", "ses_a", "sub"),
    ),
    (
        "opencode 1.18.34: main",
        OPENCODE | {"x-opencode-session-id": "ses_a"},
        {"prompt_cache_key": "ses_a"},
        Identity("ses_a", "ses_a", "", ""),
    ),
    (
        "opencode V2: sub-agent, with the parent's affinity",
        OPENCODE | {
            "x-opencode-session": "ses_a",
            "x-opencode-session-id": "ses_b",
            "x-parent-session-id": "ses_a",
            "x-opencode-parent-session-id": "ses_a",
        },
        {},
        Identity("ses_a", "ses_b", "ses_a", "sub"),
    ),
    ("codex: root", CODEX, {"prompt_cache_key": "01a1"}, Identity("01a1", "01a1", "", "")),
    (
        "codex: sub-agent",
        CODEX | {"thread-id": "02b2", "x-codex-parent-thread-id": "01a1", "x-openai-subagent": "collab_spawn"},
        {"prompt_cache_key": "01a1"},
        Identity("01a1", "02b2", "01a1", "sub"),
    ),
    ("codex: compaction", CODEX | {"x-openai-subagent": "compact"}, {}, Identity("01a1", "01a1", "", "compaction")),
    (
        "copilot over a websocket: sub-agent",
        {"x-initiator": "agent", "x-interaction-type": "conversation-subagent"},
        {},
        Identity(None, "", "", "sub"),
    ),
    ("copilot: main", {"x-interaction-type": "conversation-user"}, {}, Identity(None, "", "", "")),
    ("codex up to 0.130", {"session_id": "01a1"}, {}, Identity("01a1", "", "", "")),
    ("gemini-cli", {"user-agent": "GeminiCLI/0.61.0/gemini-2.5-pro (linux; x64)"}, {}, Identity(None, "", "", "")),
    ("qwen-code", {"user-agent": "QwenCode/0.15.10 (linux; x64)"}, {}, Identity(None, "", "", "")),
    ("kimi code", {"user-agent": "kimi-code-cli/2.1.0"}, {"prompt_cache_key": "session_a"},
     Identity("session_a", "", "", "")),
    ("aider, mini-swe-agent", {"user-agent": "litellm/1.106.2"}, {}, Identity(None, "", "", "")),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "body", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_who_sends_a_turn(headers: dict[str, str], body: dict[str, Any], expected: Identity) -> None:
    assert identity(headers, body) == expected


def test_recorded_requests_of_claude_code_are_one_session() -> None:
    requests = recorded("claude")
    by_header = {identity(request.headers, request.body) for request in requests}
    by_body = {identity({}, {"metadata": request.body["metadata"]}) for request in requests}
    assert by_header == by_body
    assert len(by_header) == 1
