"""Turns of a conversation through SDK and proxy on real SGLang: what the receipts say is what SGLang counted."""

import json
from typing import Any

import openai
import pytest

import warmroute
from tests.integration.sglang.behind import PAGE_TOKENS, Behind, conversation
from tests.subjects.processes import events
from warmroute.contract import receipt as contract_receipt


def test_the_cached_tokens_of_a_session_grow_and_are_those_that_sglang_counted(behind: Behind, name: str) -> None:
    messages = conversation(name)["messages"]
    client = warmroute.OpenAI(base_url=behind.proxy.base_url, api_key=behind.proxy.keys[0])
    before = behind.counted()
    usages: list[dict[str, Any]] = []
    with client, warmroute.session("growing"):
        for turn in range(4):
            answer = client.chat.completions.create(model="kimi-k2.5", messages=messages, max_tokens=24)
            assert answer.usage
            usages.append(answer.usage.to_dict())
            said = answer.choices[0].message.content
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"Go on, {turn}."}]
        report = client.cache.report()
    after = behind.counted()

    cached = [contract_receipt.cached_tokens(usage) for usage in usages]
    prompts = [int(usage["prompt_tokens"]) for usage in usages]
    assert cached[0] == 0
    for previous, count in zip(prompts, cached[1:], strict=False):
        assert count >= previous // PAGE_TOKENS * PAGE_TOKENS - PAGE_TOKENS
        assert count % PAGE_TOKENS == 0
    for usage in usages:
        assert contract_receipt.check(usage) == []
        assert usage["warmroute"]["estimated"] == []
    assert (after[0] - before[0], after[1] - before[1]) == (sum(prompts), sum(cached))
    assert (report.turns, report.prompt_tokens, report.cached_tokens) == (4, sum(prompts), sum(cached))
    assert not report.violations
    assert sum(row["cached_tokens"] for row in behind.proxy.rows(expected=4)) == sum(cached)


def test_what_was_predicted_for_a_later_turn_is_nearly_what_was_cached(behind: Behind, name: str) -> None:
    with behind.proxy.client() as client:
        for turns in (1, 2, 3):
            body = conversation(name, turns=turns, max_tokens=4)
            usage = client.post("/v1/chat/completions", json=body).json()["usage"]
    error = usage["warmroute"]["predicted_cached"] - contract_receipt.cached_tokens(usage)
    assert abs(error) <= 0.05 * usage["prompt_tokens"]


def test_a_stream_says_the_same_words_and_carries_the_receipt(behind: Behind, name: str) -> None:
    body = conversation(name, max_tokens=20, temperature=0)
    with behind.proxy.client() as client:
        whole = client.post("/v1/chat/completions", json=body).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = client.post("/v1/chat/completions", json=body | options)
    chunks = events(streamed.text)
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert streamed.text.endswith("data: [DONE]\n\n")
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == 20
    assert contract_receipt.check(usage) == []
    assert contract_receipt.cached_tokens(usage) > 0.9 * usage["prompt_tokens"]
    assert usage["warmroute"]["id"] == streamed.headers["x-warmroute-receipt"]


def test_two_tenants_share_no_cache(behind: Behind, name: str) -> None:
    body = conversation(name, max_tokens=4)

    def cached(tenant: int) -> int:
        with behind.proxy.client(tenant) as client:
            usage = client.post("/v1/chat/completions", json=body).json()["usage"]
        return contract_receipt.cached_tokens(usage)

    assert cached(0) == 0
    assert cached(0) > 0
    assert cached(1) == 0
    assert cached(1) > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_the_clients_error(behind: Behind, stream: bool) -> None:
    client = openai.OpenAI(base_url=behind.proxy.base_url, api_key=behind.proxy.keys[0], max_retries=0)
    with client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**conversation("much too long " * 8_000, max_tokens=4), stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert behind.idle()


def test_an_answer_that_exceeds_the_context_is_shortened(behind: Behind, name: str) -> None:
    """SGLang first refuses more tokens than the context has, then counts the prompt: it is asked three times."""
    body = conversation(name, max_tokens=1_000_000, stream=True)
    with behind.proxy.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert next(answer.iter_bytes())
        receipt_id = answer.headers["x-warmroute-receipt"]
    row = behind.proxy.row(receipt_id)
    assert len(json.loads(row["rids"])) == 3
    assert json.loads(row["usage"])["warmroute"]["max_tokens_lowered_to"] >= 4_096
    assert behind.idle()


def test_tools_and_their_results_are_part_of_the_prompt(behind: Behind, name: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
    messages = [
        *conversation(name)["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "one line of a file " * 20}]},
    ]
    with behind.proxy.client() as client:

        def prompt_tokens(**fields: Any) -> int:
            body = {"model": "kimi-k2.5", "max_tokens": 2, **fields}
            return int(client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"])

        bare = prompt_tokens(messages=messages[:2])
        assert prompt_tokens(messages=messages) > bare + 100
        assert prompt_tokens(messages=messages[:2], tools=tools) > bare + len(json.dumps(tools)) / 8
