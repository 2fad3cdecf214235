"""Who sent a turn, by every signal that harnesses give."""

import pickle
from typing import Any

import pytest

from warmroute.contract.identity import InvalidSessionKey, Session, described, harness, lineage_parts, session_of


@pytest.mark.parametrize(
    ("headers", "body", "key", "source"),
    [
        ({"x-session-affinity": "a", "x-session-id": "b"}, {"prompt_cache_key": "c"}, "a", "x-session-affinity"),
        ({"x-opencode-session": "a", "x-opencode-session-id": "b"}, {}, "a", "x-opencode-session"),
        ({"session_id": "codex"}, {}, "codex", "session_id"),
        ({"x-claude-code-session-id": "cc"}, {}, "cc", "x-claude-code-session-id"),
        ({"x-affinity": "vibe"}, {"prompt_cache_key": "c"}, "vibe", "x-affinity"),
        ({"agent-session-id": "goose"}, {}, "goose", "agent-session-id"),
        ({"x-session-affinity": "crush", "x-session-id": "crush"}, {}, "crush", "x-session-affinity"),
        ({"x-grok-conv-id": "grok"}, {}, "grok", "x-grok-conv-id"),
        ({"x-litellm-session-id": "l"}, {"metadata": {"session_id": "m"}}, "l", "x-litellm-session-id"),
        ({"x-dynamo-session-id": "d"}, {}, "d", "x-dynamo-session-id"),
        ({"x-bf-session-id": "b"}, {}, "b", "x-bf-session-id"),
        ({}, {"metadata": {"session_id": "litellm"}}, "litellm", "metadata"),
        ({}, {"metadata": {"session_id": "m", "user_id": "user_ab__session_0f"}}, "0f", "metadata"),
        ({"x-session-affinity": ""}, {"prompt_cache_key": "c"}, "c", "prompt_cache_key"),
        ({}, {"promptCacheKey": "c"}, "c", "promptCacheKey"),
        ({}, {"prompt_cache_key": 7, "session_id": "s"}, "s", "session_id"),
        ({}, {"conversation": {"id": "conv"}}, "conv", "conversation"),
        ({}, {"metadata": {"user_id": "user_ab_account__session_0f-1"}}, "0f-1", "metadata"),
        ({}, {"metadata": {"user_id": '{"session_id": "json", "device_id": "d"}'}}, "json", "metadata"),
    ],
)
def test_the_first_signal_names_the_session(
    headers: dict[str, str], body: dict[str, Any], key: str, source: str
) -> None:
    assert session_of(headers, body) == Session(key, source, derived=False)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": "text"},
        {"metadata": {"user_id": "somebody"}},
        {"metadata": {"session_id": 5}},
        {"metadata": {"user_id": "{broken"}},
        {"metadata": {"user_id": '{"session_id": 5}'}},
        {"metadata": {"user_id": '{"a":' * 800 + "1" + "}" * 800}},
        {"metadata": {"user_id": "_session_" + "x" * 5000}},
        {"conversation": {"id": 5}},
        {"previous_response_id": "resp_1"},
    ],
)
def test_what_is_no_session_is_none(body: dict[str, Any]) -> None:
    assert session_of({}, body) is None


def test_only_the_sdks_own_header_can_be_marked_as_derived() -> None:
    derived = {"x-warmroute-session-derived": "1"}
    assert session_of({"x-session-affinity": "d", **derived}, {}) == ("d", "x-session-affinity", True)
    assert session_of({"x-session-id": "s", **derived}, {}) == ("s", "x-session-id", False)


@pytest.mark.parametrize("key", ["x" * 257, "é" * 129, "a\nb", "a\x00b", "\u202e", "\ud800"])
def test_bad_keys_are_the_clients_fault_and_are_not_repeated(key: str) -> None:
    with pytest.raises(InvalidSessionKey) as caught:
        session_of({}, {"prompt_cache_key": key})
    assert caught.value.source == "prompt_cache_key"
    assert key not in str(caught.value)
    copied = pickle.loads(pickle.dumps(caught.value))  # as a pool of processes does
    assert (str(copied), copied.source) == (str(caught.value), "prompt_cache_key")


def test_256_bytes_are_a_key() -> None:
    assert session_of({"x-session-affinity": "x" * 256}, {}) is not None


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({}, ("", "")),
        ({"x-warmroute-agent": "build", "x-warmroute-kind": "main"}, ("build", "main")),
        ({"x-parent-session-id": "p"}, ("", "sub")),
        ({"x-warmroute-kind": "compaction", "x-parent-session-id": "p"}, ("", "compaction")),
        ({"x-warmroute-kind": "dream", "x-warmroute-agent": "a\x00b"}, ("", "")),
        ({"x-warmroute-agent": "a" * 64}, ("a" * 64, "")),
        ({"x-warmroute-agent": "ä" * 33}, ("", "")),
    ],
)
def test_what_a_client_says_of_a_request_is_shown_where_it_can_be(headers: dict[str, str], wanted: object) -> None:
    assert described(headers) == wanted


@pytest.mark.parametrize(
    ("heads", "shown"),
    [
        ({"user-agent": "opencode/1.18.34 ai-sdk/provider-utils/4.0.23"}, "opencode"),
        ({"user-agent": "claude-cli/2.1.273 (external, cli)"}, "claude-code"),
        ({"user-agent": "codex_cli_rs/0.80.0 (Linux)"}, "codex"),
        ({"user-agent": "codex-tui/0.153.4 (Debian 12.0.0; x86_64) xterm-256color (codex-tui; 0.153.4)"}, "codex"),
        ({"user-agent": "Codex/0.150.0 (Mac OS 15.0; arm64)"}, "codex"),
        ({"user-agent": "codex_sdk_ts/0.150.0"}, "codex"),
        ({"user-agent": "codex_app/0.150.0"}, "codex"),
        ({"user-agent": "codex_vscode/0.150.0 (Windows 10.0; x86_64)"}, "codex"),
        ({"user-agent": "kimi-code-cli/2.1.0"}, "kimi-code"),
        ({"user-agent": "opencode/1", "x-warmroute-harness": "aider"}, "aider"),
        ({"user-agent": "<script>"}, ""),
        ({"user-agent": "a" * 65 + "/1"}, "a" * 64),
        ({"x-warmroute-harness": "a\x00b"}, ""),
        ({}, ""),
    ],
)
def test_a_harness_is_its_own_name_or_the_product_of_its_user_agent(heads: dict[str, str], shown: str) -> None:
    assert harness(heads) == shown


def test_agents_and_parents_tell_lineages_apart() -> None:
    assert lineage_parts({"thread-id": "t", "x-parent-session-id": "p"}) == ("t", "p")
    assert lineage_parts({"x-claude-code-agent-id": "a" * 300}).agent == "a" * 256
    assert lineage_parts({}) == ("", "")
