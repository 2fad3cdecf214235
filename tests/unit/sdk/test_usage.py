"""Usage of every dialect, and prices where no receipt says them."""

from typing import Any

import pytest

from warmroute._prices import price_of
from warmroute._usage import measure
from warmroute.contract.usage import Counts, Tokens, counts_of, tokens_of, usage_in


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 5}, Tokens(100, None, 5)),
        ({"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}},
         Tokens(100, 64, 5)),
        ({"prompt_tokens": 100, "completion_tokens": 5,
          "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 30}}, Tokens(100, 64, 5, 30)),
        ({"prompt_tokens": 100, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36,
          "completion_tokens": 5}, Tokens(100, 64, 5)),
        ({"prompt_tokens": 100, "cached_tokens": 64, "completion_tokens": 5}, Tokens(100, 64, 5)),
        ({"input_tokens": 100, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 64}},
         Tokens(100, 64, 5)),
        ({"input_tokens": 6, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 30, "output_tokens": 5},
         Tokens(100, 64, 5, 30)),
        ({"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": None,
          "output_tokens": 5}, Tokens(100, 0, 5)),
        ({"promptTokenCount": 100, "cachedContentTokenCount": 64, "candidatesTokenCount": 3,
          "thoughtsTokenCount": 2}, Tokens(100, 64, 5)),
        ({"promptTokenCount": 100, "candidatesTokenCount": 5}, Tokens(100, 0, 5)),
        ({"prompt_token_count": 100, "cached_content_token_count": 64, "candidates_token_count": 5},
         Tokens(100, 64, 5)),
        ({"prompt_tokens": "9", "completion_tokens": True, "prompt_tokens_details": "none"}, Tokens(0, None, 0)),
        ({}, Tokens(0, None, 0)),
    ],
)  # fmt: skip
def test_each_dialect_has_the_same_tokens(usage: dict[str, Any], tokens: Tokens) -> None:
    assert tokens_of(usage) == tokens


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}, Counts(9, None, 2, 11)),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, Counts(9, None, None)),
        ({"prompt_tokens": "9", "completion_tokens": True, "cached_tokens": -1}, Counts(None, None, None)),
        ({"output_tokens": 3}, Counts(None, None, 3)),
        ({"promptTokenCount": 8, "candidatesTokenCount": 2, "totalTokenCount": 10}, Counts(8, None, 2, 10)),
        ({"prompt_tokens": 9, "cache_read_input_tokens": 4}, Counts(9, 4, None)),
        ({"gen_ai.usage.input_tokens": 9, "gen_ai.usage.cache_read.input_tokens": 4}, Counts(9, 4, None)),
    ],
)
def test_a_count_that_is_not_stated_is_absent(usage: dict[str, Any], counts: Counts) -> None:
    assert counts_of(usage) == counts


@pytest.mark.parametrize("data", [
    {"usage": {"n": 1}}, {"usageMetadata": {"n": 1}}, {"response": {"usage": {"n": 1}}},
    {"type": "message_start", "message": {"usage": {"n": 1}}}, {"usage": None, "response": {"usage": {"n": 1}}},
])  # fmt: skip
def test_an_event_of_any_api_has_its_usage(data: dict[str, Any]) -> None:
    assert usage_in(data) == {"n": 1}
    assert usage_in({**data, "usage": None, "usageMetadata": 1, "response": 1, "message": 1}) == {}


CLAUDE = {"input_tokens": 6, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 30, "output_tokens": 5}


@pytest.mark.parametrize(
    ("model", "usage", "cost_nanousd"),
    [
        ("claude-sonnet-4-5", CLAUDE, 6 * 3000 + 64 * 300 + 30 * 3750 + 5 * 15_000),
        (
            "claude-sonnet-4-5",
            {**CLAUDE, "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}},
            6 * 3000 + 64 * 300 + 10 * 3750 + 20 * 6000 + 5 * 15_000,
        ),
        ("anthropic/claude-sonnet-4.5", CLAUDE, 6 * 3000 + 64 * 300 + 30 * 3750 + 5 * 15_000),
        ("kimi-k2.5", {"prompt_tokens": 100, "cached_tokens": 64, "completion_tokens": 5}, 36 * 600 + 6400 + 15_000),
        (
            "gpt-5.4-2026-03-05",
            {"prompt_tokens": 272_001, "cached_tokens": 272_000, "completion_tokens": 5},
            5000 + 272_000 * 500 + 5 * 22_500,
        ),
    ],
)
def test_a_turn_without_a_receipt_is_priced_by_the_table(model: str, usage: dict[str, Any], cost_nanousd: int) -> None:
    found = measure(usage, None, model)
    assert found.amounts_nanousd is not None
    assert found.is_estimated
    assert found.amounts_nanousd.cost == cost_nanousd
    assert found.amounts_nanousd.saved == found.amounts_nanousd.listed - cost_nanousd


@pytest.mark.parametrize(
    ("alias", "model"),
    [
        ("claude-sonnet-4-0", "claude-sonnet-4"),
        ("claude-opus-4-5@default", "claude-opus-4-5"),
        ("gpt-5.1-chat-latest", "gpt-5.1"),
        ("kimi-k2.5-nvfp4", "kimi-k2.5"),
        ("moonshotai/Kimi-K2.5-FP8", "kimi-k2.5"),
    ],
)
def test_an_alias_has_the_price_of_its_model(alias: str, model: str) -> None:
    assert price_of(alias) == price_of(model) is not None


@pytest.mark.parametrize(
    "model", ["gpt-5.4-pro", "gpt-5.4-nano", "gpt-5.1-codex-mini", "gemini-2.5-flash-lite", "kimi-k2.5:free"]
)
def test_a_model_that_is_in_no_table_has_no_price(model: str) -> None:
    found = measure(CLAUDE, None, model)
    assert found.amounts_nanousd is None
    assert not found.is_estimated


def test_the_highest_cost_of_a_long_prompt_is_that_of_its_dearer_price() -> None:
    rates = measure({"prompt_tokens": 300_000, "completion_tokens": 1}, None, "gpt-5.5").rates
    assert rates is not None
    assert rates.worst_nanousd(300_000, 1) == 300_000 * 10_000 + 45_000


@pytest.mark.parametrize(
    ("writes", "worst_nanousd"), [({}, 100 * 600), ({"cache_write_5m": "0.75", "cache_write_1h": "1.8"}, 100 * 1800)]
)
def test_a_prompt_costs_at_most_what_the_dearest_rate_of_its_receipt_says(
    writes: dict[str, str], worst_nanousd: int
) -> None:
    receipt = {"rates_usd_per_mtok": {"input": "0.6", "cached": "0.1", "output": "3", **writes}}
    rates = measure({"prompt_tokens": 100, "completion_tokens": 5, "warmroute": receipt}, None).rates
    assert rates is not None
    assert rates.worst_nanousd(100, 0) == pytest.approx(worst_nanousd, abs=1)
    assert rates.worst_nanousd(0, 5) == 5 * 3000
