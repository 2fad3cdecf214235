"""What is kept of sessions: bounds, saving and loading, forks, and what digests alone can tell."""

import json
from typing import Any

import pytest

from warmroute.guard import memory as module
from warmroute.guard.causes import Cause
from warmroute.guard.memory import Memory
from warmroute.guard.repair import Rule, repaired

from .prompts import BEFORE, MESSAGES, NEXT, TOOLS, with_message, with_system
from .test_structural import NEXT_TURN, appended

TODAY, TOMORROW = "Fri Nov 20 2026", "Sat Nov 21 2026"


def saved_and_loaded(memory: Memory) -> Memory:
    twin = Memory()
    twin.load("s", json.loads(json.dumps(memory.save("s"))))
    return twin


def after(body: dict[str, Any]) -> Memory:
    memory = Memory()
    memory.keep("s", memory.read("s", body))
    return memory


def test_a_saved_session_goes_on_tomorrow() -> None:
    memory = saved_and_loaded(after(BEFORE))
    reading = memory.read("s", NEXT_TURN)
    assert reading.before is not None
    assert reading.broken is None


@pytest.mark.parametrize(
    ("now", "cause", "where"),
    [
        (with_system(TODAY, TOMORROW), Cause.DATE, "messages[0] (system)"),
        ({**NEXT_TURN, "tools": TOOLS[::-1]}, Cause.TOOL_ORDER, "tools[0] 'read'"),
        (with_message(3, content="[cleared]"), Cause.HISTORY_PRUNED, "messages[3] (tool)"),
        (with_message(1, content="Another."), Cause.HISTORY_EDITED, "messages[1] (user)"),
        ({**NEXT_TURN, "reasoning_effort": "low"}, Cause.SETTINGS, "reasoning_effort"),
    ],
)
def test_digests_alone_tell_what_changed(now: dict[str, Any], cause: Cause, where: str) -> None:
    found = saved_and_loaded(after(BEFORE)).read("s", now).broken
    assert found is not None
    assert (found.cause, found.where) == (cause, where)


def test_a_date_is_frozen_in_a_session_that_was_loaded() -> None:
    memory = saved_and_loaded(after(BEFORE))
    found = repaired(memory, "s", with_system(TODAY, TOMORROW), (Rule.FREEZE_DATE,))
    assert found.reading.broken is None
    assert found.body["messages"] == NEXT_TURN["messages"]


def test_a_saved_session_has_no_text_but_dates() -> None:
    text = json.dumps(after(BEFORE).save("s"))
    assert TODAY in text
    assert not any(words in text for words in ("Fix the test", "coding agent", "def a()", "/home/dev"))


@pytest.mark.parametrize(
    "saved",
    [{}, {"v": 2}, {"v": 1}, {"v": 1, "bytes_per_token": "x", "days": [], "moved": {}, "prompts": []},
     {"v": 1, "bytes_per_token": 4, "days": [], "moved": {}, "prompts": [{}]}],
)  # fmt: skip
def test_what_was_not_saved_is_not_loaded(saved: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a saved session"):
        Memory().load("s", saved)


def test_a_fork_shares_the_prefix_and_goes_its_own_way() -> None:
    memory = after(BEFORE)
    memory.copy("s", "fork")
    for key, text in (("s", "Left."), ("fork", "Right.")):
        body = appended(BEFORE, {"role": "user", "content": text})
        reading = memory.read(key, body)
        assert reading.before is not None
        assert reading.broken is None
        memory.keep(key, reading)


def test_sessions_and_their_prompts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    memory = Memory()
    for number in range(5):
        memory.keep(str(number), memory.read(str(number), BEFORE))
    assert [memory.known(str(number)) is not None for number in range(5)] == [False, False, True, True, True]
    for number in range(20):
        body = {"model": "m", "messages": [{"role": "user", "content": f"sample {number}"}]}
        memory.keep("4", memory.read("4", body))
    kept = memory.known("4")
    assert kept is not None
    assert len(kept.prompts) == module.MAX_PROMPTS


def test_text_is_bounded_and_its_digests_stay() -> None:
    memory = Memory(max_text_bytes=10_000)
    for number in range(10):
        memory.keep(str(number), memory.read(str(number), BEFORE))
        assert memory.text_bytes <= 10_000
    oldest, newest = memory.known("0"), memory.known("9")
    assert oldest is not None
    assert newest is not None
    assert not oldest.prompts[0].has_text
    assert newest.prompts[0].has_text
    assert memory.read("0", NEXT_TURN).broken is None
    changed = memory.read("0", with_system(TODAY, TOMORROW)).broken
    assert changed is not None
    assert changed.cause is Cause.DATE


def test_a_session_beyond_the_bound_keeps_digests_and_goes_on() -> None:
    memory = Memory(max_text_bytes=100)
    for messages in (MESSAGES[:2], MESSAGES[:5], [*MESSAGES, NEXT]):
        reading = memory.read("s", {**BEFORE, "messages": messages})
        assert reading.broken is None
        memory.keep("s", reading)
        assert memory.text_bytes == reading.prompt.size, "the newest prompt is kept, and counts"
    small = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    memory.keep("other", memory.read("other", small))
    assert memory.text_bytes <= 100


def test_the_callers_objects_may_change_afterwards() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]}
    memory = after(body)
    body["messages"][0]["content"] = "changed"  # type: ignore[index]
    found = memory.read("s", appended(body, NEXT)).broken
    assert found is not None
    assert found.where == "messages[0] (user)"
