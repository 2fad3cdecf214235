"""What an engine tells of itself: health, loads, server and model information, metrics, tokens, and the flush."""

import pytest
from tests.contract.subject import CHAT, Subject, cached, chat, endless, unique

METRICS = (
    "cache_hit_rate cached_tokens_total gen_throughput generation_tokens_total max_total_num_tokens "
    "num_aborted_requests_total num_decode_prealloc_queue_reqs num_decode_transfer_queue_reqs "
    "num_prefill_bootstrap_queue_reqs num_prefill_inflight_queue_reqs num_queue_reqs num_requests_total "
    "num_running_reqs num_used_tokens prefill_effective_tokens_total prompt_tokens_total "
    "time_to_first_token_seconds_count time_to_first_token_seconds_sum token_usage utilization"
)
CORE = (
    "dp_rank num_running_reqs num_waiting_reqs num_waiting_uncached_tokens num_used_tokens num_total_tokens "
    "max_total_num_tokens max_running_requests token_usage total_prefill_uncached_tokens total_prefill_busy_us"
)


@pytest.mark.parametrize("path", ["/ready", "/health_generate", "/ping"])
def test_a_healthy_engine_answers_200_and_nothing_else(engine: Subject, path: str) -> None:
    response = engine.get(path)
    assert (response.status_code, response.content) == (200, b"")


def test_loads_have_a_row_for_each_rank(engine: Subject) -> None:
    facts = engine.facts()
    found = engine.get("/v1/loads").json()
    assert [row["dp_rank"] for row in found["loads"]] == list(range(facts["dp_size"]))
    (row,) = found["loads"]
    assert set(CORE.split()) <= set(row)
    assert row["max_total_num_tokens"] == facts["max_total_num_tokens"]
    assert row["max_running_requests"] == facts["max_running_requests"]
    assert row["disaggregation"]["mode"] == facts["disaggregation_mode"] == "null"
    assert engine.get("/v1/loads?dp_rank=0").json()["loads"][0]["dp_rank"] == 0
    assert engine.get("/v1/loads?dp_rank=1").json()["loads"] == []
    assert engine.get("/v1/loads?dp_rank=x").status_code == 400


def test_loads_may_be_asked_for_in_part(engine: Subject) -> None:
    (core,) = engine.get("/v1/loads?include=core").json()["loads"]
    assert set(CORE.split()) <= set(core)
    assert not {"memory", "disaggregation", "queues"} & set(core)
    (part,) = engine.get("/v1/loads?include=core,disagg").json()["loads"]
    assert "disaggregation" in part
    assert "queues" not in part


def test_loads_follow_what_runs_and_waits(engine: Subject) -> None:
    slots = engine.load()["max_running_requests"]
    for i in range(slots):
        engine.send(CHAT, endless(chat(f"busy {i}", stream=True)))
    engine.until_live(slots)
    engine.send(CHAT, chat("waits " * 50, stream=True))
    engine.until_live(slots, 1)
    row = engine.load()
    assert row["num_used_tokens"] > 0
    assert row["num_total_tokens"] > row["num_used_tokens"]
    assert row["num_waiting_uncached_tokens"] > 0
    assert 0 < row["token_usage"] <= 1
    engine.abort_all()


def test_the_counted_prefill_work_grows_by_what_was_not_cached(engine: Subject) -> None:
    text = f"{unique()} counted " * 30
    before = engine.load()
    usages = [engine.answer(CHAT, chat(text))["usage"] for _ in range(2)]
    after = engine.load()
    uncached = sum(usage["prompt_tokens"] - cached(usage) for usage in usages)
    assert after["total_prefill_uncached_tokens"] - before["total_prefill_uncached_tokens"] == uncached
    assert after["total_prefill_busy_us"] > before["total_prefill_busy_us"]


def test_server_information_has_what_a_proxy_reads(engine: Subject) -> None:
    facts = engine.facts()
    assert facts["status"] == "ready"
    assert facts["page_size"] == 16
    assert facts["dp_size"] == 1
    assert facts["served_model_name"] == "tiny"
    assert facts["disaggregation_mode"] == "null"
    assert facts["enable_cache_report"] is True
    assert facts["enable_hierarchical_cache"] is True
    assert facts["hicache_storage_backend"] == "file"
    assert facts["max_req_input_len"] < facts["context_length"]
    assert facts["startup_time"]["tokenizer_e2e"] > 0
    (state,) = facts["internal_states"]
    assert state["memory_usage"]["token_capacity"] == facts["max_total_num_tokens"]
    assert state["effective_max_running_requests_per_dp"] == facts["max_running_requests"]
    assert engine.get("/get_server_info").json()["startup_time"] == facts["startup_time"]


def test_model_information(engine: Subject) -> None:
    info = engine.get("/model_info").json()
    assert (info["served_model_name"], info["disaggregation_mode"]) == ("tiny", "null")
    assert info["is_generation"] is True
    assert engine.get("/get_model_info").json() == info


def test_models_are_listed_and_known_by_name(engine: Subject) -> None:
    (card,) = engine.get("/v1/models").json()["data"]
    assert (card["id"], card["object"]) == ("tiny", "model")
    assert card["max_model_len"] == engine.facts()["context_length"]
    assert engine.get("/v1/models/tiny").json()["id"] == "tiny"
    unknown = engine.get("/v1/models/nobody")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_metrics_have_the_names_that_dashboards_use(engine: Subject) -> None:
    text = f"{unique()} measured " * 30
    for _ in range(2):  # some families appear with their first event, such as the first cached token
        engine.answer(CHAT, chat(text))
    rid = unique()
    future = engine.later(CHAT, endless(chat("aborted", rid=rid)))
    engine.until_live(1)
    engine.abort(rid)
    future.result()
    lines = engine.get("/metrics").text.splitlines()
    names = {line.partition("{")[0] for line in lines if not line.startswith("#")}
    assert {f"sglang:{name}" for name in METRICS.split()} - names == set()
    sources = {
        line.partition('cache_source="')[2].partition('"')[0] for line in lines if "cached_tokens_total{" in line
    }
    assert "device" in sources


def test_tokens_of_a_prompt_of_several_and_of_a_chat(engine: Subject) -> None:
    one = engine.answer("/v1/tokenize", {"prompt": "hello there, how are you?"})
    assert one["count"] == len(one["tokens"]) > 1
    assert one["max_model_len"] > one["count"]
    assert engine.answer("/tokenize", {"prompt": "hello there, how are you?"}) == one
    several = engine.answer("/v1/tokenize", {"prompt": ["a", "hello there, how are you?"]})
    assert several["count"][1] == one["count"]
    assert several["tokens"][1] == one["tokens"]
    for body in ({}, {"prompt": 5}, {"prompt": "a", "messages": []}):
        assert engine.post("/v1/tokenize", body).status_code == 400


def test_the_tokens_of_a_chat_are_those_that_its_usage_counts(engine: Subject) -> None:
    request = chat("hello there, how are you?")
    counted = engine.answer("/v1/tokenize", {"messages": request["messages"]})["count"]
    assert engine.answer(CHAT, request)["usage"]["prompt_tokens"] == counted


def test_a_flush_empties_the_cache_unless_something_runs(engine: Subject) -> None:
    text = f"{unique()} flushed " * 30
    engine.answer(CHAT, chat(text))
    engine.send(CHAT, endless(chat("in the way", stream=True)))
    engine.until_live(1)
    refused = engine.client.post("/flush_cache")
    assert (refused.status_code, refused.text) == (400, "Flush cache failed.\n")
    engine.abort_all()
    assert cached(engine.answer(CHAT, chat(text))["usage"]) > 16
    flushed = engine.client.post("/flush_cache")
    assert flushed.status_code == 200
    assert flushed.text.startswith("Cache flushed.\n")
    assert engine.get("/flush_cache").status_code == 200
