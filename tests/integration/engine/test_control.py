"""Aborts, clients that leave, information, ranks, life cycle."""

import os
import signal
from collections import Counter
from typing import Any

import httpx

USER = {"role": "user", "content": "hi"}


def endless(rid: str, **more: Any) -> dict[str, Any]:
    return {"messages": [USER], "rid": rid, "max_tokens": 20_000, "ignore_eos": True, **more}


def entry(log: dict[str, Any], rid: str) -> dict[str, Any]:
    (found,) = [entry for entry in log["finished"] if entry["rid"] == rid]
    return dict(found)


def test_a_client_that_leaves_is_noticed_before_and_after_the_head(start_engine: Any) -> None:
    engine = start_engine("--speed", "0.1")  # 50 s to the first token
    long = {"messages": [{"role": "user", "content": "x" * 400_000}], "rid": "before-head", "stream": True}
    with engine.send(long):
        engine.wait(lambda log: log["running"] == 1)
    log = engine.wait(lambda log: log["total"] == 1)
    assert entry(log, "before-head")["completion_tokens"] == 0
    assert log["running"] == 0
    with httpx.stream("POST", engine.url + "/v1/chat/completions", json=endless("after-head", stream=True)) as response:
        assert next(response.iter_lines()).startswith("data: ")
    log = engine.wait(lambda log: log["total"] == 2)
    assert entry(log, "after-head")["aborted"] is True
    assert engine.load()["num_running_reqs"] == 0
    assert engine.load()["num_used_tokens"] == 0


def test_information_says_that_it_is_a_model_and_how_big(start_engine: Any) -> None:
    engine = start_engine("--model", "a", "--model", "b", "--engine-id", "east-a0", "--dp-size", "2", "--speed", "50")
    info = engine.client.get("/server_info").json()
    assert info["engine"] == "warmroute-embedded"
    assert (info["engine_id"], info["page_size"], info["dp_size"], info["speed"]) == ("east-a0", 64, 2, 50.0)
    assert (info["max_total_num_tokens"], info["context_length"]) == (600_000, 200_000)
    assert info["disaggregation_mode"] == "null"
    assert info["disaggregation_bootstrap_port"] is None
    assert engine.client.get("/get_server_info").json()["engine_id"] == "east-a0"
    assert [model["id"] for model in engine.client.get("/v1/models").json()["data"]] == ["a", "b"]
    assert engine.client.get("/ready").status_code == 200
    assert engine.client.get("/get_load").status_code == 404


def test_loads_and_metrics_count_virtual_work(start_engine: Any) -> None:
    engine = start_engine("--speed", "50")
    for _ in range(2):
        body = engine.client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x" * 8000}], "max_tokens": 5}
        ).json()
    prompt_tokens = body["usage"]["prompt_tokens"]
    cached_tokens = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    load = engine.load()
    uncached = 2 * prompt_tokens - cached_tokens
    assert load["total_prefill_uncached_tokens"] == uncached
    assert load["total_prefill_busy_us"] == round(uncached / 20_000 * 1e6) + 2 * 5000
    assert load["cache_hit_rate"] == round(cached_tokens / (2 * prompt_tokens), 4)
    metrics = engine.client.get("/metrics").text
    by_name: Counter[str] = Counter()
    for line in metrics.splitlines():
        if not line.startswith("#"):
            by_name[line.partition("{")[0]] += float(line.rpartition(" ")[2])  # type: ignore[assignment]
    assert by_name["sglang:prompt_tokens_total"] == 2 * prompt_tokens
    assert by_name["sglang:cached_tokens_total"] == cached_tokens
    assert by_name["sglang:generation_tokens_total"] == 10
    assert by_name["sglang:num_requests_total"] == 2


def test_each_rank_has_a_cache_of_its_own_and_can_be_chosen(start_engine: Any) -> None:
    engine = start_engine("--speed", "50", "--dp-size", "2")
    body = {"messages": [{"role": "user", "content": "x" * 4000}], "max_tokens": 1}

    def cached(headers: dict[str, str] | None = None, **more: Any) -> int:
        answer = engine.client.post("/v1/chat/completions", json={**body, **more}, headers=headers).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached({"x-data-parallel-rank": "1"}) == 0
    assert cached(routed_dp_rank=1) > 0
    assert cached(routed_dp_rank=0) == 0
    assert cached({"x-data-parallel-rank": "0"}, routed_dp_rank=1) > 0  # the header wins; rank 0 is warm now
    assert [entry["dp_rank"] for entry in engine.finished()["finished"]] == [1, 1, 0, 0]
    for _ in range(4):
        cached()
    assert {entry["dp_rank"] for entry in engine.finished()["finished"][4:]} == {0, 1}
    assert [load["dp_rank"] for load in engine.client.get("/v1/loads?dp_rank=1").json()["loads"]] == [1]


def test_sigterm_lets_a_short_answer_end_and_cuts_a_long_one(start_engine: Any) -> None:
    engine = start_engine("--speed", "1")
    short = {"messages": [USER], "max_tokens": 20, "ignore_eos": True, "stream": True}
    with (
        httpx.stream("POST", engine.url + "/v1/chat/completions", json=short) as quick,
        httpx.stream("POST", engine.url + "/v1/chat/completions", json=endless("long", stream=True)) as slow,
    ):
        quick_lines, slow_lines = quick.iter_lines(), slow.iter_lines()
        next(quick_lines)
        next(slow_lines)
        os.kill(engine.pid, signal.SIGTERM)
        quick_rest = [line for line in quick_lines if line]
        slow_rest = [line for line in slow_lines if line]
    assert '"finish_reason":"length"' in quick_rest[-2]
    assert '"finish_reason":"abort"' in slow_rest[-2]
    assert engine.child.status(5.0) == 0
