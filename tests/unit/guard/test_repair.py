"""The rules of repair: what each puts back, and that nothing is touched where nothing is wrong."""

import copy
from typing import Any

import pytest

from warmroute.guard.causes import Cause
from warmroute.guard.memory import Memory
from warmroute.guard.repair import SAFE, Repaired, Rule, repaired, rules_of
from warmroute_lab.recordings import load_recordings

from .prompts import BEFORE, MESSAGES, NEXT, SYSTEM_TEXT, TOOLS, tool, with_message, with_system
from .test_structural import NEXT_TURN, anthropic, appended, reordered

TODAY, TOMORROW = "Fri Nov 20 2026", "Sat Nov 21 2026"


def second(before: dict[str, Any], now: dict[str, Any], *rules: Rule) -> Repaired:
    """The second request of a session, after the rules; neither of the two objects may have changed."""
    memory = Memory()
    untouched = copy.deepcopy((before, now))
    memory.keep("s", repaired(memory, "s", before, rules).reading)
    found = repaired(memory, "s", now, rules)
    memory.keep("s", found.reading)
    assert (before, now) == untouched
    return found


WEB = tool("web")
CASES: list[tuple[Rule, dict[str, Any], dict[str, Any]]] = [
    (Rule.SORT_TOOLS, {**NEXT_TURN, "tools": TOOLS[::-1]}, NEXT_TURN),
    (Rule.CANONICAL_SCHEMAS, {**NEXT_TURN, "tools": [TOOLS[0], reordered(TOOLS[1]), TOOLS[2]]}, NEXT_TURN),
    (Rule.FREEZE_DATE, with_system(TODAY, TOMORROW), NEXT_TURN),
    (Rule.KEEP_REASONING, with_message(2, reasoning_content=None), NEXT_TURN),
    (Rule.APPEND_ONLY_TOOLS, {**NEXT_TURN, "tools": [TOOLS[0], TOOLS[2]]}, NEXT_TURN),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "now", "sent"), CASES, ids=[case[0] for case in CASES])
def test_a_rule_sends_what_was_sent_before(rule: Rule, now: dict[str, Any], sent: dict[str, Any]) -> None:
    found = second(BEFORE, now, rule)
    assert found.reading.broken is None
    assert repr(found.body["tools"]) == repr(sent["tools"])
    assert found.body["messages"] == sent["messages"]
    assert [use.rule for use in found.uses] == [rule]


@pytest.mark.parametrize(("rule", "now", "sent"), CASES, ids=[case[0] for case in CASES])
def test_without_its_rule_nothing_is_touched(rule: Rule, now: dict[str, Any], sent: dict[str, Any]) -> None:
    others = [other for other in Rule if other is not rule and other is not Rule.MOVE_VOLATILE]
    found = second(BEFORE, now, *others)
    assert found.body is now
    assert found.reading.broken is not None
    assert not found.uses
    assert now != sent or repr(now) != repr(sent)


def test_new_tools_come_behind_the_known_ones() -> None:
    found = second(BEFORE, {**NEXT_TURN, "tools": [WEB, *TOOLS[::-1]]}, Rule.SORT_TOOLS)
    assert found.body["tools"] == [*TOOLS, WEB]
    assert found.reading.broken is not None  # a new tool stands in front of the messages in any order
    assert found.reading.broken.where == "tools[3] 'web'"


def test_a_tool_whose_definition_changed_is_sent_as_it_is_now() -> None:
    changed = tool("bash", "other")
    found = second(BEFORE, {**NEXT_TURN, "tools": [changed, WEB, TOOLS[1]]}, Rule.APPEND_ONLY_TOOLS)
    assert found.body["tools"] == [changed, TOOLS[1], TOOLS[2], WEB]
    assert found.reading.broken is not None
    assert [use.cause for use in found.uses] == [Cause.TOOL_SET]


A, CHANGED, B = ({"type": "mcp", "server_label": label, "server_url": url} for label, url in ("aA", "aX", "bB"))
X, Y, Z = ({"type": "mcp", "server_url": url} for url in "XYZ")


@pytest.mark.parametrize(
    ("sent", "now", "kept"),
    [
        ([A, B, WEB], [B, WEB], [A, B, WEB]),
        ([A, B, WEB], [CHANGED, B], [CHANGED, B, WEB]),
        ([X, Y], [Y, Z, X], [X, Y, Z]),
        ([X, Y], [Z], [Z]),
    ],
)
def test_tools_that_share_a_name_are_told_apart(sent: list[Any], now: list[Any], kept: list[Any]) -> None:
    found = second({**BEFORE, "tools": sent}, {**NEXT_TURN, "tools": now}, Rule.APPEND_ONLY_TOOLS, Rule.SORT_TOOLS)
    assert found.body["tools"] == kept


def test_a_time_of_day_is_not_frozen() -> None:
    before = with_system(TODAY, "2026-11-20 09:15")
    now = with_system(TODAY, "2026-11-20 09:16")
    assert second(before, now, Rule.FREEZE_DATE).body is now


@pytest.mark.parametrize("at", [1, 5])
@pytest.mark.parametrize(("answers", "sent"), [(0, TOMORROW), (1, TODAY)])
def test_a_date_in_a_message_is_frozen_only_if_its_answer_follows(at: int, answers: int, sent: str) -> None:
    bodies = [with_message(at, content=f"Read the log of {day}.") for day in (TODAY, TOMORROW)]
    before, now = ({**body, "messages": body["messages"][: at + 1 + answers]} for body in bodies)
    found = second(before, now, *SAFE)
    assert found.body["messages"][at]["content"] == f"Read the log of {sent}."


def test_a_date_in_a_block_of_anthropics_system_prompt_is_frozen() -> None:
    before = anthropic({}) | {"system": [{"type": "text", "text": "You are brief."}, {"type": "text", "text": TODAY}]}
    now = appended(before, NEXT) | {"system": [before["system"][0], {"type": "text", "text": TOMORROW}]}
    found = second(before, now, Rule.FREEZE_DATE)
    assert found.body["system"] == before["system"]
    assert found.reading.broken is None


def test_a_volatile_line_moves_to_the_newest_user_message_and_stays_there() -> None:
    memory, rules = Memory(), (Rule.MOVE_VOLATILE,)
    now = with_system("2b1a8f33", "77777777")
    answer = {"role": "assistant", "content": "Well."}
    later = {**now, "messages": [*now["messages"], answer, {"role": "user", "content": "Bye."}]}
    sent = []
    for body in (BEFORE, now, later):
        found = repaired(memory, "s", body, rules)
        memory.keep("s", found.reading)
        assert found.reading.broken is None
        sent.append(found.body["messages"])
    assert sent[1][0]["content"] == sent[2][0]["content"] == SYSTEM_TEXT
    moved = f"{NEXT['content']}\n\nNow:\nSession: 3f2b8c9e-1d4a-4f6b-9a7c-0e5d77777777"
    assert sent[1][-1]["content"] == sent[2][-3]["content"] == moved
    assert "77777777" in sent[2][-1]["content"]


def test_more_than_four_marks_become_four_that_stay() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    texts = [{"role": "user", "content": [{"type": "text", "text": str(at), **mark}]} for at in range(6)]
    body = {"model": "m", "tools": [{"name": "a", **mark}], "system": [{"type": "text", "text": "s", **mark}]}
    found = second({**body, "messages": texts[:1]}, {**body, "messages": texts}, Rule.ANTHROPIC_BREAKPOINTS)
    marked = [at for at, message in enumerate(found.body["messages"]) if "cache_control" in message["content"][0]]
    assert marked == [4, 5]
    assert "cache_control" in found.body["tools"][0]
    assert "cache_control" in found.body["system"][0]
    assert [use.cause for use in found.uses] == [Cause.CACHE_MARKS]


@pytest.mark.parametrize("recording", load_recordings(), ids=lambda recording: recording.name)
def test_all_rules_leave_recordings_alone_that_only_append(recording: Any) -> None:
    memory = Memory()
    for request in recording.requests:
        found = repaired(memory, "s", request.body, tuple(Rule))
        memory.keep("s", found.reading)
        if not found.uses:
            assert found.body is request.body
        assert recording.name in ("aider", "claude", "oc_date", "oc_prune") or not found.uses


def test_the_date_line_of_opencode_is_frozen() -> None:
    """The recording whose prose is masked, with the date line as the program wrote it."""
    [recording] = [found for found in load_recordings() if found.name == "oc_date"]
    memory, broken = Memory(), []
    for request in recording.requests:
        first, *rest = request.body["messages"]
        text = first["content"].replace("Mabiz's pose: Bif Vog 21 2026", "Today's date: Sat Nov 21 2026")
        text = text.replace("Mabiz's pose: Pub Vog 20 2026", "Today's date: Fri Nov 20 2026")
        body = {**request.body, "messages": [{**first, "content": text}, *rest]}
        plain = repaired(memory, "plain", body, ())
        memory.keep("plain", plain.reading)
        safe = repaired(memory, "safe", body, SAFE)
        memory.keep("safe", safe.reading)
        assert safe.reading.broken is None
        if plain.reading.broken is not None:
            broken.append((request.n, plain.reading.broken.cause, [use.rule for use in safe.uses]))
    assert [entry for entry in broken if entry[0] == 5] == [(5, Cause.DATE, [Rule.FREEZE_DATE])]


def test_rules_are_named() -> None:
    assert rules_of("safe") == SAFE
    assert rules_of(["safe", "keep-reasoning", "sort-tools"]) == (*SAFE, Rule.KEEP_REASONING)
    assert rules_of(None) == ()
    with pytest.raises(ValueError, match="'sort' is not a rule of repair; there are: safe, sort-tools"):
        rules_of("sort")


def test_a_long_dropped_reasoning_is_put_back_in_all_messages() -> None:
    dropped = [{name: value for name, value in message.items() if name != "reasoning_content"} for message in MESSAGES]
    found = second(BEFORE, {**BEFORE, "messages": [*dropped, NEXT]}, Rule.KEEP_REASONING)
    assert found.body["messages"] == NEXT_TURN["messages"]
