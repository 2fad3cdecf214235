"""A turn through a real proxy and real embedded engines: answers, receipts, sessions, tenants."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.subjects.ports import free_port
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, events, until
from tests.subjects.stopped import Several
from tests.subjects.websockets import Socket
from warmroute.contract import receipt as contract_receipt
from warmroute.contract.version import VERSION
from warmroute_proxy import BUILD


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    folder = tmp_path_factory.mktemp("engines")
    roles = {"p0": "prefill", "d0": "decode", "d1": "decode", "a0": "aggregated"}
    with Several([EngineProcess(folder, name, role) for name, role in roles.items()]) as started:
        yield started


@pytest.fixture(scope="module")
def proxy(engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with ProxyProcess(tmp_path_factory.mktemp("proxy") / "p", [engine.toml("east") for engine in engines]) as started:
        yield started


@pytest.fixture(scope="module")
def stock(proxy: ProxyProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=proxy.base_url, api_key=proxy.keys[0], max_retries=0) as found:
        yield found


def test_a_whole_answer_carries_a_sound_receipt(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=chat("whole"))
    usage = answer.json()["usage"]
    assert contract_receipt.check(usage) == []
    assert usage["warmroute"]["id"] == answer.headers["x-warmroute-receipt"]
    assert answer.headers["x-warmroute-home"] == usage["warmroute"]["region"] == "east"
    assert "sglext" not in answer.json()


def test_a_stream_gives_its_receipt_to_a_client_that_asked_for_usage(stock: openai.OpenAI) -> None:
    chunks = list(stock.chat.completions.create(**chat("stream"), stream=True, stream_options={"include_usage": True}))
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    usage = chunks[-1].to_dict()["usage"]
    assert isinstance(usage, dict)
    assert contract_receipt.check(usage) == []


def test_a_stream_without_usage_has_no_extra_chunk_and_its_receipt_is_kept(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=chat("quiet", stream=True))
    assert all(event["choices"] and not event.get("usage") for event in events(answer.text))
    assert answer.text.endswith("data: [DONE]\n\n")
    kept = client.get(f"/v1/usage/receipts/{answer.headers['x-warmroute-receipt']}").json()
    assert (kept["state"], kept["outcome"]) == ("settled", "completed")
    assert contract_receipt.check(kept["usage"]) == []


def test_the_next_turn_of_a_session_lands_where_it_is_warm(client: httpx.Client) -> None:
    headers = {"x-session-affinity": "warm-session"}
    served = []
    for turns in (1, 2, 3, 4):
        usage = client.post("/v1/chat/completions", json=chat("warm", turns=turns), headers=headers).json()["usage"]
        receipt = usage["warmroute"]
        served.append(receipt["workers"][0]["id"])
        assert receipt["turn"] == turns
        if turns > 1:
            assert usage["prompt_tokens_details"]["cached_tokens"] > 0.75 * usage["prompt_tokens"]
            assert set(receipt["loss"]) <= {"new", "page_rounding", "not_kept"}
    assert len(set(served)) == 1


def test_prefill_and_decode_serve_a_turn_together(client: httpx.Client, engines: list[EngineProcess]) -> None:
    """So many sessions at once that the pair is the cheaper place for some of them."""

    def ask(number: int) -> tuple[str, ...]:
        usage = client.post("/v1/chat/completions", json=chat(f"spread {number} " * 400)).json()["usage"]
        assert contract_receipt.check(usage) == []
        return tuple(worker["role"] for worker in usage["warmroute"]["workers"])

    with ThreadPoolExecutor(8) as pool:
        roles = set(pool.map(ask, range(16)))
    assert roles == {("prefill", "decode"), ("aggregated",)}
    until(lambda: all(engine.running() == 0 for engine in engines), "nothing is left on any engine")


def test_prefill_and_decode_serve_the_turns_of_a_websocket(proxy: ProxyProcess) -> None:
    says = {"metadata": {"script": json.dumps([{"text": "I have looked at it."}] * 2)}}
    with proxy.admin() as admin:
        admin.post("/admin/engines/a0/drain").raise_for_status()
        with Socket(proxy) as socket:
            first = socket.answer("over a websocket " * 300, **says)
            second = socket.answer("more", previous_response_id=first["id"], **says)
        admin.delete("/admin/engines/a0/drain").raise_for_status()
    assert [worker["role"] for worker in second["usage"]["warmroute"]["workers"]] == ["prefill", "decode"]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"] - 64
    assert second["output"][0]["content"][0]["text"] == "I have looked at it."


def test_tool_calls_reasoning_logprobs_and_choices_survive(stock: openai.OpenAI) -> None:
    script = json.dumps({"tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}]})
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
    message = stock.chat.completions.create(**chat("tool", tools=tools, metadata={"script": script})).choices[0].message
    assert message.tool_calls
    assert json.loads(message.tool_calls[0].function.arguments) == {"command": "ls"}

    thinking = stock.chat.completions.create(**chat("think"), reasoning_effort="high")
    assert thinking.choices[0].message.to_dict()["reasoning_content"]

    many = stock.chat.completions.create(**chat("many"), n=3, logprobs=True, max_tokens=5)
    assert sorted(choice.index for choice in many.choices) == [0, 1, 2]
    assert all(choice.logprobs and choice.logprobs.content for choice in many.choices)
    assert many.usage
    assert many.usage.completion_tokens == 15


def test_an_alias_is_the_same_model(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=chat("alias") | {"model": "kimi"}).json()
    assert answer["model"] == "kimi-k2.5"
    assert answer["usage"]["warmroute"]["rates_usd_per_mtok"] == {"input": "0.6", "cached": "0.1", "output": "3"}


def test_tenants_share_no_cache_and_see_no_receipts_of_each_other(proxy: ProxyProcess, client: httpx.Client) -> None:
    body = chat("same words for both " * 50)
    body["messages"][0]["content"] = "A system prompt that no other test sends. " * 40
    mine = client.post("/v1/chat/completions", json=body)
    again = client.post("/v1/chat/completions", json=body)
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    with proxy.client(tenant=1) as other:
        theirs = other.post("/v1/chat/completions", json=body)
        assert theirs.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        receipt = f"/v1/usage/receipts/{mine.headers['x-warmroute-receipt']}"
        assert client.get(receipt).status_code == 200
        assert other.get(receipt).status_code == 404
        [card] = other.get("/v1/models").json()["data"]
        assert card["id"] == "kimi-k2.5"
        assert card["rates_usd_per_mtok"].keys() == {"input", "cached", "output"}


def test_metrics_and_decisions_need_the_admin_key(proxy: ProxyProcess, client: httpx.Client) -> None:
    client.post("/v1/chat/completions", json=chat("metrics"))
    with proxy.admin() as admin:
        text = admin.get("/metrics").text
        newest = admin.get("/admin/decisions", params={"limit": 1}).json()["decisions"]
        workers = admin.get("/admin/workers").json()
    assert 'warmroute_requests_total{route="/v1/chat/completions",status="200"}' in text
    assert "warmroute_prediction_error_ratio_count" in text
    assert newest[0]["reasons"][0]["cost_s"] <= newest[0]["reasons"][-1]["cost_s"]
    assert workers
    assert httpx.get(f"{proxy.line['admin_url']}/metrics").status_code == 401
    assert client.get("/metrics").status_code == 404


def test_ready_and_a_metric_name_the_version_and_the_build(proxy: ProxyProcess, client: httpx.Client) -> None:
    ready = client.get("/ready").json()
    assert (ready["version"], ready["build"]) == (VERSION, BUILD)
    text = proxy.metrics()
    assert f'warmroute_build_info{{version="{VERSION}",build="{BUILD}"}} 1' in text


def test_every_finished_request_of_the_engines_has_one_row(
    proxy: ProxyProcess, engines: list[EngineProcess], client: httpx.Client
) -> None:
    assert client.post("/v1/chat/completions", json=chat("a row of its own")).status_code == 200
    finished = {
        entry["rid"]
        for engine in engines
        if engine.role != "prefill"
        for entry in engine.log()["finished"]
        if not entry["aborted"]
    }
    rows = proxy.rows(expected=len(finished))
    billed = [json.loads(row["rids"])[-1] for row in rows]
    assert finished
    assert sorted(billed) == sorted(finished)


def test_a_session_is_not_cold_after_its_engines_or_its_proxy_have_restarted(tmp_path: Path) -> None:
    port = str(free_port())
    engine = EngineProcess(tmp_path, "r0", "aggregated", "--port", port).listening()
    proxy = ProxyProcess(tmp_path / "p", [engine.toml("east")]).start()
    body = partial(chat, "restarts " * 300)
    headers = {"x-session-affinity": "restarted"}

    def restarted() -> EngineProcess:
        engine.stop()
        if proxy.child is not None and proxy.child.running():
            until(lambda: proxy.engine_states()["r0"] != "up", "the proxy has noticed the end of the engine")
        return EngineProcess(tmp_path, "r0", "aggregated", "--port", port).listening()

    def turn(number: int) -> dict[str, Any]:
        with proxy.client() as client:
            answer = client.post("/v1/chat/completions", json=body(turns=number), headers=headers)
        found: dict[str, Any] = answer.json()["usage"]
        assert contract_receipt.check(found) == []
        return found

    try:
        whole = [turn(number)["prompt_tokens"] for number in (1, 2)]
        engine = restarted()
        until(lambda: proxy.engine_states()["r0"] == "up", "the engine is up again")
        usage = turn(3)
        assert usage["warmroute"]["evicted_by"] == "engine_restart"
        assert usage["warmroute"]["loss"]["evicted"] > 0.9 * whole[1]
        assert "cold" not in usage["warmroute"]["loss"]
        proxy.stop()
        engine = restarted()
        proxy.start()
        loss = turn(4)["warmroute"]["loss"]
        assert loss["evicted"] > 0.9 * usage["prompt_tokens"]
        assert "cold" not in loss
    finally:
        engine.stop()
        proxy.stop()
