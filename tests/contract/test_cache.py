"""Cached tokens: counted by whole pages, growing turn by turn, apart for each salt, told by tier on request."""

from itertools import pairwise

import pytest
from tests.contract.subject import CHAT, COMPLETION, GENERATE, MAKE, Json, Subject, cached, chat, completion, unique

USAGE = {"stream_options": {"include_usage": True}}
DETAILS = {"return_cached_tokens_details": True}


@pytest.fixture
def page(engine: Subject) -> int:
    return int(engine.facts()["page_size"])


def story(words: int = 60) -> str:
    """Text that no other test has sent."""
    return f"{unique('story')} " * words


def test_a_new_prompt_is_not_cached_and_a_repeated_one_by_whole_pages(engine: Subject, page: int) -> None:
    request = chat(story())
    first, second = (engine.answer(CHAT, request)["usage"] for _ in range(2))
    assert cached(first) < page * 2  # at most the head that the template gives every prompt
    assert cached(second) == (second["prompt_tokens"] - 1) // page * page


def test_the_last_token_of_a_prompt_is_always_computed(engine: Subject, page: int) -> None:
    """So a prompt of exactly whole pages, sent again, misses its last page."""
    ids = [5 + (i % 1000) for i in range(page * 4)]
    ids[0] = 7 + hash(unique()) % 1000
    for _ in range(2):
        usage = engine.answer(COMPLETION, completion(ids))["usage"]
    assert usage["prompt_tokens"] == page * 4
    assert cached(usage) == page * 3


def test_cached_tokens_grow_turn_by_turn(engine: Subject, page: int) -> None:
    """Each turn finds the prompt of the one before, and the answer to it as far as it made whole pages."""
    request = chat(story(), max_tokens=24, ignore_eos=True)
    usages = []
    for turn in range(4):
        body = engine.answer(CHAT, request)
        usages.append(body["usage"])
        answer = {"role": "assistant", "content": body["choices"][0]["message"]["content"]}
        user = {"role": "user", "content": f"and then, in turn {turn}?"}
        request = {**request, "messages": [*request["messages"], answer, user]}
    for before, after in pairwise(usages):
        assert cached(after) % page == 0
        assert cached(after) >= before["prompt_tokens"] // page * page > cached(before)
        assert cached(after) < after["prompt_tokens"]


def test_streams_report_what_whole_answers_do(engine: Subject) -> None:
    request = chat(story())
    engine.answer(CHAT, request)
    whole = engine.answer(CHAT, request)["usage"]
    assert engine.events(CHAT, {**request, **USAGE})[-1]["usage"] == whole


def test_a_prompt_that_shares_a_beginning_shares_its_pages(engine: Subject, page: int) -> None:
    beginning = story()
    first = engine.answer(CHAT, chat(beginning + " alpha " * 40))["usage"]
    second = engine.answer(CHAT, chat(beginning + " omega " * 40))["usage"]
    assert cached(first) < cached(second) < second["prompt_tokens"] // page * page


@pytest.mark.parametrize("path", [CHAT, COMPLETION, GENERATE])
@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
def test_salts_and_keys_have_caches_of_their_own(engine: Subject, path: str, field: str) -> None:
    text = story()

    def found(**names: str) -> int:
        answer = engine.answer(path, MAKE[path](text, **names))
        return int(answer["meta_info"]["cached_tokens"]) if path == GENERATE else cached(answer["usage"])

    shared = found()
    assert found() > shared
    one, other = unique(), unique()
    assert found(**{field: one}) == 0
    assert found(**{field: other}) == 0
    assert found(**{field: one}) > 0


def test_a_salt_is_not_a_key(engine: Subject) -> None:
    text, name = story(), unique()
    engine.answer(CHAT, chat(text, cache_salt=name))
    assert cached(engine.answer(CHAT, chat(text, extra_key=name))["usage"]) == 0
    assert cached(engine.answer(CHAT, chat(text, extra_key=name, cache_salt=name))["usage"]) == 0


def test_names_of_the_request_make_no_difference_to_the_cache(engine: Subject) -> None:
    text = story()
    engine.answer(CHAT, chat(text))
    names: Json = {"user": unique(), "session_id": unique(), "rid": unique(), "prompt_cache_key": unique()}
    assert cached(engine.answer(CHAT, chat(text, **names))["usage"]) > 0


def total(details: Json) -> int:
    return sum(value for name, value in details.items() if name != "storage_backend")


def test_details_of_a_whole_answer_stand_beside_its_usage(engine: Subject) -> None:
    request = chat(story(), cache_salt=unique(), **DETAILS)
    first = engine.answer(CHAT, request)
    assert "sglext" not in first  # nothing cached, nothing to tell
    second = engine.answer(CHAT, request)
    details = second["sglext"]["cached_tokens_details"]
    assert {"device", "host"} <= set(details) <= {"device", "host", "storage", "storage_backend"}
    assert details["device"] == total(details) == cached(second["usage"])


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_details_of_a_stream_have_a_chunk_of_their_own_before_the_usage(engine: Subject, path: str) -> None:
    request = MAKE[path](story(), cache_salt=unique(), **DETAILS, **USAGE)
    first = engine.events(path, request)
    assert not any("sglext" in chunk for chunk in first)
    *_, details, usage = engine.events(path, request)
    assert (details["choices"], details["usage"]) == ([], None)
    assert total(details["sglext"]["cached_tokens_details"]) == cached(usage["usage"]) > 0


def test_generate_always_says_where_it_found_what(engine: Subject) -> None:
    request = MAKE[GENERATE](story(), cache_salt=unique())
    first, second = (engine.answer(GENERATE, request)["meta_info"] for _ in range(2))
    assert (first["cached_tokens"], first["cached_tokens_details"]) == (0, None)
    assert total(second["cached_tokens_details"]) == second["cached_tokens"] > 0
