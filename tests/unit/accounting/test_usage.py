"""What the client is told about tokens, for what engines really report."""

from typing import Any

import pytest

from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.core.accounting.usage_fields import MAX_TOKENS, Usage

REPORT = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
ZEROS = {"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}
NOT_COUNTED = ("cached_tokens", "cached_tiers")


def cached(count: Any) -> dict[str, Any]:
    return {**REPORT, "prompt_tokens_details": {"cached_tokens": count}}


def test_a_full_report_is_taken_as_it_is() -> None:
    tiers = {"device": 896, "host": 64, "storage_backend": "file"}
    usage = merge_usage({**cached(960), "reasoning_tokens": 7}, tiers, None, 3)
    assert usage == Usage(1000, 50, 960, 896, 64, 0, 7, (), 0)


CASES: dict[str, tuple[tuple[Any, Any, Any, int], dict[str, Any]]] = {
    "details count where the engine runs without cache report": (
        (REPORT, {"device": 512, "host": 0}, None, 0), {"cached_tokens": 512, "device": 512, "estimated": ()},
    ),
    "a zero that the details contradict is not believed": (
        (cached(0), {"device": 512, "host": 64}, None, 0), {"cached_tokens": 576},
    ),
    "an engine that does not count gets no invented zero": (
        (REPORT, None, None, 0), {"cached_tokens": 0, "estimated": NOT_COUNTED},
    ),
    "a counted zero is a number": ((cached(0), None, None, 0), {"estimated": ()}),
    "a decode engine that counts is not overruled": ((cached(320), None, cached(640), 0), {"cached_tokens": 320}),
    "more cached than prompt is clamped and said": (
        (cached(1920), {"device": 1920, "host": 0}, None, 0),
        {"cached_tokens": 1000, "device": 1000, "misreported_tokens": 920, "estimated": NOT_COUNTED},
    ),
    "a negative count is clamped and said": (
        (cached(-40), None, None, 0), {"cached_tokens": 0, "misreported_tokens": 40},
    ),
    "without a report what was seen is a lower bound": (
        (None, None, None, 12),
        {"completion_tokens": 12, "estimated": ("prompt_tokens", "completion_tokens", *NOT_COUNTED)},
    ),
    # What SGLang reports of a request that was aborted while it waited.
    "a prompt of no tokens was not counted": (
        (ZEROS, None, None, 0),
        {"prompt_tokens": 0, "completion_tokens": 0, "estimated": ("prompt_tokens", *NOT_COUNTED)},
    ),
    "prefill counted a prompt of no tokens": ((ZEROS, None, cached(640), 0), {"prompt_tokens": 1000}),
    "a client that left is settled by what prefill measured": (
        (None, None, cached(640), 12),
        {
            "prompt_tokens": 1000, "cached_tokens": 640, "completion_tokens": 12,
            "estimated": ("completion_tokens", "cached_tiers"),
        },
    ),
    "a report beats what was seen": ((REPORT, None, None, 80), {"completion_tokens": 50}),
    "nested reasoning tokens come first": (
        ({**REPORT, "reasoning_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 9}}, None, None, 0),
        {"reasoning_tokens": 9},
    ),
    "absent reasoning tokens are none": ((REPORT, None, None, 0), {"reasoning_tokens": None}),
}  # fmt: skip


@pytest.mark.parametrize(("said", "expected"), CASES.values(), ids=CASES)
def test_reports_are_one_usage(said: tuple[Any, Any, Any, int], expected: dict[str, Any]) -> None:
    usage = merge_usage(*said)
    assert {name: getattr(usage, name) for name in expected} == expected


@pytest.mark.parametrize(
    "details", [{}, {"device": None}, {"device": False}, {"device": ""}, {"storage_backend": "file"}]
)
def test_details_without_a_count_are_no_zero(details: dict[str, Any]) -> None:
    assert merge_usage(REPORT, details, None, 0).estimated == ("cached_tokens", "cached_tiers")


@pytest.mark.parametrize("decode", [cached(0), REPORT, cached(-5)])
def test_an_old_decode_engine_is_helped_by_the_prefill_leg(decode: dict[str, Any]) -> None:
    usage = merge_usage(decode, None, cached(640), 0)
    assert (usage.cached_tokens, usage.misreported_tokens) == (640, 0)
    assert usage.estimated == ("cached_tiers",)


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


@pytest.mark.parametrize("garbage", [True, "12", -1, 1.5, None, [], {}, 10**30, MAX_TOKENS + 1])
def test_what_is_no_count_is_absent(garbage: Any) -> None:
    usage = merge_usage({"prompt_tokens": garbage, "completion_tokens": garbage}, None, None, 4)
    assert (usage.prompt_tokens, usage.completion_tokens) == (0, 4)
    assert {"prompt_tokens", "completion_tokens"} <= set(usage.estimated)
