"""Text classes: what is new in a text each time, found in the system prompt and in messages."""

import pytest

from warmroute.guard.causes import Cause

from .prompts import BEFORE, SYSTEM_TEXT, broken, with_message, with_system

DAY = "Fri Nov 20 2026"
ID = "3f2b8c9e-1d4a-4f6b-9a7c-0e5d2b1a8f33"
CASES: list[tuple[Cause, int, str, str]] = [
    (Cause.DATE, 6, DAY, "Sat Nov 21 2026"),
    (Cause.DATE, 6, DAY, "Saturday, November 21st, 2026"),
    (Cause.DATE, 6, DAY, "2026-11-21T09:30:00Z"),
    (Cause.DATE, 6, DAY, "21/11/2026 09:30 AM"),
    (Cause.NONCE, 7, ID, "9a7c8c9e-1d4a-4f6b-9a7c-0e5d2b1a8f33"),
    (Cause.MEMORY_FILE, 11, "- run the tests with pytest", "- run the tests with tox\n- and the linter"),
    (Cause.WORKING_DIRECTORY, 5, "/home/dev/shop\nToday", "/home/dev/shop/backend\nToday"),
]


@pytest.mark.parametrize(("cause", "line", "old", "new"), CASES, ids=[f"{case[0]} {case[3][:20]}" for case in CASES])
def test_the_class_of_a_changed_line_is_named_with_its_number(cause: Cause, line: int, old: str, new: str) -> None:
    found = broken(BEFORE, with_system(old, new))
    assert (found.cause, found.where, found.line) == (cause, "messages[0] (system)", line)


@pytest.mark.parametrize(
    ("cause", "before", "now"),
    [
        (Cause.TOKEN_COUNTER, "Context: 12,345 of 200,000 tokens used", "Context: 15,999 of 200,000 tokens used"),
        (Cause.TOKEN_COUNTER, "tokens left: 90%", "tokens left: 75%"),
        (Cause.DATE, "It is 09:15.", "It is 09:16."),
        (Cause.NONCE, "cch=1f3a9;", "cch=77b01;"),
        (Cause.NONCE, "request req_8sJd92kQpx", "request req_0aaB71zzTT"),
        (Cause.HISTORY_EDITED, "All is well.", "All is lost."),
    ],
)
def test_messages_have_the_same_classes(cause: Cause, before: str, now: str) -> None:
    found = broken(with_message(4, content=f"Done.\n{before}"), with_message(4, content=f"Done.\n{now}"))
    assert (found.cause, found.line) == (cause, 2)


def test_a_reminder_that_is_gone_is_a_counter() -> None:
    reminder = "It is fixed.\n<system-reminder>Token usage: 51200/200000; 148800 tokens left</system-reminder>"
    found = broken(with_message(4, content=reminder), BEFORE | {"messages": with_message(4)["messages"]})
    assert found.cause is Cause.TOKEN_COUNTER


def test_two_changes_in_one_line_have_the_class_of_the_first_mask() -> None:
    found = broken(BEFORE, with_system(DAY + "\nSession: " + ID, "Sat Nov 21 2026\nSession: " + ID.replace("3f", "4a")))
    assert found.cause is Cause.DATE


def test_what_stands_in_front_of_the_line_is_kept() -> None:
    found = broken(BEFORE, with_system(DAY, "Sat Nov 21 2026"))
    tools_and_front = found.kept_bytes
    assert tools_and_front > SYSTEM_TEXT.index(DAY)
