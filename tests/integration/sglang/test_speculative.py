"""EAGLE-3 on real SGLang: bigram KV events, what it says of its drafts, and receipts that stay sound."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.sglang.behind import PAGE_TOKENS, Behind, conversation, get_text
from tests.machine import seconds
from tests.subjects.kv_subscriber import KvSubscriber
from tests.subjects.processes import until
from warmroute.contract import receipt as contract_receipt
from warmroute_backend.sglang import Server

DRAFTS = 3
METRICS = ("accept_length", "accept_rate", "num_draft_tokens", "num_steps", "verify_calls_total")
DETAILS = {
    "spec_accept_rate", "spec_accept_length", "spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_verify_ct",
    "spec_correct_drafts_histogram",
}  # fmt: skip


@pytest.fixture
def drafting(sglang_speculative: Server, tmp_path: Path) -> Iterator[Behind]:
    with Behind(tmp_path, sglang_speculative) as behind:
        yield behind


def test_receipts_are_sound_and_the_next_turn_is_cached(drafting: Behind, name: str) -> None:
    usages = []
    with drafting.proxy.client() as client:
        for turns in (1, 2):
            answer = client.post("/v1/chat/completions", json=conversation(name, turns=turns, max_tokens=8))
            assert answer.status_code == 200, answer.text
            usages.append(answer.json()["usage"])
    for usage in usages:
        assert contract_receipt.check(usage) == []
        assert usage["warmroute"]["estimated"] == []
        assert usage["completion_tokens"] == 8
    assert contract_receipt.cached_tokens(usages[1]) >= usages[0]["prompt_tokens"] - 2 * PAGE_TOKENS


def test_events_carry_pairs_of_tokens(sglang_speculative: Server, name: str) -> None:
    """A page of 16 pairs spans 17 tokens: the last token of a page is the first of the next."""
    stored: list[Any] = []
    tokens = httpx.post(f"{sglang_speculative.url}/v1/tokenize", json={"prompt": name * 20}).json()["tokens"]
    with KvSubscriber(httpx.get(f"{sglang_speculative.url}/server_info").json()["kv_events"]) as events:
        body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        answer = httpx.post(f"{sglang_speculative.url}/generate", json=body, timeout=seconds(60))
        assert answer.status_code == 200, answer.text
        while sum(len(event["block_hashes"]) for event in stored) < (len(tokens) - 1) // PAGE_TOKENS:
            message = events.next()
            assert message is not None, f"only {stored} came"
            stored += [event for event in message.events if event["type"] == "BlockStored"]
    pairs = [tuple(pair) for event in stored for pair in event["token_ids"]]
    pages = (len(tokens) - 1) // PAGE_TOKENS
    assert pairs == list(itertools.pairwise(tokens))[: pages * PAGE_TOKENS]
    assert {event["block_size"] for event in stored} == {PAGE_TOKENS}


def test_it_says_how_its_drafts_fared(sglang_speculative: Server, name: str) -> None:
    body = conversation(name, max_tokens=64, return_spec_tokens_details=True)
    answer = httpx.post(f"{sglang_speculative.url}/v1/chat/completions", json=body, timeout=seconds(60)).json()
    details = answer["sglext"]["spec_tokens_details"]
    assert set(details) >= DETAILS
    assert details["spec_num_proposed_drafts"] == DRAFTS * details["spec_verify_ct"] > 0
    assert details["spec_num_correct_drafts"] <= details["spec_num_proposed_drafts"]
    assert sum(details["spec_correct_drafts_histogram"]) == details["spec_verify_ct"]

    def named() -> bool:  # both follow every 40 steps of decoding
        page = get_text(f"{sglang_speculative.url}/metrics")
        return all(f"sglang:spec_{metric}{{" in page for metric in METRICS)

    until(named, "its metrics")
    load = httpx.get(f"{sglang_speculative.url}/v1/loads?include=spec").json()["loads"][0]
    assert set(load["speculative"]) == {"accept_length", "accept_rate"}
