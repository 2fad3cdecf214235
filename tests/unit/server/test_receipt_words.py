"""A receipt in words: where the turn went, why there, what was lost and to what, what it would have cost cold."""

import re
from typing import Any

import pytest

from warmroute.contract.receipt import LOSS_CLASSES
from warmroute_proxy.server.control.receipt_words import in_words

CHOSEN = {
    "id": "east-p0", "cost_s": 1.25, "network_s": 0.0, "queue_s": 1.0, "compute_s": 0.25, "load_s": 0.0,
    "decode_s": 0.0, "transfer_s": 0.0001, "others_s": 0.0, "reuse_s": 0.0, "churn_s": 0.0, "uncached_tokens": 90,
}  # fmt: skip


BREAK = {"where": "system, line 1", "cause": "date", "tokens": 80, "nanousd": 1_000}
COMPACTED = {"cause": "compaction", "compacted_tokens": 4_000, "saved_nanousd_a_turn": 400_000}


def answer(**changed: Any) -> dict[str, Any]:
    """A receipt as the proxy answers it, of a turn of 100 prompt tokens."""
    receipt = {
        "v": 1, "id": "wr-1", "session": "00aa", "turn": 2, "region": "east",
        "workers": [{"id": "east-a0", "dp_rank": 0, "role": "aggregated"}],
        "cached": {"device": 6, "host": 4, "storage": 0}, "predicted_cached": 10, "loss": {"new": 90},
        "list_nanousd": 2_000, "price_nanousd": 1_500, "saved_nanousd": 500, "estimated": [],
    }  # fmt: skip
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 10}}
    found = {
        "id": "wr-1", "state": "settled", "outcome": "completed", "model": "m", "forwarded_from": None, "attempts": 1,
    }  # fmt: skip
    more = {"agent", "continued", "evicted_by", "kind", "max_tokens_lowered_to", "parent", "prefix_break", "voids"}
    of_receipt = {name: value for name, value in changed.items() if name in receipt or name in more}
    of_answer = {name: value for name, value in changed.items() if name not in of_receipt}
    return {**found, "usage": {**usage, "warmroute": {**receipt, **of_receipt}}, **of_answer}


def words(**changed: Any) -> str:
    return "\n".join(in_words(answer(**changed), None))


def test_the_plain_case_has_all_four_parts() -> None:
    said = words()
    assert "Sent by" not in said
    assert "Where: in region east, east-a0 computed prompt and answer." in said
    assert "Why there: 10 tokens of its prompt (100) were expected to be cached there." in said
    assert "Cached: 10 of 100 prompt tokens (10.0%): 6 in GPU memory, 4 in host memory." in said
    assert "Not cached: 90 (new) came with this turn" in said
    assert "Cold, with nothing cached, it would have cost 0.000002 USD: 0.0000005 USD (25.0%) were saved." in said


@pytest.mark.parametrize("name", LOSS_CLASSES)
def test_every_loss_class_has_words(name: str) -> None:
    assert f"Not cached: 90 ({name}) " in words(loss={name: 90})
    assert not re.search(r"Not cached: 1 \(\w+\) (?:are|were|have|follow|stand) ", words(loss={name: 1}))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"kind": "main", "agent": "build"}, "Sent by: kind main, agent build."),
        ({"kind": "sub", "agent": "explore", "parent": "00bb"}, "Sent by: kind sub, agent explore, parent 00bb."),
        ({"forwarded_from": "west"}, "It was sent to west, and forwarded to where its session lives."),
        ({"attempts": 3}, "It took 3 attempts"),
        ({"predicted_cached": 0}, "none of its prompt was expected to be cached there"),
        ({"estimated": ["prompt_tokens"]}, "estimates: prompt_tokens."),
        (
            {"continued": {"after_tokens": 5, "by": "text"}},
            "Its engine died after 5 tokens, and another one continued it.",
        ),
        ({"voided_by": "wr-1-void"}, "It was voided by wr-1-void"),
        ({"outcome": "interrupted"}, "The proxy ended before it was complete; nothing is charged."),
        ({"voids": "wr-0"}, "wr-1 takes wr-0 back."),
        ({"workers": []}, "no worker computed prompt and answer"),
        (
            {"loss": {"evicted": 90}, "evicted_by": "engine_restart"},
            "90 (evicted) were cached by an engine that has restarted",
        ),
        ({"loss": {"a_later_class": 90}}, "90 (a_later_class) have a reason that this version"),
        ({"max_tokens_lowered_to": 60_638}, "more tokens than the context had left: the engine was asked for 60,638."),
        (
            {"loss": {"new": 10, "prefix_changed": 80}, "prefix_break": BREAK},
            "where: system, line 1, 80 tokens, 0.000001 USD. Cause: date (a date or time changed).",
        ),
        (
            {"loss": {"new": 10, "prefix_changed": 80}, "prefix_break": BREAK | COMPACTED},
            "The compaction made the prompt 4,000 tokens shorter: 0.0004 USD less for each turn from here on.",
        ),
    ],
)
def test_what_is_special_has_a_sentence(changed: dict[str, Any], sentence: str) -> None:
    assert sentence in words(**changed)


def test_a_turn_that_is_under_way_has_no_more_words() -> None:
    assert in_words({"state": "open", "id": "wr-1"}, None) == ["wr-1 is under way."]


def test_a_placement_that_is_remembered_says_what_the_choices_cost() -> None:
    other = {**CHOSEN, "id": "west-p0", "cost_s": 2.5, "compute_s": 1.5}
    said = why(CHOSEN, other)
    assert "Its cost there was 1.250 s (queue 1.000, computing the prompt 0.250), 90 tokens to compute." in said
    assert "The next best was west-p0 with 2.500 s" in said
    assert "The next best was region west with" in why(CHOSEN, {**other, "id": "region:west"})
    assert "round robin" in why(CHOSEN, policy="round_robin")


def why(*reasons: dict[str, Any], **more: Any) -> str:
    return "\n".join(in_words(answer(), {"policy": "cost", "reasons": list(reasons), **more}))


def test_each_term_of_a_cost_is_shown_a_negative_one_too() -> None:
    said = why({**CHOSEN, "cost_s": 0.744, "queue_s": 0.0, "compute_s": 1.25, "reuse_s": -0.506})
    assert "(computing the prompt 1.250, cached tokens that are computed again -0.506)" in said


def test_what_was_cheaper_for_the_fleet_is_not_called_busy() -> None:
    home = {**CHOSEN, "id": "home", "cost_s": 0.34, "queue_s": 0.0, "compute_s": 0.176, "churn_s": 0.164}
    home["uncached_tokens"] = 3_520
    away = {**CHOSEN, "cost_s": 0.086, "queue_s": 0.0, "compute_s": 0.592, "reuse_s": -0.506, "uncached_tokens": 11_840}
    said = why(away, home)
    assert (
        "It was cheaper for the fleet than home, which has 8,320 more of its tokens cached: "
        "cached tokens that are computed again 0.506 s less, evicted prompts 0.164 s less."
    ) in said
    assert "busy" not in said


def test_a_queue_at_home_makes_another_worker_faster() -> None:
    home = {**CHOSEN, "id": "home", "cost_s": 3.1, "queue_s": 3.0, "compute_s": 0.1, "uncached_tokens": 10}
    said = why({**CHOSEN, "queue_s": 0.0, "cost_s": 0.25}, home)
    assert "It was faster for the turn itself than home, which has 80 more of its tokens cached: queue 3.000 s" in said


def test_a_turn_that_stayed_at_its_home_says_so() -> None:
    home = {**CHOSEN, "cost_s": 0.4, "queue_s": 0.0, "compute_s": 0.2, "churn_s": 0.2}
    other = {**CHOSEN, "id": "b", "cost_s": 0.1, "compute_s": 0.6, "queue_s": 0.0, "reuse_s": -0.5}
    other["uncached_tokens"] = 900
    assert "It stayed at its home: b was cheaper for the fleet, but slower for the turn itself." in why(home, other)
    assert "stayed" not in why(home, {**other, "cost_s": 0.5})


def test_a_wait_for_memory_is_said_with_its_reason() -> None:
    said = why(CHOSEN, memory_wait_s=14.0)
    assert "It waited 14.0 s: the fleet's KV memory was full of sessions that return within seconds." in said
    began = why(CHOSEN, memory_wait_s=14.0, waited_to_begin=True)
    assert "It waited 14.0 s to begin: the fleet's KV memory was full of running sessions." in began
    assert "It waited" not in why(CHOSEN, memory_wait_s=0.0)
