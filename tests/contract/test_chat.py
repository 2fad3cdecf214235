"""`/v1/chat/completions`, whole and streamed: the order of chunks and what they carry."""

from typing import Any

import pytest
from tests.contract.subject import CHAT, Json, Subject, cached, chat, endless, unique

USAGE = {"stream_options": {"include_usage": True}}
RUNNING = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def deltas(chunks: list[Json], index: int = 0) -> list[Json]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def text(chunks: list[Json], index: int = 0) -> str:
    return "".join(delta.get("content") or "" for delta in deltas(chunks, index))


def test_a_whole_answer_is_named_as_the_request_and_its_usage_adds_up(engine: Subject) -> None:
    rid = unique()
    body = engine.answer(CHAT, chat("whole", rid=rid))
    (choice,) = body["choices"]
    assert (body["id"], body["object"], body["model"]) == (rid, "chat.completion", "any")
    assert (choice["finish_reason"], choice["matched_stop"]) == ("length", None)
    assert choice["message"]["content"]
    usage = body["usage"]
    assert usage["completion_tokens"] == 4
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4
    assert 0 <= cached(usage) < usage["prompt_tokens"]
    assert "sglext" not in body


def test_without_an_id_one_is_drawn(engine: Subject) -> None:
    first, second = (engine.answer(CHAT, chat("nameless"))["id"] for _ in range(2))
    assert first != second
    assert len(first) == len(second) == 32


def test_a_stream_is_role_then_content_then_finish_then_usage_then_done(engine: Subject) -> None:
    rid = unique()
    chunks = engine.events(CHAT, chat("in order", rid=rid, **USAGE))
    role, *content, finish, usage = chunks
    assert {chunk["id"] for chunk in chunks} == {rid}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": "", "reasoning_content": None}
    assert content
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in content)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [role, *content])
    assert finish["choices"][0]["delta"] == {"reasoning_content": None}
    assert finish["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert not any("usage" in chunk for chunk in chunks[:-1])


def test_usage_comes_only_when_it_is_asked_for(engine: Subject) -> None:
    for asked in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        chunks = engine.events(CHAT, chat("no usage", **asked))
        assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


def test_continuous_usage_is_on_content_chunks_and_counts_up(engine: Subject) -> None:
    role, *content, finish, usage = engine.events(CHAT, chat("running usage", max_tokens=6, **RUNNING))
    counts = [chunk["usage"]["completion_tokens"] for chunk in content]
    assert counts == sorted(set(counts))
    assert counts[-1] <= usage["usage"]["completion_tokens"] == 6
    assert "usage" not in role
    assert "usage" not in finish
    for chunk in content:
        assert chunk["usage"]["prompt_tokens"] == usage["usage"]["prompt_tokens"]
        assert cached(chunk["usage"]) == cached(usage["usage"])
        assert chunk["usage"]["total_tokens"] == chunk["usage"]["prompt_tokens"] + chunk["usage"]["completion_tokens"]


def test_streamed_and_whole_answers_are_the_same(engine: Subject) -> None:
    request = chat("the same twice", max_tokens=12)
    whole = engine.answer(CHAT, request)["choices"][0]["message"]["content"]
    assert text(engine.events(CHAT, request)) == whole


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_tokens_is_kept(engine: Subject, limit: str) -> None:
    request = {name: value for name, value in chat("cut").items() if name != "max_tokens"}
    assert engine.answer(CHAT, {**request, limit: 7})["usage"]["completion_tokens"] == 7


def test_no_tokens_may_be_asked_for(engine: Subject) -> None:
    body = engine.answer(CHAT, chat("nothing", max_tokens=0))
    assert body["usage"]["completion_tokens"] == 0
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_ends_the_answer_before_itself(engine: Subject) -> None:
    request = chat("stop here", max_tokens=16, ignore_eos=True)
    whole: str = engine.answer(CHAT, request)["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 :][:3]
    for chunks in (None, engine.events(CHAT, {**request, "stop": ["never seen \u2603", stop], **USAGE})):
        if chunks is None:
            body = engine.answer(CHAT, {**request, "stop": stop})
            (choice,), shown, usage = body["choices"], body["choices"][0]["message"]["content"], body["usage"]
        else:
            (choice,), shown, usage = chunks[-2]["choices"], text(chunks), chunks[-1]["usage"]
        assert shown == whole[: whole.index(stop)]
        assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", stop)
        assert usage["completion_tokens"] <= 16


def test_unknown_models_and_unknown_fields_are_taken(engine: Subject) -> None:
    more: Json = {"model": "nobody/knows-this", "an_unknown_field": {"a": [1]}, "user": "u", "metadata": {"k": "v"}}
    assert engine.answer(CHAT, chat("unknown", **more))["model"] == "nobody/knows-this"
    nameless = {name: value for name, value in chat("unknown").items() if name != "model"}
    assert engine.answer(CHAT, nameless)["model"] == "default"


@pytest.mark.parametrize("given", ["4", 4.0, "4.0"], ids=str)
def test_a_number_may_be_written_in_other_ways(engine: Subject, given: Any) -> None:
    assert engine.answer(CHAT, chat("lax", max_tokens=given))["usage"]["completion_tokens"] == 4


def test_a_boolean_may_be_a_word(engine: Subject) -> None:
    response = engine.post(CHAT, chat("lax", stream="yes"))
    assert response.headers["content-type"].startswith("text/event-stream")


def test_choices_have_ids_of_their_own_and_share_the_prompt(engine: Subject) -> None:
    rid = unique()
    request = chat(f"several {rid} " * 12, rid=rid, n=2)
    body = engine.answer(CHAT, request)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["id"] != rid
    usage = body["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    # The prompt is computed once before the choices start: even of a new prompt, all complete pages are "cached".
    page = engine.facts()["page_size"]
    assert cached(usage) == (usage["prompt_tokens"] - 1) // page * page > 0


def test_streamed_choices_have_a_role_and_a_finish_chunk_each(engine: Subject) -> None:
    chunks = engine.events(CHAT, chat("several in a stream", n=2, **USAGE))
    *_, first, second, usage = chunks
    assert {first["choices"][0]["index"], second["choices"][0]["index"]} == {0, 1}
    for index in (0, 1):
        assert deltas(chunks, index)[0]["role"] == "assistant"
        assert text(chunks, index)
        assert deltas(chunks, index)[-1] == {"reasoning_content": None}
        content = {chunk["id"] for chunk in chunks[:-3] for choice in chunk["choices"] if choice["index"] == index}
        assert len(content) == 1
    assert usage["usage"]["completion_tokens"] == 8


def test_logprobs_have_an_entry_for_each_token(engine: Subject) -> None:
    request = chat("probable", logprobs=True, top_logprobs=2, max_tokens=3)
    (choice,) = engine.answer(CHAT, request)["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 3
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    for entry in entries:
        assert entry["logprob"] < 0
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
        assert [set(top) for top in entry["top_logprobs"]] == [{"token", "bytes", "logprob"}] * 2
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]


def test_streamed_logprobs_come_with_their_content(engine: Subject) -> None:
    request = chat("probable", logprobs=True, top_logprobs=1, max_tokens=3)
    chunks = engine.events(CHAT, request)
    found = [choice["logprobs"]["content"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert len([entry for entries in found for entry in entries]) == 3
    assert all(not chunk["choices"][0]["logprobs"] for chunk in (chunks[0], chunks[-1]))
    assert engine.answer(CHAT, {**request, "logprobs": False})["choices"][0]["logprobs"] is None


def test_override_headers_win_over_the_body(engine: Subject) -> None:
    rid = unique("override")
    response = engine.post(CHAT, chat("override", rid=unique()), headers={"x-override-rid": rid})
    assert response.json()["id"] == rid
    bad = engine.post(CHAT, chat("override"), headers={"x-override-priority": "high"})
    assert (bad.status_code, bad.json()["type"]) == (400, "400")
    assert "x-override-priority" in bad.json()["message"]


def continued(text: str, begun: str, **more: Any) -> Json:
    body = chat(text, **more)
    return {**body, "messages": [*body["messages"], {"role": "assistant", "content": begun}]}


def test_an_answer_that_has_begun_is_continued(engine: Subject) -> None:
    text = f"{unique()} a question " * 20
    whole = engine.answer(CHAT, endless(chat(text), 40))
    begun = f"{unique()} and so on"  # not the model's own words: it repeats those
    body = continued(text, begun, continue_final_message=True)
    rest = engine.answer(CHAT, endless(body, 20))
    begun_tokens = engine.answer("/v1/tokenize", {"prompt": begun})["count"]
    assert abs(rest["usage"]["prompt_tokens"] - whole["usage"]["prompt_tokens"] - begun_tokens) <= 1
    assert rest["usage"]["completion_tokens"] == 20
    assert cached(rest["usage"]) > 16
    assert not rest["choices"][0]["message"]["content"].startswith(begun)


def test_a_last_message_of_the_assistant_is_otherwise_the_users(engine: Subject) -> None:
    body = continued("hello", "said before")
    users = {**body, "messages": [*body["messages"][:-1], {"role": "user", "content": "said before"}]}
    assert engine.answer(CHAT, body)["usage"]["prompt_tokens"] == engine.answer(CHAT, users)["usage"]["prompt_tokens"]
