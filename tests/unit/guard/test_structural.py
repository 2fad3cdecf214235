"""Structural classes: what changed in the shape of a prompt, found by one request after another."""

from typing import Any

import pytest

from warmroute.guard.causes import Cause

from .prompts import BEFORE, CALL, IMAGE, MESSAGES, NEXT, TOOLS, broken, read_after, tool, with_message

SUMMARY = {"role": "user", "content": "What did we do so far? Summary: the test is fixed."}


def reordered(tool_: dict[str, Any]) -> dict[str, Any]:
    function = tool_["function"]
    return {**tool_, "function": {**function, "parameters": dict(reversed(function["parameters"].items()))}}


def anthropic(arguments: dict[str, Any]) -> dict[str, Any]:
    use = {"type": "tool_use", "id": "t1", "name": "read", "input": arguments}
    messages = [{"role": "user", "content": "Fix it."}, {"role": "assistant", "content": [use]}]
    return {"model": "m", "system": "You are brief.", "messages": messages}


def appended(body: dict[str, Any], *messages: dict[str, Any]) -> dict[str, Any]:
    return {**body, "messages": [*body["messages"], *messages]}


NEXT_TURN = appended(BEFORE, NEXT)
CASES: list[tuple[Cause, str, dict[str, Any]]] = [
    (Cause.TOOL_ORDER, "tools[0] 'read'", {**NEXT_TURN, "tools": TOOLS[::-1]}),
    (Cause.TOOL_SET, "tools[1] 'read'", {**NEXT_TURN, "tools": [TOOLS[0], TOOLS[2]]}),
    (Cause.TOOL_SET, "tools[3] 'web'", {**NEXT_TURN, "tools": [*TOOLS, tool("web")]}),
    (Cause.TOOL_SET, "tools[0] 'bash'", {**NEXT_TURN, "tool_choice": "none"}),
    (Cause.TOOL_SCHEMA, "tools[1] 'edit'", {**NEXT_TURN, "tools": [TOOLS[0], tool("edit", "other"), TOOLS[2]]}),
    (Cause.KEY_ORDER, "tools[1] 'edit'", {**NEXT_TURN, "tools": [TOOLS[0], reordered(TOOLS[1]), TOOLS[2]]}),
    (Cause.HISTORY_EDITED, "messages[1] (user)", with_message(1, content="Repair the other test.")),
    (Cause.HISTORY_PRUNED, "messages[3] (tool)", with_message(3, content="[Old tool result content cleared]")),
    (Cause.HISTORY_PRUNED, "messages[1] (assistant)", {**BEFORE, "messages": [MESSAGES[0], *MESSAGES[4:], NEXT]}),
    (Cause.COMPACTION, "messages[1] (user)", {**BEFORE, "messages": [MESSAGES[0], SUMMARY, *MESSAGES[5:], NEXT]}),
    (Cause.COMPACTION, "messages[1] (user)", {**BEFORE, "messages": [MESSAGES[0], SUMMARY]}),
    (Cause.REASONING_DROPPED, "messages[2] (assistant)", with_message(2, reasoning_content=None)),
    (Cause.CONTENT_SHAPE, "messages[6] (assistant)", with_message(6, content=[
        {"type": "text", "text": "A picture "}, {"type": "text", "text": "of a shop."}])),
    (Cause.IMAGE_RESIGNED, "messages[5] (user)", with_message(5, content=[
        {"type": "text", "text": "And this?"},
        {"type": "image_url", "image_url": {"url": IMAGE.replace("111", "222")}}])),
    (Cause.SETTINGS, "reasoning_effort", {**NEXT_TURN, "reasoning_effort": "high"}),
    (Cause.MODEL, "model", {**NEXT_TURN, "model": "other"}),
    (Cause.SYSTEM_IN_HISTORY, "messages[7] (system)", appended(BEFORE, {"role": "system", "content": "Go on."}, NEXT)),
    (Cause.SYSTEM, "messages[0] (system)", with_message(0, content=MESSAGES[0]["content"].replace("brief", "polite"))),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "where", "now"), CASES, ids=[f"{cause} {where}" for cause, where, _ in CASES])
def test_the_first_change_is_named_with_its_cause(cause: Cause, where: str, now: dict[str, Any]) -> None:
    found = broken(BEFORE, now)
    assert (found.cause, found.where) == (cause, where)
    assert found.lost_bytes > 0


def test_the_key_order_of_arguments_counts() -> None:
    before = anthropic({"path": "a.py", "lines": 3})
    found = broken(before, appended(anthropic({"lines": 3, "path": "a.py"}), NEXT))
    assert found.cause is Cause.KEY_ORDER


def test_a_reasoning_item_of_the_responses_api_that_is_missing_is_found() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Fix it."},
        {"type": "reasoning", "id": "rs_1", "encrypted_content": "xyz", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"},
    ]
    before = {"model": "m", "instructions": "You are brief.", "input": items}
    found = broken(before, {**before, "input": [items[0], items[2], {"type": "function_call_output", "output": "1"}]})
    assert (found.cause, found.where) == (Cause.REASONING_DROPPED, "input[1] (function_call)")


CACHED = {"cache_control": {"type": "ephemeral"}}
HARMLESS: list[dict[str, Any]] = [
    NEXT_TURN,
    BEFORE,
    {**NEXT_TURN, "temperature": 0.5, "stream": True, "metadata": {"turn": 4}},
    with_message(1, content=[{"type": "text", "text": "Fix the test.", **CACHED}]),
    {**NEXT_TURN, "messages": [dict(reversed(message.items())) for message in NEXT_TURN["messages"]]},
    with_message(4, id="msg_2", status="completed"),
    {**BEFORE, "messages": MESSAGES[:4]},
    with_message(2, tool_calls=[CALL], refusal=None, audio=None),
]


@pytest.mark.parametrize("now", HARMLESS)
def test_what_a_template_writes_alike_is_no_break(now: dict[str, Any]) -> None:
    assert read_after(BEFORE, now).broken is None


@pytest.mark.parametrize(
    "now",
    [
        {"model": "m", "messages": [{"role": "system", "content": "You write titles."}, MESSAGES[1]]},
        {**BEFORE, "messages": [MESSAGES[0], {"role": "user", "content": "Something else altogether."}]},
        {**BEFORE, "tools": [tool("web")], "messages": [{"role": "system", "content": "You search."}, NEXT]},
    ],
    ids=["title", "next conversation", "sub-agent"],
)
def test_another_prompt_of_the_session_begins_a_lineage_of_its_own(now: dict[str, Any]) -> None:
    reading = read_after(BEFORE, now)
    assert (reading.before, reading.broken) == (None, None)


def test_a_question_that_differs_in_its_date_is_another_conversation() -> None:
    before, now = (
        {**BEFORE, "messages": [MESSAGES[0], {"role": "user", "content": f"Read the log of {day}."}]}
        for day in ("2026-11-20", "2026-11-21")
    )
    assert read_after(before, now).broken is None
