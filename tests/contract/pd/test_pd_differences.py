"""What a real prefill or decode server does with requests that no router should send, and the embedded one refuses."""

from collections.abc import Callable

import httpx
import pytest
from tests.contract.pd.pair import CHAT, TIMEOUT_S, Pair, abort, aborted_while_it_computes, fresh_text, post, wait_for
from tests.machine import seconds


def real(pair: Pair) -> bool:
    return pair.kind == "sglang"


def test_room_zero(pair: Pair) -> None:
    body = {**pair.body(fresh_text(20)), "bootstrap_room": 0}
    legs = post(pair.prefill, body), post(pair.decode, body)
    prefill = legs[0].result(seconds(TIMEOUT_S))
    if real(pair):
        assert prefill.status_code == 200
        abort(pair.decode, body)
        assert legs[1].result(seconds(TIMEOUT_S)).status_code == 500, "it was still waiting"
    else:
        assert (prefill.status_code, legs[1].result(seconds(TIMEOUT_S)).status_code) == (400, 400)


def test_a_room_that_is_live(pair: Pair) -> None:
    body = pair.body(fresh_text(20))
    other = {**body, "rid": body["rid"] + "-b"}
    first = post(pair.prefill, body)
    wait_for(lambda: pair.queue(pair.prefill, "prefill_bootstrap_queue") == 1)
    second = post(pair.prefill, other)
    if real(pair):
        wait_for(lambda: pair.queue(pair.prefill, "prefill_bootstrap_queue") == 2)
    else:
        assert "Duplicate" in second.result(seconds(TIMEOUT_S)).json()["message"]
    assert post(pair.decode, body).result(seconds(TIMEOUT_S)).status_code == 200
    assert first.result(seconds(TIMEOUT_S)).status_code == 200
    assert second.result(seconds(TIMEOUT_S)).status_code == (200 if real(pair) else 500)


def test_prefill_aborted_when_decode_is_there(pair: Pair) -> None:
    prefill, decode = aborted_while_it_computes(pair, "prefill")
    assert prefill.result(seconds(TIMEOUT_S)).json()["meta_info"]["finish_reason"]["type"] == "abort"
    answer = decode.result(seconds(TIMEOUT_S))
    assert answer.status_code == 500
    assert ("timed out" in answer.json()["message"]) == real(pair)


def test_facts_of_the_bootstrap_server(pair: Pair) -> None:
    ranks = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    facts = httpx.get(f"{pair.bootstrap}/route", params=dict.fromkeys(ranks, -1)).json()
    assert ("prefill_http_port" in facts) == real(pair)


@pytest.mark.timeout(240, func_only=True)
def test_a_room_without_a_host(pair: Pair, decode_runs: Callable[[], bool]) -> None:
    body = pair.body("hello")
    del body["bootstrap_host"]
    if real(pair):
        with pytest.raises(httpx.TransportError):
            httpx.post(pair.decode + CHAT, json=body, timeout=seconds(TIMEOUT_S))
        wait_for(lambda: not decode_runs())
    else:
        answer = httpx.post(pair.decode + CHAT, json=body, timeout=seconds(TIMEOUT_S))
        assert answer.status_code == 400
        assert "without bootstrap host" in answer.json()["message"]
