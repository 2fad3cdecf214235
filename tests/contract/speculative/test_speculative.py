"""An engine with an EAGLE-3 draft: pages of pairs of tokens in its cache and its KV events; what it tells of drafts.

A page of 16 pairs spans 17 tokens: the last token of a page is the first of the next.
"""

import itertools
from typing import Any

from tests.contract.cache.lab import PAGE, fresh_prompt, page_hashes
from tests.contract.subject import CHAT, GENERATE, Json, Subject, chat, until
from tests.subjects.kv_subscriber import KvSubscriber


def ask(drafting: Subject, ids: list[int]) -> Json:
    """The `meta_info` of a request for one token."""
    sampling = {"max_new_tokens": 1, "temperature": 0}
    return dict(drafting.answer(GENERATE, {"input_ids": ids, "sampling_params": sampling})["meta_info"])


def test_the_token_after_a_page_belongs_to_it(drafting: Subject) -> None:
    """So the fifth page of a prompt is a hit when two tokens follow it: its neighbour, and one to be computed."""
    for more, pages in ((0, 4), (1, 4), (2, 5)):
        ids = fresh_prompt(5 * PAGE + more)
        assert ask(drafting, ids)["cached_tokens"] == 0
        assert ask(drafting, ids)["cached_tokens"] == pages * PAGE


def test_events_carry_pairs_of_tokens(drafting: Subject) -> None:
    ids = fresh_prompt(3 * PAGE + 5)
    pairs = list(itertools.pairwise(ids))[: 3 * PAGE]
    stored: list[Any] = []
    with KvSubscriber(drafting.facts()["kv_events"]) as subscriber:
        ask(drafting, fresh_prompt(2 * PAGE))
        while subscriber.next(1.0) is None:  # not subscribed yet, though connected
            ask(drafting, fresh_prompt(2 * PAGE))
        ask(drafting, ids)
        while not stored:
            message = subscriber.next()
            assert message is not None, "nothing was stored"
            told = [event for event in message.events if event["type"] == "BlockStored"]
            stored = [event for event in told if tuple(event["token_ids"][0]) == pairs[0]]
    (event,) = stored
    assert [tuple(pair) for pair in event["token_ids"]] == pairs
    assert event["block_hashes"] == page_hashes(list(itertools.chain.from_iterable(pairs)), page=2 * PAGE)
    assert (event["block_size"], event["parent_block_hash"], event["medium"]) == (PAGE, None, "GPU")


def test_what_is_told_of_drafts(drafting: Subject) -> None:
    real = drafting.kind == "sglang"
    assert drafting.facts()["speculative_algorithm"] == "EAGLE3"
    answer = drafting.answer(CHAT, chat("drafted", max_tokens=12, return_spec_tokens_details=True))
    assert ("spec_tokens_details" in answer.get("sglext", {})) == real

    def told() -> list[bool]:
        # SGLang adds up its drafts every 40 steps, and brings its loads up to date with a prefill.
        drafting.answer(CHAT, chat("more drafts", max_tokens=60, ignore_eos=True))
        return ["speculative" in drafting.load(), "sglang:spec_accept_length{" in drafting.get("/metrics").text]

    if real:
        until(lambda: all(told()), lambda: f"told in loads, in metrics: {told()}")
    else:
        assert told() == [False, True]
