"""What the client is told about tokens, for what engines really report."""

from typing import Any

import pytest

from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.core.accounting.usage_fields import MAX_TOKENS, Usage

REPORT = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}


def cached(count: Any) -> dict[str, Any]:
    return {**REPORT, "prompt_tokens_details": {"cached_tokens": count}}


def test_a_full_report_is_taken_as_it_is() -> None:
    usage = merge_usage(
        {**cached(960), "reasoning_tokens": 7}, {"device": 896, "host": 64, "storage_backend": "file"}, None, 3
    )
    assert usage == Usage(1000, 50, 960, 896, 64, 0, 7, (), 0)


def test_details_count_where_the_engine_runs_without_cache_report() -> None:
    usage = merge_usage(REPORT, {"device": 512, "host": 0}, None, 0)
    assert (usage.cached_tokens, usage.device, usage.estimated) == (512, 512, ())


def test_a_zero_that_the_details_contradict_is_not_believed() -> None:
    assert merge_usage(cached(0), {"device": 512, "host": 64}, None, 0).cached_tokens == 576


def test_an_engine_that_does_not_count_gets_no_invented_zero() -> None:
    usage = merge_usage(REPORT, None, None, 0)
    assert usage.cached_tokens == 0
    assert usage.estimated == ("cached_tokens", "cached_tiers")


@pytest.mark.parametrize(
    "details", [{}, {"device": None}, {"device": False}, {"device": ""}, {"storage_backend": "file"}]
)
def test_details_without_a_count_are_no_zero(details: dict[str, Any]) -> None:
    assert merge_usage(REPORT, details, None, 0).estimated == ("cached_tokens", "cached_tiers")


def test_a_counted_zero_is_a_number() -> None:
    assert merge_usage(cached(0), None, None, 0).estimated == ()


@pytest.mark.parametrize("decode", [cached(0), REPORT, cached(-5)])
def test_an_old_decode_engine_is_helped_by_the_prefill_leg(decode: dict[str, Any]) -> None:
    usage = merge_usage(decode, None, cached(640), 0)
    assert (usage.cached_tokens, usage.misreported_tokens) == (640, 0)
    assert usage.estimated == ("cached_tiers",)


def test_a_decode_engine_that_counts_is_not_overruled() -> None:
    assert merge_usage(cached(320), None, cached(640), 0).cached_tokens == 320


def test_more_cached_than_prompt_is_clamped_and_said() -> None:
    usage = merge_usage(cached(1920), {"device": 1920, "host": 0}, None, 0)
    assert (usage.cached_tokens, usage.device, usage.misreported_tokens) == (1000, 1000, 920)
    assert usage.estimated == ("cached_tokens", "cached_tiers")


def test_a_negative_count_is_clamped_and_said() -> None:
    usage = merge_usage(cached(-40), None, None, 0)
    assert (usage.cached_tokens, usage.misreported_tokens) == (0, 40)


@pytest.mark.parametrize(
    ("details", "tiers"),
    [
        ({"device": 500, "host": 64, "storage": 64}, (832, 64, 64)),
        ({"device": 0, "host": 900, "storage": 500}, (0, 900, 60)),
        ({"device": "many", "host": 64}, (960, 0, 0)),
        ({}, (960, 0, 0)),
        ([1, 2], (960, 0, 0)),
    ],
)
def test_tiers_that_do_not_sum_are_made_to_and_named(details: Any, tiers: tuple[int, int, int]) -> None:
    usage = merge_usage(cached(960), details, None, 0)
    assert (usage.device, usage.host, usage.storage) == tiers
    assert usage.estimated == ("cached_tiers",)


def test_without_a_report_what_was_seen_is_a_lower_bound() -> None:
    usage = merge_usage(None, None, None, 12)
    assert (usage.prompt_tokens, usage.completion_tokens) == (0, 12)
    assert usage.estimated == ("prompt_tokens", "completion_tokens", "cached_tokens", "cached_tiers")


def test_a_prompt_of_no_tokens_was_not_counted() -> None:
    """What SGLang reports of a request that was aborted while it waited."""
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}
    usage = merge_usage(zeros, None, None, 0)
    assert (usage.prompt_tokens, usage.completion_tokens) == (0, 0)
    assert usage.estimated == ("prompt_tokens", "cached_tokens", "cached_tiers")
    assert merge_usage(zeros, None, cached(640), 0).prompt_tokens == 1000


def test_a_client_that_left_is_settled_by_what_prefill_measured() -> None:
    usage = merge_usage(None, None, cached(640), 12)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (1000, 640, 12)
    assert usage.estimated == ("completion_tokens", "cached_tiers")


def test_a_report_beats_what_was_seen() -> None:
    assert merge_usage(REPORT, None, None, 80).completion_tokens == 50


@pytest.mark.parametrize("garbage", [True, "12", -1, 1.5, None, [], {}, 10**30, MAX_TOKENS + 1])
def test_what_is_no_count_is_absent(garbage: Any) -> None:
    usage = merge_usage({"prompt_tokens": garbage, "completion_tokens": garbage}, None, None, 4)
    assert (usage.prompt_tokens, usage.completion_tokens) == (0, 4)
    assert {"prompt_tokens", "completion_tokens"} <= set(usage.estimated)


def test_nested_reasoning_tokens_come_first_and_absent_is_none() -> None:
    nested = {**REPORT, "reasoning_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 9}}
    assert merge_usage(nested, None, None, 0).reasoning_tokens == 9
    assert merge_usage(REPORT, None, None, 0).reasoning_tokens is None
