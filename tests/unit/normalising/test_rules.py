"""Each rule takes out its text, wherever its program puts it, and nothing else."""

import json
from typing import Any

import msgspec
import pytest

from warmroute_proxy.normalising.chat_messages import cleaned
from warmroute_proxy.normalising.rules import NAMES
from warmroute_proxy.normalising.texts import Texts

ALL = frozenset(NAMES)
LINE = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli; cch=36ee5;"
COUNTER = "<total_tokens>14982321 tokens left</total_tokens>"

CHANGED = [
    ("billing_line", "system", LINE, None),
    ("billing_line", "system", f"{LINE}\nYou are an agent.", "You are an agent."),
    ("token_counter", "system", COUNTER, None),
    ("token_counter", "user", f"<system-reminder>\n{COUNTER}\n</system-reminder>", None),
    ("date_line", "system", "<env>\n  Today's date: Sat Nov 21 2026\n</env>", "<env>\n</env>"),
    ("date_line", "user", "# currentDate\nToday's date is 2026-11-21.\n\nGo on.", "# currentDate\n\nGo on."),
    ("date_line", "user", "Today's date is Saturday, November 21, 2026 (by the locale).\nOS: x", "OS: x"),
    ("date_tag", "user", "<cwd>/a</cwd>\n  <current_date>2026-11-21</current_date>\n", "<cwd>/a</cwd>\n"),
]  # fmt: skip
KEPT = [
    ("user", LINE),
    ("assistant", COUNTER),
    ("tool", COUNTER),
    ("system", f"The line `{LINE}` tells Anthropic whom to bill."),
    ("user", f"What does {COUNTER} mean?"),
    ("user", "What is today's date?"),
    ("user", "Today's date is 2026-12-01. Please count the working days until the end of the fiscal year 2027."),
    ("user", "Today's date is 2026-12-01. Plan for 2027."),
    ("system", "Say Today's date is unknown."),
    ("system", ""),
]


def raw(text: str, escaped: str = "") -> msgspec.Raw:
    """`escaped`: characters that an encoder writes as their code."""
    return msgspec.Raw(json.dumps(text).translate({ord(each): f"\\u{ord(each):04x}" for each in escaped}).encode())


@pytest.mark.parametrize("escaped", ["", "<>&'"])
@pytest.mark.parametrize(("rule", "role", "text", "left"), CHANGED)
def test_a_rule_takes_out_its_text(rule: str, role: str, text: str, left: str | None, escaped: str) -> None:
    texts = Texts(ALL)
    found = texts.clean(raw(text, escaped), role)
    assert (None if found is None else json.loads(bytes(found))) == left
    assert texts.names() == ((rule,), ())


@pytest.mark.parametrize(("rule", "role", "text", "left"), CHANGED)
def test_a_rule_that_is_off_is_named_and_does_nothing(rule: str, role: str, text: str, left: str | None) -> None:
    texts, given = Texts(ALL - {rule}), raw(text)
    assert texts.clean(given, role) is given
    assert texts.names() == ((), (rule,))


@pytest.mark.parametrize(("role", "text"), KEPT)
def test_another_text_stays_as_it_is(role: str, text: str) -> None:
    texts, given = Texts(ALL), raw(text)
    assert texts.clean(given, role) is given
    assert texts.names() == ((), ())


def test_the_messages_of_a_chat() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "text", "text": LINE}, {"type": "text", "text": "Be short."}]},
        {"role": "user", "content": "hi", "name": "u"},
        {"role": "system", "content": COUNTER},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": COUNTER}]},
    ]
    texts = Texts(ALL)
    found = cleaned(msgspec.Raw(json.dumps(messages).encode()), texts)
    assert found is not None
    assert json.loads(found) == [{**messages[0], "content": messages[0]["content"][1:]}, messages[1], messages[3]]
    assert texts.names() == (("billing_line", "token_counter"), ())


@pytest.mark.parametrize("odd", ["3", '"a"', "[3]", '[{"role":3,"content":"a"}]', '[{"content":3}]', "[", "[[[["])
def test_what_is_no_list_of_messages_is_left_to_others(odd: str) -> None:
    assert cleaned(msgspec.Raw(odd.encode()), Texts(ALL)) is None
