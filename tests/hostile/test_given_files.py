"""Each command that reads files of others, with each kind of odd file: one sentence and exit 2, in bounded memory."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.hostile.given_files import broken, changed, packed, special
from tests.machine import seconds

pytestmark = pytest.mark.full

MOST_BYTES: Final = 1 << 30
MOST_CHARS: Final = 2_000

MESSAGES: Final = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
USAGE: Final = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}
SPAN: Final = {
    "name": "chat",
    "spanId": "1",
    "traceId": "2",
    "startTimeUnixNano": "1000",
    "attributes": [
        {"key": "gen_ai.input.messages", "value": {"stringValue": "[]"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "5"}},
        {"key": "gen_ai.tool.definitions", "value": {"arrayValue": {"values": [{"kvlistValue": {"values": []}}]}}},
    ],
}
TRACES: Final = {
    "export": {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": [SPAN]}]}]},
    "mooncake": {"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]},
    "weka": {
        "id": "s", "block_size": 64, "hash_id_scope": "local",
        "requests": [{"t": 0, "type": "n", "in": 100, "out": 2, "hash_ids": [1, 2], "api_time": 1}],
    },
    "sessions": {
        "session": "s", "block": 64, "tool_tokens": 600, "system_tokens": 0,
        "turns": [[0.0, 600, 2, 10, 0, -1, 1.0, 1.0]],
    },
}  # fmt: skip
LOGS: Final = {
    "litellm": {
        "spend": 0.1, "prompt_tokens": 5, "completion_tokens": 1, "messages": MESSAGES,
        "request_tags": ["User-Agent: x"], "metadata": {"usage_object": USAGE},
    },
    "sglang": {
        "event": "request.finished", "timestamp": "2026-01-01", "obj": {"input_ids": [1], "text": "a"},
        "headers": {"x-smg-routing-key": "s"}, "out": {"output_ids": [1], "meta_info": {**USAGE, "cached_tokens": 1}},
    },
}  # fmt: skip
RECORDS: Final = {
    "body": {
        "session": "s", "t": 1.5, "body": {"model": "m", "messages": MESSAGES, "tools": [{"name": "x"}]}, "usage": USAGE
    },
    "headers": {
        "request": {"body": {"model": "m", "system": "x", "messages": MESSAGES}}, "headers": [["x-session-id", "s"]],
        "response": {"body": {"usage": USAGE}},
    },
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "x"}]}], "generationConfig": {"thinkingConfig": {}}},
    "span": SPAN,
    "sample": {
        "parts": [MESSAGES[0]], "headers": [{"x-session-id": "s"}],
        "requests": [{"n": 1, "headers": 0, "rest": {"model": "m"}, "messages": [0], "tools": [0]}],
    },
}  # fmt: skip

COMMANDS: Final[dict[str, tuple[tuple[str, ...], dict[str, Any]]]] = {
    "lint": (("lint",), {**RECORDS, "export": TRACES["export"]}),
    "ladder": (("ladder",), {**TRACES, **LOGS}),
    "replay": (("replay",), TRACES),
    "replay --verify": (("replay", "--verify"), {}),
    "replay --fleet": (("replay", "--recorded", "--fleet"), {}),
    "plan --trace": (("plan", "--model", "qwen3-8b", "--gpus", "1xH100", "--trace"), {}),
    "plan --check": (("plan", "--check"), {}),
    "plan --hardware": (("plan", "--list", "--hardware"), {}),
    "doctor --plan": (("doctor", "--plan"), {}),
    "conform --key-file": (("conform", "http://127.0.0.1:1", "--dry-run", "--key-file"), {}),
}
PASSED_OVER: Final = {
    "ladder": {"then.json"}, "plan --hardware": {"empty.json"}, "conform --key-file": {"cut.json", "list.json"},
}  # fmt: skip
"""What is no mistake: a line of a log that is no request, a table without rows, and words that could be a key."""


def outcomes(cases: Iterable[list[str]]) -> list[dict[str, Any]]:
    found = subprocess.run(
        [sys.executable, "-m", "tests.hostile.given_files"],
        input=json.dumps(list(cases)), capture_output=True, text=True, check=True, timeout=seconds(120),
    )  # fmt: skip
    return [json.loads(line) for line in found.stdout.splitlines()]


def faults(found: dict[str, Any], codes: set[int]) -> list[str]:
    """What is wrong with how a command ended."""
    wrong = []
    if found["code"] not in codes:
        wrong.append(f"exit {found['code']}")
    if found["grew"] > MOST_BYTES:
        wrong.append(f"took {found['grew'] >> 20} MiB")
    if any(bad in found["shown"] + found["said"] for bad in ("Traceback", "\x1b", "\x07")):
        wrong.append("a traceback or control characters")
    if found["code"] == 2 and not (found["said"].startswith("warmroute") and len(found["said"]) < MOST_CHARS):
        wrong.append("no sentence")
    return [f"{' '.join(found['words'])}: {', '.join(wrong)}: {found['said'][-300:]}"] if wrong else []


@pytest.mark.parametrize("command", COMMANDS)
def test_an_odd_file_is_a_sentence_and_exit_2(command: str, tmp_path: Path) -> None:
    words, values = COMMANDS[command]
    whole = json.dumps(next(iter(values.values()), TRACES["mooncake"])).encode() + b"\n"
    files = [*special(tmp_path), *packed(tmp_path, whole), *broken(tmp_path, whole)]
    found = outcomes([*words, str(path)] for path in files)
    assert len(found) == len(files)
    refused = [each for each in found if Path(each["words"][-1]).name not in PASSED_OVER.get(command, ())]
    assert [fault for each in refused for fault in faults(each, {2})] == []
    unnamed = [each for each in refused if Path(each["words"][-1]).name not in each["said"]]
    assert unnamed == [], "the sentence names the file"


@pytest.mark.nightly
@pytest.mark.parametrize("command", [name for name, (_, values) in COMMANDS.items() if values])
def test_an_odd_value_is_read_or_a_sentence(command: str, tmp_path: Path) -> None:
    words, values = COMMANDS[command]
    files = list(changed(tmp_path, values))
    found = outcomes([*words, str(path)] for path in files)
    assert len(found) == len(files)
    assert [fault for each in found for fault in faults(each, {0, 2})] == []
