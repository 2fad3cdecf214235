"""How a request ends before its time: on request, or because its client leaves. The ledger relies on what is here."""

import pytest
from tests.contract.subject import CHAT, COMPLETION, GENERATE, MAKE, Subject, cached, chat, endless, events, unique

LONGER_THAN_ANY_DEADLINE = 12_000
"""Tokens: whoever waits until nothing runs does not wait for the end of that answer."""

USAGE = {"stream_options": {"include_usage": True}}


def fill(engine: Subject) -> None:
    """Occupy every running slot."""
    slots = engine.load()["max_running_requests"]
    for i in range(slots):
        engine.send(CHAT, endless(chat(f"occupied {i}", rid=unique("slot"), stream=True)))
    engine.until_live(slots)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_an_aborted_stream_ends_with_abort_then_usage_then_done(engine: Subject, path: str) -> None:
    rid = unique()
    with engine.open(path, endless(MAKE[path]("abort me", rid=rid, **USAGE))) as lines:
        next(lines)
        next(lines)
        engine.abort(rid)
        *_, finish, usage = events(lines)
    assert finish["choices"][0]["finish_reason"] == "abort"
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] > 0
    assert 0 < usage["usage"]["completion_tokens"] < 2000
    engine.until_live(0)


def test_an_aborted_generate_stream_says_so_in_its_last_event(engine: Subject) -> None:
    rid = unique()
    with engine.open(GENERATE, endless(MAKE[GENERATE]("abort me", rid=rid))) as lines:
        next(lines)
        engine.abort(rid)
        *_, last = events(lines)
    reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert last["meta_info"]["finish_reason"] == reason
    assert last["meta_info"]["prompt_tokens"] > 0


@pytest.mark.parametrize("path", [CHAT, COMPLETION, GENERATE])
def test_an_aborted_whole_answer_is_a_200_with_what_there_was(engine: Subject, path: str) -> None:
    rid = unique()
    future = engine.later(path, endless(MAKE[path]("abort me whole", rid=rid)))
    engine.until_live(1)
    engine.abort(rid)
    response = future.result()
    assert response.status_code == 200
    if path == GENERATE:
        meta = response.json()["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        assert meta["prompt_tokens"] > 0
    else:
        assert response.json()["choices"][0]["finish_reason"] == "abort"
        assert response.json()["usage"]["prompt_tokens"] > 0
    engine.until_live(0)


def test_a_live_id_takes_along_those_that_begin_with_it_and_another_does_nothing(engine: Subject) -> None:
    name = unique()
    rids = [f"{name}-1", f"{name}-10", f"{name}-2"]
    futures = {rid: engine.later(CHAT, endless(chat(rid, rid=rid))) for rid in rids}
    engine.until_live(3)
    for body in ({"rid": ""}, {}, {"rid": name}, {"rid": f"{name}-"}, {"rid": name[1:]}, {"rid": unique()}):
        assert engine.post("/abort_request", body).status_code == 200
    assert engine.live() == (3, 0)
    engine.abort(f"{name}-1")
    engine.until_live(1)
    assert not futures[f"{name}-2"].done()
    for rid in rids[:2]:
        assert futures[rid].result().json()["choices"][0]["finish_reason"] == "abort"
    assert engine.post("/abort_request", {"abort_all": True}).status_code == 200
    assert futures[f"{name}-2"].result().json()["choices"][0]["finish_reason"] == "abort"


def test_several_choices_cannot_be_aborted_by_the_id_of_their_request(engine: Subject) -> None:
    """Each choice is live under an id of its own: close the connection instead."""
    rid = unique()
    connection = engine.send(CHAT, endless(chat("two of them", rid=rid, n=2), LONGER_THAN_ANY_DEADLINE))
    engine.until_live(2)
    engine.abort(rid)
    assert engine.live() == (2, 0)
    connection.close()
    engine.until_live(0)


def test_what_waits_can_be_aborted_and_has_used_nothing(engine: Subject) -> None:
    """Not even its prompt is counted."""
    fill(engine)
    slots, _ = engine.live()
    rid = unique()
    connection = engine.send(CHAT, chat("waiting", rid=rid, stream=True, **USAGE))
    whole = engine.later(CHAT, chat("waiting whole", rid=rid + "-whole"))
    engine.until_live(slots, 2)
    engine.abort(rid)
    received = b""
    while b"[DONE]" not in received and (piece := connection.recv(65_536)):
        received += piece
    role, finish, usage = events(line for line in received.decode().split("\n") if line.startswith("data:"))
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert finish["choices"][0]["finish_reason"] == "abort"
    counts = [usage["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    assert [*counts, cached(usage["usage"])] == [0, 0, 0, 0]
    body = whole.result().json()
    assert body["choices"][0]["finish_reason"] == "abort"
    assert body["usage"]["prompt_tokens"] == 0


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_ends_its_request(engine: Subject, stream: bool) -> None:
    connection = engine.send(CHAT, endless(chat("leaving", stream=stream), LONGER_THAN_ANY_DEADLINE))
    engine.until_live(1)
    if stream:
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
    connection.close()
    engine.until_live(0)


def test_a_client_that_leaves_before_the_head_leaves_the_queue(engine: Subject) -> None:
    fill(engine)
    slots, _ = engine.live()
    connection = engine.send(CHAT, chat("leaving the queue", stream=True))
    engine.until_live(slots, 1)
    connection.close()
    engine.until_live(slots, 0)


def test_the_cache_is_kept_of_what_was_aborted(engine: Subject) -> None:
    """A turn that was broken off and is asked again finds its prompt."""
    text, rid = f"{unique()} kept " * 30, unique()
    with engine.open(CHAT, endless(chat(text, rid=rid))) as lines:
        next(lines)
        next(lines)  # a token: the prompt is computed, not only accepted
        engine.abort(rid)
        *_, finish = events(lines)
    assert finish["choices"][0]["finish_reason"] == "abort"
    assert cached(engine.answer(CHAT, chat(text))["usage"]) > 16
