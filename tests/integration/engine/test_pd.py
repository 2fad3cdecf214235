"""Prefill and decode as two processes: the hand-off, and each way it can end badly."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import httpx
import pytest
from tests.machine import seconds

pytestmark = pytest.mark.full

LONG = "x" * 200_000  # 50,000 tokens: 2.5 virtual seconds of prefill


class Pair(NamedTuple):
    prefill: Any
    decode: Any

    def body(self, room: int, content: str = "hello", **more: Any) -> dict[str, Any]:
        return {
            "messages": [{"role": "user", "content": content}],
            "rid": f"rid-{room}",
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.prefill.bootstrap_port,
            "bootstrap_room": room,
            **more,
        }

    def prefill_leg(self, body: dict[str, Any]) -> "Future[httpx.Response]":
        return post(self.prefill, {**body, "stream": False})

    def decode_leg(self, body: dict[str, Any]) -> "Future[httpx.Response]":
        return post(self.decode, body)


def post(engine: Any, body: dict[str, Any]) -> "Future[httpx.Response]":
    """Post from a thread of its own."""
    limit_s = seconds(20)
    future: Future[httpx.Response] = Future()

    def ask() -> None:
        try:
            future.set_result(httpx.post(engine.url + "/v1/chat/completions", json=body, timeout=limit_s))
        except httpx.HTTPError as error:
            future.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return future


@pytest.fixture
def pair(start_engine: Any) -> Callable[..., Pair]:
    def start(speed: float = 50, *args: str) -> Pair:
        common = ("--speed", str(speed), *args)
        return Pair(start_engine("--role", "prefill", *common), start_engine("--role", "decode", *common))

    return start


def ended(engine: Any) -> dict[str, Any]:
    """The single entry of an engine's finish log."""
    log = engine.wait(lambda log: log["running"] == 0 and log["total"] == 1)
    return dict(log["finished"][0])


def test_decode_answers_with_the_counts_of_prefill(pair: Callable[..., Pair]) -> None:
    legs = pair()
    for room, cached_pages in ((7, 0), (8, 15)):
        body = legs.body(room, "y" * 4000, return_cached_tokens_details=True, max_tokens=6)
        first, second = legs.decode_leg(body), legs.prefill_leg(body)
        prefill, decode = second.result().json(), first.result().json()
        assert prefill["usage"]["completion_tokens"] == 1
        assert prefill["choices"][0]["finish_reason"] == "length"
        assert decode["usage"]["completion_tokens"] == 6
        assert decode["usage"]["prompt_tokens"] == prefill["usage"]["prompt_tokens"]
        assert decode["usage"]["prompt_tokens_details"] == {"cached_tokens": cached_pages * 64}
        assert decode.get("sglext") == prefill.get("sglext")
        first_token = prefill["choices"][0]["message"]["content"]
        assert decode["choices"][0]["message"]["content"].startswith(first_token)


def test_the_modelled_first_token_of_decode_is_prefill_plus_transfer(pair: Callable[..., Pair]) -> None:
    legs = pair()
    body = legs.body(7, LONG)
    futures = [legs.prefill_leg(body), legs.decode_leg(body)]
    assert [future.result().status_code for future in futures] == [200, 200]
    prefill, decode = ended(legs.prefill), ended(legs.decode)
    tokens = prefill["prompt_tokens"]
    assert (prefill["role"], decode["role"]) == ("prefill", "decode")
    chunks = -(-tokens // 8192)
    assert prefill["ttft_virtual_ms"] == pytest.approx(tokens / 20 + 5 * chunks, abs=0.01)
    assert decode["ttft_virtual_ms"] == pytest.approx(prefill["ttft_virtual_ms"] + tokens / 400 + 2, abs=0.01)


def test_each_leg_waits_for_the_other(pair: Callable[..., Pair]) -> None:
    legs = pair()
    body = legs.body(7)
    alone = legs.prefill_leg(body)
    legs.prefill.wait(lambda log: log["running"] == 1)
    assert legs.prefill.load()["disaggregation"]["prefill_bootstrap_queue_reqs"] == 1
    assert legs.prefill.load()["total_prefill_uncached_tokens"] == 0
    assert not alone.done()
    assert legs.decode_leg(body).result().status_code == 200
    assert alone.result().status_code == 200


def test_a_stream_holds_its_head_until_the_first_token(pair: Callable[..., Pair]) -> None:
    legs = pair()
    body = legs.body(7, stream=True)
    answer = legs.decode_leg(body)
    legs.decode.wait(lambda log: log["running"] == 1)
    with pytest.raises(TimeoutError):
        answer.result(timeout=0.2)
    legs.prefill_leg(body)
    assert answer.result().text.endswith("data: [DONE]\n\n")


def test_a_request_without_a_room_or_with_room_zero_is_refused(pair: Callable[..., Pair]) -> None:
    legs = pair()
    for engine in legs:
        without = engine.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
        assert without.status_code == 400
        assert "Disaggregated request received without bootstrap room id" in without.json()["message"]
        assert engine.client.post("/v1/chat/completions", json=legs.body(0)).status_code == 400
        assert engine.finished()["total"] == 0


def test_a_room_that_is_live_is_not_given_twice(pair: Callable[..., Pair]) -> None:
    legs = pair()
    body = legs.body(7)
    first = legs.prefill_leg(body)
    legs.prefill.wait(lambda log: log["running"] == 1)
    second = legs.prefill_leg({**body, "rid": "other"}).result()
    assert second.status_code == 500
    assert "Duplicate" in second.json()["message"]
    assert legs.decode_leg(body).result().status_code == 200
    assert first.result().status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_decode_fails_at_once_when_prefill_is_killed(pair: Callable[..., Pair], stream: bool) -> None:
    legs = pair(0.001)  # prefill would take 2,500 s
    body = legs.body(7, LONG, stream=stream, stream_options={"include_usage": True} if stream else None)
    prefill, decode = legs.prefill_leg(body), legs.decode_leg(body)
    legs.prefill.wait(lambda log: log["running"] == 1)
    legs.decode.wait(lambda log: log["running"] == 1)
    legs.prefill.kill()
    answer = decode.result()
    if stream:
        error, usage, done = answer.text.split("\n\n")[:3]
        assert error.startswith('data: {"error": {"object": "error"')
        assert '"choices":[],"usage":' in usage
        assert done == "data: [DONE]"
    else:
        assert answer.status_code == 500
        assert "Decode transfer failed" in answer.json()["message"]
    assert isinstance(prefill.exception(), httpx.HTTPError)
    assert ended(legs.decode)["aborted"] is True


def test_prefill_stops_at_once_when_decode_is_killed(pair: Callable[..., Pair]) -> None:
    legs = pair(0.05)
    bodies = [legs.body(room, LONG) for room in range(1, 6)]
    futures = [legs.prefill_leg(body) for body in bodies]
    broken = [legs.decode_leg(body) for body in bodies]
    legs.prefill.wait(lambda log: log["running"] == 5)
    legs.decode.wait(lambda log: log["running"] == 5)
    legs.prefill.wait(lambda _: legs.prefill.load()["disaggregation"]["prefill_bootstrap_queue_reqs"] == 0)
    legs.decode.kill()
    assert {future.result().status_code for future in futures} == {500}
    assert all(isinstance(future.exception(), httpx.HTTPError) for future in broken)
    log = legs.prefill.finished()
    assert (log["running"], [entry["aborted"] for entry in log["finished"]]) == (0, [True] * 5)
    assert legs.prefill.load()["num_running_reqs"] == legs.prefill.load()["num_waiting_reqs"] == 0


def test_decode_fails_when_its_prefill_engine_does_not_exist(pair: Callable[..., Pair]) -> None:
    legs = pair()
    answer = legs.decode_leg({**legs.body(7), "bootstrap_port": 1}).result()
    assert answer.status_code == 500


@pytest.mark.parametrize("content", ["hello", LONG], ids=["in the bootstrap queue", "computing"])
def test_aborting_prefill_ends_the_decode_leg(pair: Callable[..., Pair], content: str) -> None:
    legs = pair(0.05)
    body = legs.body(7, content)
    prefill = legs.prefill_leg(body)
    legs.prefill.wait(lambda log: log["running"] == 1)
    decode = legs.decode_leg(body) if content == LONG else None
    if decode is not None:
        legs.decode.wait(lambda log: log["running"] == 1)
        legs.prefill.wait(lambda _: legs.prefill.load()["disaggregation"]["prefill_bootstrap_queue_reqs"] == 0)
    legs.prefill.client.post("/abort_request", json={"rid": "rid-7"})
    if decode is None:
        assert prefill.result().status_code == 500
        assert "Aborted by AbortReq" in prefill.result().json()["message"]
    else:
        assert prefill.result().json()["choices"][0]["finish_reason"] == "abort"
    assert ended(legs.prefill)["aborted"] is True
    if decode is not None:
        assert decode.result().status_code == 500
        assert ended(legs.decode)["aborted"] is True


def test_aborting_decode_ends_the_prefill_leg(pair: Callable[..., Pair]) -> None:
    legs = pair(0.05)
    body = legs.body(7, LONG)
    prefill, decode = legs.prefill_leg(body), legs.decode_leg(body)
    legs.prefill.wait(lambda log: log["running"] == 1)
    legs.decode.wait(lambda log: log["running"] == 1)
    legs.prefill.wait(lambda _: legs.prefill.load()["disaggregation"]["prefill_bootstrap_queue_reqs"] == 0)
    legs.decode.client.post("/abort_request", json={"rid": "rid-7"})
    assert decode.result().status_code == 500
    assert prefill.result().status_code == 500
    assert "Aborted by decode-side abort notification" in prefill.result().json()["message"]
    assert ended(legs.prefill)["aborted"] is True
    assert ended(legs.decode)["aborted"] is True


@pytest.mark.parametrize("leaver", ["prefill", "decode"])
def test_a_client_that_leaves_one_leg_before_the_head_ends_both(pair: Callable[..., Pair], leaver: str) -> None:
    legs = pair(0.05)
    body = legs.body(7, LONG, stream=True)
    engines = {"prefill": legs.prefill, "decode": legs.decode}
    (stayer,) = set(engines) - {leaver}
    staying = post(engines[stayer], body)
    with engines[leaver].send(body):
        engines[leaver].wait(lambda log: log["running"] == 1)
        legs.prefill.wait(lambda _: legs.prefill.load()["disaggregation"]["prefill_bootstrap_queue_reqs"] == 0)
    assert '"error"' in staying.result().text
    assert [ended(engine)["aborted"] for engine in legs] == [True, True]


def test_a_leg_whose_partner_never_comes_times_out(pair: Callable[..., Pair]) -> None:
    legs = pair(50, "--bootstrap-timeout-s", "0.2")
    prefill = legs.prefill_leg(legs.body(7)).result()
    assert (prefill.status_code, "Prefill bootstrap failed" in prefill.json()["message"]) == (500, True)
    assert legs.decode_leg(legs.body(8)).result().status_code == 500
    assert ended(legs.prefill)["aborted"] is True
    assert ended(legs.decode)["aborted"] is True


def test_the_room_chooses_the_rank_of_prefill(pair: Callable[..., Pair]) -> None:
    legs = pair(50, "--dp-size", "2")

    def both(**body: Any) -> list[int]:
        return [leg.result().status_code for leg in (legs.prefill_leg(body), legs.decode_leg(body))]

    assert both(**legs.body(10)) == [200, 200]
    assert both(**legs.body(11)) == [200, 200]
    assert [entry["dp_rank"] for entry in legs.prefill.finished()["finished"]] == [0, 1]
    body = legs.body(12)
    prefill = legs.prefill_leg({**body, "routed_dp_rank": 1})
    assert legs.decode_leg({**body, "disagg_prefill_dp_rank": 1}).result().status_code == 200
    assert prefill.result().status_code == 200
    prefill = legs.prefill_leg({**legs.body(14), "routed_dp_rank": 1})
    conflict = legs.decode_leg(legs.body(14)).result()
    assert "follow_bootstrap_room conflict" in conflict.json()["message"]
    assert prefill.result().status_code == 500


def test_decode_without_room_for_the_kv_waits_for_it(pair: Callable[..., Pair]) -> None:
    """Two do not fit. Each would decode for minutes, so it has the room until it is aborted."""
    speed = 0.1
    legs = pair(speed, "--kv-tokens", "2048")
    bodies = [legs.body(room, "z" * 4000, max_tokens=1000, ignore_eos=True) for room in (7, 8, 9)]

    def until_others_wait(number: int) -> float:
        def as_wanted(log: dict[str, Any]) -> bool:
            load = legs.decode.load()
            waiting = load["disaggregation"]["decode_prealloc_queue_reqs"]
            return (log["running"], load["num_running_reqs"], waiting) == (1 + number, 1, number)

        legs.decode.wait(as_wanted)
        return time.monotonic()

    prefills, decodes, waits_since_s, least_waits_ms = [], [], [], [0.0]
    for number, body in enumerate(bodies):
        prefills.append(legs.prefill_leg(body))
        decodes.append(legs.decode_leg(body))
        waits_since_s.append(until_others_wait(number))
    for number, body in enumerate(bodies):
        until_others_wait(2 - number)
        assert not any(leg.done() for leg in (*prefills[number + 1 :], *decodes[number:]))
        if number < 2:
            least_waits_ms.append((time.monotonic() - waits_since_s[number + 1]) * speed * 1000)
        legs.decode.client.post("/abort_request", json={"rid": body["rid"]})
        assert prefills[number].result().status_code == decodes[number].result().status_code == 200
    finished = legs.decode.finished()["finished"]
    assert [entry["rid"] for entry in finished] == [body["rid"] for body in bodies]
    assert all(entry["ttft_virtual_ms"] > least for entry, least in zip(finished, least_waits_ms, strict=True))
