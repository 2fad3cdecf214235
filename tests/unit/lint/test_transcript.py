"""Recorded requests of every format that is read, and files that are none."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from warmroute.contract.usage import tokens_of
from warmroute.lint.transcript import Recorded, TranscriptError, recorded

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
USAGE = {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}


def read(folder: Path, text: str | bytes, name: str = "calls.jsonl") -> list[Recorded]:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(recorded(path))


@pytest.mark.parametrize(
    ("record", "session", "usage"),
    [
        (BODY, "calls", None),
        ({"n": 3, "headers": {"X-Session-Affinity": "s"}, "body": BODY, "reply": {"usage": USAGE}}, "s", USAGE),
        ({"n": 3, "headers": [["x-claude-code-session-id", "c"]], "body": BODY}, "c", None),
        ({"custom_id": "a", "method": "POST", "body": BODY}, "calls", None),
        ({"request": BODY, "response": {"body": {"usage": USAGE}}}, "calls", USAGE),
        ({"request": {"body": {**BODY, "prompt_cache_key": "k"}}, "usage": USAGE}, "k", USAGE),
        ({"session": "mine", "kwargs": BODY}, "mine", None),
        ({"model": "m", "instructions": "Be brief.", "input": "hello"}, "calls", None),
        ({"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}, "calls", None),
        ({"model": "m", "prompt": "hello"}, "calls", None),
    ],
)
def test_a_record_is_a_request(tmp_path: Path, record: dict[str, Any], session: str, usage: Any) -> None:
    for text in (json.dumps(record), json.dumps([record]), f"{json.dumps(record)}\n\n{json.dumps(record)}"):
        for request in read(tmp_path, text):
            assert (request.session, request.usage) == (session, usage)
    assert read(tmp_path, gzip.compress(json.dumps(record).encode()), "calls.json.gz")


def attribute(key: str, value: object) -> dict[str, Any]:
    typed = {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
    return {"key": key, "value": typed}


MESSAGES = [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]
ATTRIBUTES = {
    "gen_ai.conversation.id": "conv-1",
    "gen_ai.request.model": "m",
    "gen_ai.input.messages": json.dumps(MESSAGES),
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
    "gen_ai.usage.input_tokens": 10,
    "gen_ai.usage.output_tokens": 1,
    "gen_ai.usage.cache_read.input_tokens": 4,
}


@pytest.mark.parametrize("is_export", [True, False])
def test_a_span_is_a_request(tmp_path: Path, is_export: bool) -> None:
    span: dict[str, Any] = {"name": "chat m", "spanId": "1", "startTimeUnixNano": "1000000000"}
    span["attributes"] = ATTRIBUTES
    if is_export:
        span["attributes"] = [attribute(key, value) for key, value in ATTRIBUTES.items()]
        span = {"resourceSpans": [{"scopeSpans": [{"spans": [span, {"name": "GET /", "spanId": "2"}]}]}]}
    [found] = read(tmp_path, json.dumps(span))
    assert (found.session, found.time_s) == ("conv-1", 1.0)
    assert found.usage is not None
    assert tokens_of(found.usage) == tokens_of(USAGE)
    assert found.body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert found.body["system"] == [{"type": "text", "text": "Be brief."}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no request in it. Expected are JSON objects"),
        ("{}", "no request in it"),
        ("[1, 2]", "no request in it"),
        ('{"messages": []}\n{broken', "line 2: no JSON"),
        ('{"messages": []}\n[1]', "line 2: an object was expected, not list"),
        (b"\xff\xfe", "no UTF-8 at byte 0"),
    ],
)
def test_what_is_no_transcript_says_where_and_why(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(TranscriptError, match="calls") as raised:
        read(tmp_path, text)
    assert said in str(raised.value)
