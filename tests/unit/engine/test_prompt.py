"""The canonical rendering: what makes a difference to the cache, and what must not."""

from typing import Any

import pytest

from warmroute_lab.engine.model import prompt
from warmroute_lab.engine.request import text


def chat(*messages: dict[str, Any], **body: Any) -> bytes:
    return prompt.render({"messages": list(messages), **body})


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (user("hi"), user([{"type": "text", "text": "hi"}])),
        (user("hi"), user([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}])),
        (user("hi"), user("hi", cache_control={"type": "ephemeral"})),
        (
            user([{"type": "image_url", "image_url": {"url": "data:a"}}]),
            user([{"type": "image_url", "image_url": "data:a", "cache_control": {}}]),
        ),
    ],
)
def test_what_a_template_does_not_see_makes_no_difference(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert chat(left) == chat(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (user("hi"), user("ho")),
        (user("hi"), {"role": "system", "content": "hi"}),
        (
            user([{"type": "image_url", "image_url": {"url": "data:a"}}]),
            user([{"type": "image_url", "image_url": {"url": "data:b"}}]),
        ),
        (user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), user("ba")),
    ],
)
def test_what_the_model_reads_makes_a_difference(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert chat(left) != chat(right)


def test_tools_come_first_whatever_the_order_of_the_body() -> None:
    tool = {"type": "function", "function": {"name": "read"}, "cache_control": {"type": "ephemeral"}}
    rendered = chat({"role": "system", "content": "S"}, tools=[tool])
    assert rendered == prompt.render({"tools": [tool], "messages": [{"role": "system", "content": "S"}]})
    assert rendered.index(b'"read"') < rendered.index(b"S")
    assert b"cache_control" not in rendered


def test_the_id_of_a_tool_call_is_not_part_of_the_prompt() -> None:
    def turn(call_id: str) -> bytes:
        call = {"id": call_id, "type": "function", "function": {"name": "read", "arguments": "{}"}}
        return chat(user("hi"), {"role": "assistant", "content": None, "tool_calls": [call]})

    assert turn("call_1") == turn("call_2")


def test_an_answer_that_comes_back_verbatim_continues_the_prompt() -> None:
    script = text.Script(text="a reply", calls=(text.ScriptedCall("read", '{"path":"x"}'),))
    answer = text.answer(b"0" * 16, limit=99, script=script, stops=(), thinking=False, ignore_eos=False)
    first = chat(user("hi"))
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path":"x"}'}}
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    second = chat(user("hi"), {"role": "assistant", "content": "a reply", "tool_calls": [call]}, result)
    assert second.startswith(first + answer.rendered())


def test_an_answer_goes_on_where_it_was_broken_off() -> None:
    def said(limit: int, begun: str = "") -> str:
        plan = text.answer(
            b"1" * 16,
            limit=limit,
            script=text.Script(text="it was the best of times"),
            stops=(),
            thinking=True,
            ignore_eos=True,
            begun=begun,
        )
        return plan.text(text.CONTENT, len(plan.pieces))

    whole = said(40)
    for cut in range(1, len(whole)):
        assert (whole[:cut] + said(40, whole[:cut]))[: len(whole)] == whole
    assert said(40, "something else").startswith("it was")


def test_one_token_is_four_bytes_of_text() -> None:
    assert [prompt.tokens(b"x" * n) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert prompt.render_plain([1, 2]) == b"\1\0\0\0\2\0\0\0"
    assert prompt.render({"prompt": "hi"}) == b"hi"


def test_page_keys_share_exactly_the_common_pages() -> None:
    base, page = b"".join(b"%04d" % i for i in range(100)), 16
    keys = prompt.page_keys(base, page, b"salt")
    assert len(keys) == 100 // page
    changed = bytearray(base)
    changed[3 * page * 4] ^= 1  # the first byte of the fourth page
    other = prompt.page_keys(bytes(changed), page, b"salt")
    assert other[:3] == keys[:3]
    assert not set(other[3:]) & set(keys)
    assert not set(prompt.page_keys(base, page, b"pepper")) & set(keys)
