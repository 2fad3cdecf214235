"""The yardstick: longest shared prefix in whole pages, never the last token."""

from warmroute_lab.demo.ideal import Ideal, Prompt, ideals, prompt_of
from warmroute_lab.engine.model.prompt import TOKEN_BYTES

PAGE = 64


def prompt(recording: str, tokens: int, pages: str) -> Prompt:
    return Prompt(recording, tokens, tuple(map(ord, pages)))


def test_a_session_shares_with_itself_and_with_others() -> None:
    found = ideals([prompt("a", 200, "xyz"), prompt("b", 200, "xyv"), prompt("b", 300, "xyvw")], PAGE)
    assert found == [Ideal(0, 0), Ideal(0, 128), Ideal(192, 192)]


def test_a_prompt_never_shares_its_last_token() -> None:
    found = ideals([prompt("a", 128, "xy"), prompt("a", 128, "xy"), prompt("a", 129, "xy")], PAGE)
    assert [one.session for one in found] == [0, 64, 128]


def test_pages_behind_a_difference_do_not_count() -> None:
    assert ideals([prompt("a", 250, "xyz"), prompt("a", 250, "xvz")], PAGE)[1].session == 64


def test_bodies_share_whole_pages_only_within_a_model() -> None:
    text = "word " * 200
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    turn = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "on"}]
    longer = {"model": "m", "messages": [*body["messages"], *turn]}
    other = body | {"model": "other"}
    prompts = [prompt_of("a", one, PAGE) for one in (body, longer, other)]
    first, second, third = ideals(prompts, PAGE)
    assert (first.session, third.shared) == (0, 0)
    assert second.session == prompts[0].tokens // PAGE * PAGE > len(text) // TOKEN_BYTES - PAGE
