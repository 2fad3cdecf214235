"""Engines against their plan, and against each other."""

from typing import Any

import pytest

from warmroute_backend.launch.comparison import against_plan, disagreements
from warmroute_backend.launch.program import Expected
from warmroute_backend.launch.start_log import GB, Pool

PLANNED = Expected(100_000, 10.0 * GB)


@pytest.mark.parametrize("pool", [Pool(100_000, 10.0 * GB), Pool(96_000, 9.6 * GB), Pool(104_900, None)])
def test_what_is_within_five_percent_is_as_planned(pool: Pool) -> None:
    assert against_plan(PLANNED, pool) == []
    assert against_plan(None, pool) == []


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (Pool(80_000, 8.0 * GB), "20% less than the planned 100,000 (10.00 GiB): something else has memory of its GPU"),
        (Pool(80_000, None), "something else has memory of its GPU (nvidia-smi)"),
        (Pool(50_000, 10.0 * GB), "50% less than the planned 100,000 (10.00 GiB): its KV type or its number of layers"),
        (Pool(130_000, 13.0 * GB), "30% more than the planned 100,000 (10.00 GiB): weights take less than planned"),
        (Pool(100_000, 20.0 * GB), "its KV takes 20.00 GiB, 100% more than the planned 10.00 GiB for as many tokens"),
        (Pool(None, None), "its log says nothing of max_total_num_tokens"),
    ],
)
def test_what_is_off_is_said_with_its_likely_cause(pool: Pool, words: str) -> None:
    (sentence,) = against_plan(PLANNED, pool)
    assert words in sentence


ROUTE = {"page_size": 64, "kv_cache_dtype": "auto"}
INFO = {"page_size": 64, "kv_cache_dtype": "auto", "version": "0.5.23"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"page_size": 16}, "the same page size: prefill-0 has 64, decode-0 has 16"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "the same KV dtype: prefill-0 has auto, decode-0 has fp8_e4m3"),
        ({"version": "0.5.22"}, "the same version: prefill-0 has 0.5.23, decode-0 has 0.5.22"),
    ],
)
def test_sides_that_do_not_agree(change: dict[str, Any], words: str) -> None:
    (sentence,) = disagreements(ROUTE, INFO, INFO | change, ("prefill-0", "decode-0"))
    assert words in sentence


def test_sides_that_agree_or_do_not_say() -> None:
    assert disagreements(ROUTE, INFO, INFO, ("p", "d")) == []
    assert disagreements({}, {}, {}, ("p", "d")) == []
