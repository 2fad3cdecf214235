"""`/generate`, the engine's own endpoint: cumulative text, `meta_info`, batches."""

import pytest
from tests.contract.subject import CHAT, GENERATE, Subject, chat, endless, generate, unique


def test_a_whole_answer(engine: Subject) -> None:
    rid = unique()
    body = engine.answer(GENERATE, generate("Once upon a time", rid=rid))
    meta = body["meta_info"]
    assert meta["id"] == rid
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["completion_tokens"], len(body["output_ids"])) == (4, 4)
    assert 0 <= meta["cached_tokens"] < meta["prompt_tokens"]
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]


def test_an_answer_is_at_most_128_tokens_long_unless_it_is_said(engine: Subject) -> None:
    sampling = {"temperature": 0, "ignore_eos": True}
    body = engine.answer(GENERATE, {"text": "Once upon a time", "sampling_params": sampling})
    assert body["meta_info"]["completion_tokens"] == 128


def test_each_event_of_a_stream_has_all_so_far(engine: Subject) -> None:
    events = engine.events(GENERATE, generate("Once upon a time"))
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted(set(counts))
    assert [len(event["output_ids"]) for event in events] == counts
    assert all(event["meta_info"]["finish_reason"] is None for event in events[:-1])
    assert all("weight_versions" not in event["meta_info"] for event in events[:-1])
    last = events[-1]
    assert last["meta_info"]["finish_reason"]["type"] == "length"
    assert all(last["text"].startswith(event["text"].rstrip("\ufffd")) for event in events)
    assert last["text"] == engine.answer(GENERATE, generate("Once upon a time"))["text"]


def test_a_stream_has_its_head_before_it_runs(engine: Subject) -> None:
    """Chat and completions hold theirs until there is something to send."""
    for i in range(8):
        engine.send(CHAT, endless(chat(f"occupied {i}", stream=True)))
    engine.until_live(8)
    with engine.open(GENERATE, generate("waiting")):
        engine.until_live(8, 1)
    waiting = engine.send(CHAT, chat("waiting", stream=True))
    engine.until_live(8, 1)
    waiting.settimeout(0.5)
    with pytest.raises(TimeoutError):
        waiting.recv(1)


def test_a_batch_is_a_list_even_of_one(engine: Subject) -> None:
    assert len(engine.answer(GENERATE, generate(["one", "two"]))) == 2
    (only,) = engine.answer(GENERATE, generate(["one"]))
    assert only["text"] == engine.answer(GENERATE, generate("one"))["text"]


def test_events_of_a_batch_say_which_prompt_they_are_of(engine: Subject) -> None:
    events = engine.events(GENERATE, generate(["one", "two"]))
    last = {event["index"]: event for event in events}
    assert set(last) == {0, 1}
    assert all(event["meta_info"]["finish_reason"]["type"] == "length" for event in last.values())
    whole = engine.answer(GENERATE, generate(["one", "two"]))
    assert [last[i]["text"] for i in (0, 1)] == [item["text"] for item in whole]


def test_choices_are_a_list_with_ids_of_their_own(engine: Subject) -> None:
    rid = unique()
    first, second = engine.answer(GENERATE, generate("several", n=2, rid=rid))
    assert len({rid, first["meta_info"]["id"], second["meta_info"]["id"]}) == 3


def test_logprobs_are_triples(engine: Subject) -> None:
    body = engine.answer(GENERATE, generate("probable", return_logprob=True, top_logprobs_num=2))
    meta = body["meta_info"]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == body["output_ids"]
    assert all(entry[0] < 0 and entry[2] is None for entry in meta["output_token_logprobs"])
    assert [len(top) for top in meta["output_top_logprobs"]] == [2] * 4
    assert meta["output_token_logprobs_length"] == 4
    assert "output_top_logprobs" not in engine.answer(GENERATE, generate("probable", return_logprob=True))["meta_info"]
    assert "output_token_logprobs" not in engine.answer(GENERATE, generate("probable"))["meta_info"]


def test_a_stop_string_ends_the_text(engine: Subject) -> None:
    whole: str = engine.answer(GENERATE, generate("stop that", max_new_tokens=16, ignore_eos=True))["text"]
    stop = whole[len(whole) // 2 :][:3]
    body = engine.answer(GENERATE, generate("stop that", max_new_tokens=16, ignore_eos=True, stop=stop))
    assert body["text"] == whole[: whole.index(stop)]
    assert body["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_override_headers_win_over_the_body(engine: Subject) -> None:
    rid = unique("override")
    response = engine.post(GENERATE, generate("override", rid=unique()), headers={"x-override-rid": rid})
    assert response.json()["meta_info"]["id"] == rid
