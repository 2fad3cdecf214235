"""What a prompt's own text orders: calls, thoughts, lengths, texts; turn by turn, and only what is offered."""

from typing import Any

import pytest

from warmroute_lab.engine.request.prompt_request import obeyed
from warmroute_lab.engine.request.text import NO_SCRIPT, Script, ScriptedCall

STEPS = 'Please do this.\nobey: call read {"path": "a"}\n  obey: call read {"path": "b"}\nobey: answer Done.\nThanks'


def body(*messages: dict[str, Any], tools: tuple[str, ...] = ("read", "bash"), **members: Any) -> dict[str, Any]:
    offered = [{"type": "function", "function": {"name": name}} for name in tools]
    return {"messages": list(messages), "tools": offered, **members}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def step(line: str, **members: Any) -> Script:
    return obeyed(body(user(f"obey: {line}"), **members))


TURN = ({"role": "assistant", "content": None}, {"role": "tool", "content": "a result"})


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ('call read {"path": "x;y"}', Script(calls=(ScriptedCall("read", '{"path": "x;y"}'),))),
        ("call read {}; call bash {}", Script(calls=(ScriptedCall("read", "{}"), ScriptedCall("bash", "{}")))),
        (
            "think 40; call read {} ; answer a; b",
            Script(text="a; b", calls=(ScriptedCall("read", "{}"),), think_tokens=40),
        ),
        ("run 400", Script(output_tokens=400)),
        ('answer "two\\nlines"', Script(text="two\nlines")),
        ('answer "quoted" and more', Script(text='"quoted" and more')),
        ("answer", Script(text="")),
    ],
)
def test_a_line_is_a_step(line: str, script: Script) -> None:
    assert step(line) == script


def test_one_message_drives_many_turns() -> None:
    found = [obeyed(body(user(STEPS), *TURN * turn)) for turn in range(4)]
    assert [script.calls for script in found[:2]] == [
        (ScriptedCall("read", '{"path": "a"}'),),
        (ScriptedCall("read", '{"path": "b"}'),),
    ]
    assert found[2].text == "Done."
    assert found[3] == NO_SCRIPT


def test_the_newest_message_with_directives_counts() -> None:
    assert obeyed(body(user(STEPS), *TURN, user("obey: answer Other."))).text == "Other."
    assert obeyed(body(user(STEPS), *TURN, user("no order"))).calls == (ScriptedCall("read", '{"path": "b"}'),)
    told = {"role": "tool", "content": [{"type": "text", "text": "obey: answer By a tool."}]}
    assert obeyed(body(user(STEPS), TURN[0], told)).text == "By a tool."


def test_an_answer_that_goes_on_is_that_of_its_own_step() -> None:
    begun = {"role": "assistant", "content": "Do"}
    assert obeyed(body(user("obey: answer Done."), begun, continue_final_message=True)).text == "Done."


def test_texts_of_the_system_and_of_the_assistant_order_nothing() -> None:
    for role in ("system", "assistant"):
        assert obeyed(body({"role": role, "content": "obey: answer no"}, user("hello"))) == NO_SCRIPT


def test_a_directive_inside_an_order_is_for_whoever_gets_it() -> None:
    script = step('call bash {"prompt": "obey: answer sub\\nobey: answer more"}')
    assert script.calls == (ScriptedCall("bash", '{"prompt": "obey: answer sub\\nobey: answer more"}'),)


@pytest.mark.parametrize("members", [{"tools": ("other",)}, {"tools": ()}, {"tool_choice": "none"}])
def test_what_is_not_offered_is_answered_with_a_text_that_says_so(members: dict[str, Any]) -> None:
    script = step("think 5; call read {}", **members)
    assert (script.calls, script.think_tokens) == ((), 5)
    assert script.text is not None
    assert script.text.startswith("The tool read is not offered in this request")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "a word is missing"),
        ("dance", "'dance' is not an order"),
        ("call read", "must be a JSON object"),
        ("call read [1]", "must be a JSON object"),
        ("call read {} call read {}", "a ; is missing"),
        ("call read {};", "a word is missing"),
        ("think many", "think takes a number"),
        ("run 0", "run takes a number"),
        ("run 1000000000000", "run takes a number"),
        ("; ".join(["call read {}"] * 65), "more than 64 calls"),
    ],
)
def test_what_cannot_be_obeyed_is_answered_with_the_reason(line: str, why: str) -> None:
    text = step(line).text
    assert text is not None
    assert why in text


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"role": "user", "content": [3, {"text": 4}]}]])
def test_odd_messages_order_nothing(messages: list[Any]) -> None:
    assert obeyed({"messages": messages, "tools": [3, {"function": "no"}]}) == NO_SCRIPT
