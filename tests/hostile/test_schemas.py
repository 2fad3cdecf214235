"""Schemas that are small to write and long to compile get a 400 before an engine sees them, in each API."""

import json
from typing import Any

import pytest

from tests.hostile.reading import GEMINI, MESSAGES, RESPONSES, Became, read
from warmroute_proxy.server.intake.parsed_request import CHAT

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
        MESSAGES: {"model": "m", "max_tokens": 1, "messages": said, "output_config": {"format": form}},
        GEMINI: {"contents": contents, "generationConfig": {"responseJsonSchema": schema}},
    }


@pytest.mark.parametrize("schema", [*SLOW, *QUICK])
def test_a_slow_one_is_refused_and_others_pass(schema: str) -> None:
    for path, body in bodies((SLOW | QUICK)[schema]).items():
        became = read(path, json.dumps(body).encode()).became
        assert became is (Became.REFUSED if schema in SLOW else Became.READ), path


CHOICES: dict[str, Any] = {
    CHAT: "required",
    RESPONSES: {"type": "function", "name": "a"},
    MESSAGES: {"type": "any"},
    GEMINI: {"functionCallingConfig": {"mode": "ANY"}},
}


def tool_bodies(schema: dict[str, Any], *, required: bool) -> dict[str, bytes]:
    """Bodies with a tool whose arguments have this schema."""
    said = [{"role": "user", "content": "x"}]
    arguments = {"type": "object", "properties": {"argument": schema}}
    function = {"name": "a", "parameters": arguments}
    declared = {"functionDeclarations": [{"name": "a", "parametersJsonSchema": arguments}]}
    ours = {"name": "a", "input_schema": arguments}
    made: dict[str, dict[str, Any]] = {
        CHAT: {"model": "m", "messages": said, "tools": [{"type": "function", "function": function}]},
        RESPONSES: {"model": "m", "input": "x", "tools": [{"type": "function"} | function]},
        MESSAGES: {"model": "m", "max_tokens": 1, "messages": said, "tools": [ours]},
        GEMINI: {"contents": [{"role": "user", "parts": [{"text": "x"}]}], "tools": [declared]},
    }
    for path, body in made.items():
        if required:
            body["toolConfig" if path == GEMINI else "tool_choice"] = CHOICES[path]
    return {path: json.dumps(body).encode() for path, body in made.items()}


@pytest.mark.parametrize("schema", SLOW)
@pytest.mark.parametrize("required", [True, False])
def test_a_tool_with_a_slow_one_can_be_offered_and_not_required(schema: str, required: bool) -> None:
    for path, body in tool_bodies(SLOW[schema], required=required).items():
        assert read(path, body).became is (Became.REFUSED if required else Became.READ), path


@pytest.mark.parametrize("schema", QUICK)
def test_a_tool_with_another_can_be_required(schema: str) -> None:
    for path, body in tool_bodies(QUICK[schema], required=True).items():
        assert read(path, body).became is Became.READ, path


@pytest.mark.parametrize(
    ("strict", "became"),
    [
        ('"strict": true', Became.REFUSED),
        ('"\\u0073trict": true', Became.REFUSED),
        ('"strict": false', Became.READ),
        ('"description": "\\"strict\\": true"', Became.READ),
    ],
)
def test_a_strict_tool_is_compiled_though_no_call_is_required(strict: str, became: Became) -> None:
    body = tool_bodies(SLOW["a long text"], required=False)[CHAT].decode()
    assert read(CHAT, body.replace('"name": "a"', f'"name": "a", {strict}').encode()).became is became


def test_names_in_escapes_are_read() -> None:
    for path, body in tool_bodies(SLOW["many patterns"], required=True).items():
        assert read(path, body.replace(b'"pattern"', b'"p\\u0061ttern"')).became is Became.REFUSED, path


def test_many_values_are_not_looked_through() -> None:
    properties_of_all = {f"p{number}": STRING for number in range(6000)} | {"p": STRING | {"maxLength": 1}}
    for path, body in tool_bodies({"type": "object", "properties": properties_of_all}, required=True).items():
        assert read(path, body).became in {Became.REFUSED, Became.HANDED_OVER}, path
