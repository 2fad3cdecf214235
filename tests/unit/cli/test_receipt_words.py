"""A receipt in words: where the turn went, why there, what was lost and to what, what it would have cost cold."""

from typing import Any

import pytest

from warmroute.contract.receipt import LOSS_CLASSES
from warmroute_cli.receipt_words import in_words

CHOSEN = {
    "id": "east-p0", "cost_s": 1.25, "network_s": 0.0, "queue_s": 1.0, "compute_s": 0.25, "load_s": 0.0,
    "decode_s": 0.0, "transfer_s": 0.0001, "others_s": 0.0, "reuse_s": 0.0, "churn_s": 0.0, "uncached_tokens": 90,
}  # fmt: skip


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
        "id": "wr-1",
        "state": "settled",
        "outcome": "completed",
        "model": "m",
        "forwarded_from": None,
        "attempts": 1,
    }
    more = {"agent", "continued", "kind", "parent", "voids"}
    of_receipt = {name: value for name, value in changed.items() if name in receipt or name in more}
    of_answer = {name: value for name, value in changed.items() if name not in of_receipt}
    return {**found, "usage": {**usage, "warmroute": {**receipt, **of_receipt}}, **of_answer}


def words(**changed: Any) -> str:
    return "\n".join(in_words(answer(**changed), None))


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({"kind": "main", "agent": "build"}, "Sent by: kind main, agent build."),
        ({"kind": "sub", "agent": "explore", "parent": "00bb"}, "Sent by: kind sub, agent explore, parent 00bb."),
    ],
)
def test_who_sent_it_is_said_where_its_head_told_that(told: dict[str, str], wanted: str) -> None:
    assert wanted in words(**told)


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


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"forwarded_from": "west"}, "It was sent to west, and forwarded to where its session lives."),
        ({"attempts": 3}, "It took 3 attempts"),
        ({"predicted_cached": 0}, "none of its prompt was expected to be cached there"),
        ({"estimated": ["prompt_tokens"]}, "estimates: prompt_tokens."),
        ({"continued": {"after_tokens": 5, "by": "text"}}, "Its engine died after 5 tokens, and another one went on."),
        ({"voided_by": "wr-1-void"}, "It was voided by wr-1-void"),
        ({"outcome": "interrupted"}, "The proxy ended before it was complete; nothing is charged."),
        ({"voids": "wr-0"}, "wr-1 takes wr-0 back."),
        ({"workers": []}, "no worker computed prompt and answer"),
    ],
)
def test_what_is_special_has_a_sentence(changed: dict[str, Any], sentence: str) -> None:
    assert sentence in words(**changed)


def test_a_turn_that_is_under_way_has_no_more_words() -> None:
    assert in_words({"state": "open", "id": "wr-1"}, None) == ["wr-1 is under way."]


def test_a_placement_that_is_remembered_says_what_the_choices_cost() -> None:
    other = {**CHOSEN, "id": "west-p0", "cost_s": 2.5, "compute_s": 1.5}
    said = "\n".join(in_words(answer(), {"policy": "cost", "reasons": [CHOSEN, other]}))
    assert "Its cost there was 1.250 s (queue 1.000, computing the prompt 0.250), 90 tokens to compute." in said
    assert "The next best was west-p0 with 2.500 s" in said
    assert "round robin" in "\n".join(in_words(answer(), {"policy": "round_robin", "reasons": [CHOSEN]}))
