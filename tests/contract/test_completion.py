"""`/v1/completions`: text, streams, and several prompts in one request."""

from typing import Any

import pytest
from tests.contract.subject import COMPLETION, Subject, cached, completion, unique

USAGE = {"stream_options": {"include_usage": True}}


def test_a_whole_answer(engine: Subject) -> None:
    rid = unique()
    body = engine.answer(COMPLETION, completion("Once upon a time", rid=rid))
    (choice,) = body["choices"]
    assert (body["id"], body["object"], body["model"]) == (rid, "text_completion", "any")
    assert choice["text"]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("length", None)
    assert body["usage"]["completion_tokens"] == 4


def test_an_answer_is_sixteen_tokens_long_unless_it_is_said(engine: Subject) -> None:
    body = engine.answer(COMPLETION, {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True})
    assert body["usage"]["completion_tokens"] == 16
    assert body["model"] == "default"


def test_a_stream_ends_with_its_last_text_then_usage_then_done(engine: Subject) -> None:
    chunks = engine.events(COMPLETION, completion("Once upon a time", **USAGE))
    *content, usage = chunks
    assert [chunk["choices"][0]["finish_reason"] for chunk in content] == [None] * (len(content) - 1) + ["length"]
    assert all(chunk["usage"] is None for chunk in content)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert "completion_tokens_details" not in usage["usage"]  # null members are left out of this one chunk
    whole = engine.answer(COMPLETION, completion("Once upon a time"))
    assert "".join(chunk["choices"][0]["text"] for chunk in content) == whole["choices"][0]["text"]


def test_continuous_usage_says_nothing_of_the_cache(engine: Subject) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *content, usage = engine.events(COMPLETION, completion("Once upon a time", stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in content]
    assert counts == sorted(set(counts))
    assert counts[-1] == usage["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"]["prompt_tokens_details"] is None for chunk in content)
    assert usage["usage"]["prompt_tokens_details"] is not None


@pytest.mark.parametrize("prompt", [[5, 6, 7], ["one"], "one"], ids=["token ids", "a list of one", "text"])
def test_a_prompt_may_be_text_or_token_ids(engine: Subject, prompt: Any) -> None:
    body = engine.answer(COMPLETION, completion(prompt))
    assert len(body["choices"]) == 1
    if prompt == [5, 6, 7]:
        assert body["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("prompts", [["one", "two more"], [[5, 6], [7, 8, 9]]], ids=["texts", "token ids"])
def test_a_batch_has_a_choice_for_each_prompt_and_one_sum(engine: Subject, prompts: list[Any]) -> None:
    alone = [engine.answer(COMPLETION, completion(prompt)) for prompt in prompts]
    body = engine.answer(COMPLETION, completion(prompts))
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert [choice["text"] for choice in body["choices"]] == [one["choices"][0]["text"] for one in alone]
    assert body["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)
    assert body["usage"]["completion_tokens"] == 8


def test_a_streamed_batch_mixes_its_chunks(engine: Subject) -> None:
    *content, usage = engine.events(COMPLETION, completion(["one", "two more"], rid="streamed-batch", **USAGE))
    choices = [chunk["choices"][0] for chunk in content]
    ids = {choice["index"]: chunk["id"] for chunk, choice in zip(content, choices, strict=True)}
    assert ids == {0: "streamed-batch_0", 1: "streamed-batch_1"}
    for index in (0, 1):
        assert [c["finish_reason"] for c in choices if c["index"] == index][-1] == "length"
    assert usage["usage"]["completion_tokens"] == 8


def test_the_prompts_of_a_batch_are_named_after_it_or_one_by_one(engine: Subject) -> None:
    rid = unique()
    assert engine.answer(COMPLETION, completion(["a", "b"], rid=rid))["id"] == f"{rid}_0"
    assert engine.answer(COMPLETION, completion(["a", "b"], rid=[rid, "other"]))["id"] == rid


def test_choices_of_a_batch_run_on(engine: Subject) -> None:
    body = engine.answer(COMPLETION, completion(["one", "two"], n=2, max_tokens=1))
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["completion_tokens"] == 4


def test_a_batch_may_have_a_salt_for_each_prompt(engine: Subject) -> None:
    text = f"{unique()} salted " * 30
    salts = [unique("salt"), unique("salt")]
    engine.answer(COMPLETION, completion(text, cache_salt=salts[0]))
    both = engine.answer(COMPLETION, completion([text, text], cache_salt=salts))
    one = engine.answer(COMPLETION, completion(text, cache_salt=salts[0]))
    assert cached(both["usage"]) == cached(one["usage"]) > 0


def test_logprobs_have_an_entry_for_each_token_and_no_offsets(engine: Subject) -> None:
    (choice,) = engine.answer(COMPLETION, completion("probable", logprobs=2))["choices"]
    found = choice["logprobs"]
    assert found["text_offset"] == [-1] * 4
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"]) == 4
    assert all(value < 0 for value in found["token_logprobs"])
    assert all(len(top) <= 2 for top in found["top_logprobs"])
    streamed = engine.events(COMPLETION, completion("probable", logprobs=0))
    tokens = [token for chunk in streamed for token in (chunk["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
    assert tokens == found["tokens"]


def test_a_stop_string_ends_the_text(engine: Subject) -> None:
    request = completion("stop this", max_tokens=16, ignore_eos=True)
    whole: str = engine.answer(COMPLETION, request)["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:3]
    (choice,) = engine.answer(COMPLETION, {**request, "stop": [stop]})["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", stop)


def test_override_headers_are_not_looked_at(engine: Subject) -> None:
    rid = unique()
    response = engine.post(COMPLETION, completion("override", rid=rid), headers={"x-override-rid": "other"})
    assert response.json()["id"] == rid
