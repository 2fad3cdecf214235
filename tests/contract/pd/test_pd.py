"""Prefill and decode: the hand-over, what each side answers, and each way in which it fails."""

import json
from typing import Any

import httpx
import pytest
from tests.contract.pd.conftest import Mortal
from tests.contract.pd.pair import (
    CHAT,
    TIMEOUT_S,
    Pair,
    abort,
    aborted_while_it_computes,
    aborted_while_it_waits,
    fresh_text,
    post,
    wait_for,
)
from tests.machine import seconds

pytestmark = pytest.mark.full

ALL = {"prefill_dp_rank": -1, "prefill_cp_rank": -1, "target_tp_rank": -1, "target_pp_rank": -1}


def events(answer: httpx.Response) -> list[Any]:
    """The events of a stream without its end mark."""
    assert answer.status_code == 200
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def failure(answer: httpx.Response) -> str:
    """The message of an answer that is a failed hand-over."""
    assert answer.status_code == 500, answer.text
    body = answer.json()
    assert (body["object"], body["type"], body["param"], body["code"]) == ("error", "500", None, 500)
    return str(body["message"])


# --- the hand-over ---------------------------------------------------------------------------------------------------


def test_decode_reports_what_prefill_had_cached(pair: Pair) -> None:
    text = fresh_text(60)
    for again in (False, True):
        prefill, decode = (leg.json() for leg in pair.both(pair.body(text, return_cached_tokens_details=True)))
        assert (prefill["usage"]["completion_tokens"], decode["usage"]["completion_tokens"]) == (1, 6)
        assert decode["usage"]["prompt_tokens"] == prefill["usage"]["prompt_tokens"]
        cached = (prefill["usage"]["prompt_tokens"] - 1) // 16 * 16 if again else 0
        assert decode["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
        assert prefill["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
        assert decode.get("sglext") == prefill.get("sglext")
        assert ("sglext" in decode) is again
        if again:
            assert decode["sglext"] == {"cached_tokens_details": {"device": cached, "host": 0}}


def test_prefill_answers_one_token_and_decode_begins_with_it(pair: Pair) -> None:
    prefill, decode = (leg.json()["choices"][0] for leg in pair.both(pair.body(fresh_text(20))))
    assert (prefill["finish_reason"], decode["finish_reason"]) == ("length", "length")
    first = prefill["message"]["content"]
    assert decode["message"]["content"].startswith(first)
    assert len(decode["message"]["content"]) > len(first)


def test_a_stream_of_decode_ends_with_the_usage(pair: Pair) -> None:
    text = fresh_text(40)
    pair.both(pair.body(text))
    body = pair.body(text, stream=True, stream_options={"include_usage": True})
    prefill, decode = post(pair.prefill, {**body, "stream": False, "stream_options": None}), post(pair.decode, body)
    whole = prefill.result(seconds(TIMEOUT_S)).json()
    *chunks, last = events(decode.result(seconds(TIMEOUT_S)))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "reasoning_content": None}
    assert chunks[1]["choices"][0]["delta"]["content"] == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens_details"] == whole["usage"]["prompt_tokens_details"]
    assert last["usage"]["completion_tokens"] == 6


def test_the_pair_computes_what_one_engine_computes(pair: Pair, aggregated: str) -> None:
    ids = [300 + number * 7 % 1700 for number in range(500)]
    wish = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
    }
    place = {name: value for name, value in pair.body("").items() if name.startswith("bootstrap")}
    legs = post(pair.prefill, {**wish, **place}, "/generate"), post(pair.decode, {**wish, **place}, "/generate")
    prefill, decode = (leg.result(seconds(TIMEOUT_S)).json()["meta_info"] for leg in legs)
    alone = httpx.post(f"{aggregated}/generate", json=wish, timeout=seconds(TIMEOUT_S)).json()["meta_info"]
    expected = [pytest.approx(value, abs=1e-4) for value, *_ in alone["output_token_logprobs"]]
    assert [value for value, *_ in decode["output_token_logprobs"]] == expected
    assert [token for _, token, *_ in decode["output_token_logprobs"]] == [
        token for _, token, *_ in alone["output_token_logprobs"]
    ]
    assert [value for value, *_ in prefill["output_token_logprobs"]] == expected[:1]


def test_each_side_serves_health_without_a_partner_and_says_what_it_is(pair: Pair) -> None:
    for url, mode in ((pair.prefill, "prefill"), (pair.decode, "decode")):
        assert httpx.get(f"{url}/health", timeout=seconds(TIMEOUT_S)).status_code == 200
        assert httpx.get(f"{url}/model_info").json()["disaggregation_mode"] == mode
        assert httpx.get(f"{url}/v1/loads").json()["loads"][0]["disaggregation"]["mode"] == mode


# --- the bootstrap server --------------------------------------------------------------------------------------------


def test_the_bootstrap_server_tells_of_prefill(pair: Pair) -> None:
    assert httpx.get(f"{pair.bootstrap}/health").text == "OK"
    facts = httpx.get(f"{pair.bootstrap}/route", params=ALL).json()
    expected: dict[str, Any] = {"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 16}
    expected |= {"kv_cache_dtype": "auto", "follow_bootstrap_room": True}
    assert {name: facts[name] for name in expected} == expected
    rank = httpx.get(f"{pair.bootstrap}/route", params=dict.fromkeys(ALL, 0)).json()
    assert sorted(rank) == ["rank_ip", "rank_port"]


def test_the_bootstrap_server_refuses_what_it_does_not_know(pair: Pair) -> None:
    missing = httpx.get(f"{pair.bootstrap}/route")
    assert (missing.status_code, missing.text) == (400, "Missing inputs for bootstrap server.")
    unknown = httpx.get(f"{pair.bootstrap}/route", params=dict.fromkeys(ALL, 0) | {"prefill_dp_rank": 9})
    assert unknown.status_code == 404
    assert "not found for dp_rank=9" in unknown.text


# --- rooms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_request_without_a_room_is_refused(pair: Pair, side: str) -> None:
    url = getattr(pair, side)
    body = pair.body("hello")
    del body["bootstrap_room"]
    words = "Disaggregated request received without bootstrap room id"

    whole = httpx.post(url + CHAT, json=body)
    assert whole.status_code == 400
    assert (whole.json()["object"], whole.json()["type"]) == ("error", "BadRequestError")
    assert words in whole.json()["message"]

    (event,) = events(httpx.post(url + CHAT, json={**body, "stream": True}))
    assert (event["error"]["code"], event["error"]["type"]) == (400, "BAD_REQUEST")
    assert words in event["error"]["message"]

    native = httpx.post(f"{url}/generate", json={"text": "hello", "sampling_params": {"max_new_tokens": 2}})
    assert native.status_code == 400
    assert words in native.json()["error"]["message"]


# --- one leg alone ---------------------------------------------------------------------------------------------------


def test_a_leg_whose_partner_never_comes_fails_when_its_time_is_up(impatient_pair: Pair) -> None:
    pair = impatient_pair
    lonely, other = pair.body(fresh_text(20)), pair.body(fresh_text(20))
    streamed = pair.body(fresh_text(20), stream=True, stream_options={"include_usage": True})
    legs = post(pair.prefill, lonely), post(pair.decode, other), post(pair.decode, streamed)
    prefill, decode, stream = (leg.result(seconds(TIMEOUT_S)) for leg in legs)
    assert failure(prefill).startswith("Prefill bootstrap failed for request rank=0 ")
    assert "timed out after" in failure(prefill)
    assert failure(decode).startswith("Decode transfer failed for request rank=0 ")
    assert f"Request {other['bootstrap_room']} timed out after" in failure(decode)
    error, usage = events(stream)
    assert (error["error"]["code"], error["error"]["type"]) == (500, "INTERNAL_SERVER_ERROR")
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 0
    assert usage["usage"]["prompt_tokens"] > 20


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_leg_that_is_aborted_while_it_waits_fails(pair: Pair, side: str) -> None:
    url = getattr(pair, side)
    queue = "prefill_bootstrap_queue" if side == "prefill" else "decode_transfer_queue"
    for stream in (False, True):
        body = pair.body(fresh_text(20), stream=stream)
        leg = post(url, body)
        wait_for(lambda: pair.queue(url, queue) == 1)
        abort(url, body)
        answer = leg.result(seconds(TIMEOUT_S))
        if stream:
            (event,) = events(answer)
            assert "Aborted by AbortReq." in event["error"]["message"]
        else:
            assert "Aborted by AbortReq." in failure(answer)
        wait_for(lambda: pair.queue(url, queue) == 0)


def test_prefill_fails_at_once_when_decode_was_aborted_before_it_came(pair: Pair) -> None:
    body = pair.body(fresh_text(20))
    decode = post(pair.decode, body)
    wait_for(lambda: pair.queue(pair.decode, "decode_transfer_queue") == 1)
    abort(pair.decode, body)
    assert "Aborted by AbortReq." in failure(decode.result(seconds(TIMEOUT_S)))
    prefill = post(pair.prefill, body).result(seconds(TIMEOUT_S))
    assert "Aborted by decode-side abort notification." in failure(prefill)


def test_prefill_fails_when_decode_is_aborted_while_it_computes(pair: Pair) -> None:
    prefill, decode = aborted_while_it_computes(pair, "decode")
    assert "Aborted by AbortReq." in failure(decode.result(seconds(TIMEOUT_S)))
    assert "Aborted by decode-side abort notification." in failure(prefill.result(seconds(TIMEOUT_S)))


def test_decode_fails_when_prefill_was_aborted_before_it_came(impatient_pair: Pair) -> None:
    pair = impatient_pair
    body = aborted_while_it_waits(pair)
    assert "timed out after" in failure(post(pair.decode, body).result(seconds(TIMEOUT_S)))


def test_an_abort_in_the_middle_of_decode_ends_its_stream_with_the_usage(pair: Pair) -> None:
    body = pair.body(
        fresh_text(20), max_tokens=4000, ignore_eos=True, stream=True, stream_options={"include_usage": True}
    )
    prefill = post(pair.prefill, {**body, "stream": False, "stream_options": None})
    with httpx.stream("POST", pair.decode + CHAT, json=body, timeout=seconds(TIMEOUT_S)) as answer:
        lines = (line for line in answer.iter_lines() if line)
        for _ in range(4):
            next(lines)
        abort(pair.decode, body)
        *_, finish, usage, done = lines
    assert done == "data: [DONE]"
    assert json.loads(finish.removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
    assert 3 <= json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"] < 4000
    assert prefill.result(seconds(TIMEOUT_S)).json()["usage"]["completion_tokens"] == 1


def test_a_client_that_leaves_decode_ends_the_request(pair: Pair) -> None:
    body = pair.body(fresh_text(20), max_tokens=12_000, ignore_eos=True, stream=True)
    post(pair.prefill, {**body, "stream": False})

    def running() -> int:
        return int(httpx.get(f"{pair.decode}/v1/loads").json()["loads"][0]["num_running_reqs"])

    with httpx.stream("POST", pair.decode + CHAT, json=body, timeout=seconds(TIMEOUT_S)) as answer:
        lines = answer.iter_lines()  # kept: dropped, it would close the connection
        next(lines)
        wait_for(lambda: running() == 1)
    wait_for(lambda: running() == 0)


# --- death -----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(240, func_only=True)
def test_decode_fails_when_prefill_dies_and_serves_with_the_one_that_takes_its_place(
    pair: Pair, prefill: Mortal
) -> None:
    text = fresh_text(40)
    pair.both(pair.body(text))
    decode = post(pair.decode, body := pair.body(text))
    wait_for(lambda: pair.queue(pair.decode, "decode_transfer_queue") == 1)
    prefill.kill()
    assert failure(decode.result(seconds(TIMEOUT_S))).startswith("Decode transfer failed for request rank=0 ")
    assert body["rid"] in failure(decode.result(seconds(TIMEOUT_S)))
    prefill.restart()
    answers = pair.both(pair.body(text))
    assert [answer.status_code for answer in answers] == [200, 200], answers[1].text
    cached = [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached == [0, 0], "its cache died with it"


@pytest.mark.parametrize(("side", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_a_role_is_switched_only_where_that_was_allowed_at_the_start(pair: Pair, side: str, other: str) -> None:
    answer = httpx.post(f"{getattr(pair, side)}/pd_role_switch", json={"new_role": other}, timeout=seconds(TIMEOUT_S))
    assert answer.status_code == 400
    found = answer.json()
    assert found["message"] == "--enable-pd-role-switch is not set on this server"
    assert (found["success"], found["safe_to_restore"]) == (False, True)
    assert (found["old_role"], found["new_role"]) == (side, other)
