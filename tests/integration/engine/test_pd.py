"""Prefill and decode as two processes: the hand-off, and each way it can end badly."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import httpx
import pytest
from tests.contract.pd.pair import post

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
        return post(self.prefill.url, {**body, "stream": False})

    def decode_leg(self, body: dict[str, Any]) -> "Future[httpx.Response]":
        return post(self.decode.url, body)


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


def test_a_stream_holds_its_head_until_the_first_token(pair: Callable[..., Pair]) -> None:
    legs = pair()
    body = legs.body(7, stream=True)
    answer = legs.decode_leg(body)
    legs.decode.wait(lambda log: log["running"] == 1)
    with pytest.raises(TimeoutError):
        answer.result(timeout=0.2)
    legs.prefill_leg(body)
    assert answer.result().text.endswith("data: [DONE]\n\n")


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


@pytest.mark.parametrize("leaver", ["prefill", "decode"])
def test_a_client_that_leaves_one_leg_before_the_head_ends_both(pair: Callable[..., Pair], leaver: str) -> None:
    legs = pair(0.05)
    body = legs.body(7, LONG, stream=True)
    engines = {"prefill": legs.prefill, "decode": legs.decode}
    (stayer,) = set(engines) - {leaver}
    staying = post(engines[stayer].url, body)
    with engines[leaver].send(body):
        engines[leaver].wait(lambda log: log["running"] == 1)
        legs.prefill.wait(lambda _: legs.prefill.load()["disaggregation"]["prefill_bootstrap_queue_reqs"] == 0)
    assert '"error"' in staying.result().text
    assert [ended(engine)["aborted"] for engine in legs] == [True, True]


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


def test_decode_fails_when_its_prefill_engine_does_not_exist(pair: Callable[..., Pair]) -> None:
    legs = pair()
    answer = legs.decode_leg({**legs.body(7), "bootstrap_port": 1}).result()
    assert answer.status_code == 500
