"""The planned answer: deterministic, as long as asked, and scripted when a script says so."""

from typing import Any

import pytest

from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.request import text
from warmroute_lab.engine.request.text import CONTENT, REASONING, Script

SEED = text.seed_digest(1, b"a prompt", 0)


def plan(seed: bytes = SEED, **options: Any) -> text.ScriptedAnswer:
    defaults: dict[str, Any] = {"limit": 10_000, "script": Script(), "stops": (), "thinking": False}
    return text.answer(seed, **{**defaults, "ignore_eos": False, **options})


def test_the_same_prompt_gets_the_same_text_and_another_one_another() -> None:
    assert plan() == plan()
    assert plan().text(CONTENT, 99) != plan(text.seed_digest(1, b"another", 0)).text(CONTENT, 99)
    assert plan().text(CONTENT, 99) != plan(text.seed_digest(2, b"a prompt", 0)).text(CONTENT, 99)
    assert plan().text(CONTENT, 99) != plan(text.seed_digest(1, b"a prompt", 1)).text(CONTENT, 99)


def test_the_default_length_is_between_16_and_48_tokens() -> None:
    lengths = {len(plan(text.seed_digest(1, b"%d" % i, 0)).pieces) for i in range(500)}
    assert min(lengths) == 16
    assert max(lengths) == 48


def test_a_stop_string_ends_the_text_before_it_and_is_named() -> None:
    script = Script(text="one two three four five six")
    answer = plan(script=script, stops=("never", "thr", "four"))
    assert answer.text(CONTENT, 99) == "one two "
    assert (answer.finish_reason, answer.matched_stop) == ("stop", "thr")
    assert len(answer.pieces) == 3  # "one ", "two ", "thr": the tokens it took to see it


def test_a_stop_string_beyond_the_limit_is_not_seen() -> None:
    answer = plan(script=Script(text="one two three four"), stops=("four",), limit=2)
    assert (answer.text(CONTENT, 99), answer.finish_reason) == ("one two ", "length")


def test_reasoning_comes_first_and_is_part_of_the_length() -> None:
    answer = plan(script=Script(output_tokens=30), thinking=True)
    kinds = [piece.kind for piece in answer.pieces]
    assert len(kinds) == 30
    assert kinds == [REASONING] * 10 + [CONTENT] * 20
    assert answer.reasoning_tokens(99) == 10


def test_scripted_tool_calls_come_back_whole_and_end_so() -> None:
    calls = (text.ScriptedCall("read", '{"path":"x"}'), text.ScriptedCall("list", "{}"))
    answer = plan(script=Script(text="ok", calls=calls))
    assert answer.calls(999) == list(calls)
    assert answer.text(CONTENT, 999) == "ok"
    assert answer.finish_reason == "tool_calls"


def test_text_outside_ascii_survives_being_cut_into_tokens() -> None:
    for original in ("äöü€😀" * 7, "a😀b", "€"):
        assert plan(script=Script(text=original)).text(CONTENT, 999) == original


def script_of(script: Any, turns: int = 0) -> Script:
    messages = [{"role": "user"}] + [{"role": "assistant"}] * turns
    return text.read_script({"metadata": {"script": script}, "messages": messages})


def test_a_list_of_steps_is_indexed_by_the_assistant_messages() -> None:
    steps = [{"text": "a"}, None, {"text": "c"}]
    assert [script_of(steps, turns).text for turns in range(4)] == ["a", None, "c", None]


def test_values_may_be_json_strings_as_openai_metadata_are() -> None:
    script = script_of('{"tool_calls":[{"name":"read","arguments":{"path":"x"}}],"output_tokens":"7"}')
    assert script.calls == (text.ScriptedCall("read", '{"path":"x"}'),)
    assert script.output_tokens == 7


@pytest.mark.parametrize("script", ["{", "[1]", {"tool_calls": [{}]}, {"text": 3}, {"output_tokens": "many"}, 5])
def test_a_broken_script_is_refused(script: Any) -> None:
    with pytest.raises(Refusal) as refusal:
        script_of(script)
    assert refusal.value.status == 400
