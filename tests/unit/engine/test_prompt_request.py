"""Reading a request: what is lax, what is a batch, and how the prompts of one are named."""

from typing import Any

import pytest

from warmroute_lab.engine.http import fields
from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.request.prompt_request import PromptRequest, read


def completion(prompt: Any, **more: Any) -> list[PromptRequest]:
    return read("completion", {"prompt": prompt, **more}, {})


@pytest.mark.parametrize(("given", "number"), [(4, 4), (4.0, 4), ("4", 4), ("-4.0", -4), (True, 1), (None, None)])
def test_integers_are_read_where_they_can_only_mean_one_thing(given: Any, number: int | None) -> None:
    assert fields.integer({"n": given}, "n") == number


@pytest.mark.parametrize("given", [4.5, "four", [], {}, float("inf"), "4.5"])
def test_what_is_no_integer_is_refused(given: Any) -> None:
    with pytest.raises(Refusal, match="n must be an integer"):
        fields.integer({"n": given}, "n")


@pytest.mark.parametrize(("given", "value"), [(True, True), ("Yes", True), ("off", False), (1, True), (0.0, False)])
def test_booleans_may_be_words(given: Any, value: bool) -> None:
    assert fields.flag({"b": given}, "b") is value


@pytest.mark.parametrize("given", ["maybe", 2, [], {}])
def test_what_is_no_boolean_is_refused(given: Any) -> None:
    with pytest.raises(Refusal, match="b must be a boolean"):
        fields.flag({"b": given}, "b")


def test_each_prompt_of_a_batch_is_a_request_of_its_own() -> None:
    requests = completion(["a", "b"], rid="r", cache_salt=["x", "y"], extra_key="k", bootstrap_room=7)
    assert [request.rid for request in requests] == ["r_0", "r_1"]
    assert [request.rendered for request in requests] == [b"a", b"b"]
    assert [(request.cache_salt, request.extra_key) for request in requests] == [("x", "k"), ("y", "k")]
    assert [request.bootstrap_room for request in requests] == [7, 8]
    assert [request.rid for request in completion(["a", "b"], rid=["one", "two"])] == ["one", "two"]
    assert len({request.rid for request in completion(["a", "b"])}) == 2


@pytest.mark.parametrize(
    "more", [{"rid": ["one"]}, {"rid": ["one", "one"]}, {"cache_salt": ["x"]}, {"cache_salt": 5}, {"rid": [1, 2]}]
)
def test_a_list_has_to_fit_the_batch(more: dict[str, Any]) -> None:
    with pytest.raises(Refusal):
        completion(["a", "b"], **more)


@pytest.mark.parametrize("prompt", [5, {}, [], [""], "", ["a", 5], [[1], "a"], [1.5], [-1], ["a"] * 1025])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(Refusal):
        completion(prompt)
