"""Schemas that are small to write and long to compile get a 400 before an engine sees them, in each API."""

import json
from typing import Any

import pytest

from tests.hostile.reading import GEMINI, MESSAGES, RESPONSES, Became, read
from warmroute_proxy.server.intake.intake import CHAT

STRING: dict[str, Any] = {"type": "string"}


def properties(count: int, **members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": STRING | members for number in range(count)}}


SLOW: dict[str, dict[str, Any]] = {
    "many patterns": properties(33, pattern="^[a-z]{1,500}$"),
    "patterns of names": {"type": "object", "patternProperties": {f"^a{n}+$": STRING for n in range(40)}},
    "a long text": STRING | {"maxLength": 1_000_000},
    "long texts": properties(30, maxLength=3_000),
    "a long text beside what is less than none": properties(2, maxLength=1_000_000, minLength=-1_000_000),
    "many items": {"type": "array", "items": STRING, "minItems": 1_000_000},
    "nested": {"anyOf": [{"type": "array", "items": {"allOf": [STRING | {"minLength": 70_000}]}}]},
}
QUICK: dict[str, dict[str, Any]] = {
    "some patterns": properties(20, pattern="^[a-z]+$", maxLength=1000),
    "items": {"type": "array", "items": STRING, "minItems": 1, "maxItems": 1000},
    "names that are keywords": {"type": "object", "properties": {"maxLength": STRING, "pattern": STRING}},
    "odd": {"type": "string", "maxLength": "7", "pattern": 7, "minItems": None},
}


def bodies(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    form = {"type": "json_schema", "name": "a", "schema": schema}
    said = [{"role": "user", "content": "x"}]
    chat_form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    contents = [{"parts": [{"text": "x"}]}]
    return {
        CHAT: {"model": "m", "messages": said, "response_format": chat_form},
        RESPONSES: {"model": "m", "input": "x", "text": {"format": form}},
        GEMINI: {"contents": contents, "generationConfig": {"responseJsonSchema": schema}},
    }


@pytest.mark.parametrize("schema", SLOW)
def test_a_slow_one_is_refused(schema: str) -> None:
    for path, body in bodies(SLOW[schema]).items():
        assert read(path, json.dumps(body).encode()).became is Became.REFUSED, path


@pytest.mark.parametrize("schema", QUICK)
def test_others_pass(schema: str) -> None:
    for path, body in bodies(QUICK[schema]).items():
        assert read(path, json.dumps(body).encode()).became is Became.READ, path


def test_messages_have_no_schema_for_answers() -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "output_format": SLOW}
    assert read(MESSAGES, json.dumps(body).encode()).became is Became.READ  # it is dropped
