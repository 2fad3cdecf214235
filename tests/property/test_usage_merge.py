"""Whatever engines report, the settled numbers are sound and the receipt made from them passes every check."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from warmroute.contract import receipt as contract
from warmroute.contract.money import MAX_USD_PER_MTOK, PICO_PER_USD_PER_MTOK, CacheRates, Rates
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.losses import IndexEstimates, LastTurn, classify
from warmroute_proxy.core.accounting.receipt import ServedBy, usage_object, workers_json
from warmroute_proxy.core.accounting.usage import before_answers, merge_usage, plain_usage
from warmroute_proxy.core.accounting.usage_fields import MAX_TOKENS

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | texts
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
counts = st.integers(-10, 5_000) | st.integers(0, 2**40) | scalars


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with some of the fields, and other fields of any shape."""
    known = st.fixed_dictionaries({}, optional=fields)
    return st.builds(lambda other, some: {**other, **some}, st.dictionaries(texts, anything, max_size=2), known)


reports = (
    objects(
        prompt_tokens=counts,
        completion_tokens=counts,
        total_tokens=counts,
        reasoning_tokens=counts,
        prompt_tokens_details=objects(
            cached_tokens=counts,
            cache_write_tokens=counts,
            cache_creation_token_details=objects(ephemeral_5m_input_tokens=counts, ephemeral_1h_input_tokens=counts)
            | anything,
        )
        | anything,
        cache_creation_input_tokens=counts,
        completion_tokens_details=objects(reasoning_tokens=counts) | anything,
        cost=anything,
        warmroute=anything,
    )
    | st.none()
)
tier_details = objects(device=counts, host=counts, storage=counts) | anything
rate = st.integers(0, int(MAX_USD_PER_MTOK) * PICO_PER_USD_PER_MTOK)
rates = st.builds(
    Rates, rate, rate, rate, st.text(max_size=20), st.none() | st.builds(CacheRates, rate, rate, rate, rate)
)


@given(reports, tier_details, reports, st.integers(0, 10_000))
def test_counts_are_in_range_and_tiers_sum(reported: Any, details: Any, prefill: Any, seen: int) -> None:
    usage = merge_usage(reported, details, prefill, seen)
    assert 0 <= usage.cached_tokens <= usage.prompt_tokens <= MAX_TOKENS
    assert 0 <= usage.completion_tokens <= MAX_TOKENS
    assert min(usage.device, usage.host, usage.storage) >= 0
    assert usage.device + usage.host + usage.storage == usage.cached_tokens
    assert list(usage.estimated) == [name for name in contract.ESTIMATED_FIELDS if name in usage.estimated]
    assert 0 <= usage.misreported_tokens <= MAX_TOKENS


small = st.integers(0, 60) | st.integers(-2, 60) | st.none() | st.just(MAX_TOKENS)
usual = st.builds(
    lambda prompt, completion, cached, wrong, more, order: dict(
        sorted(
            {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": (prompt or 0) + (completion or 0) + wrong,
                "prompt_tokens_details": cached,
                **more,
            }.items(),
            key=lambda member: order.index(member[0][:1]),
        )
    ),
    small,
    small,
    st.builds(lambda cached: {"cached_tokens": cached}, small) | st.none(),
    st.sampled_from([0, 0, 0, 1]),
    st.fixed_dictionaries(
        {},
        optional={
            "reasoning_tokens": small,
            "completion_tokens_details": st.none() | st.builds(lambda n: {"reasoning_tokens": n}, small),
            "cost": small,
            "other": small,
        },
    ),
    st.permutations("pctro"),
)
usual_tiers = st.none() | st.fixed_dictionaries({}, optional={"device": small, "host": small, "storage": small})


@given(usual, usual_tiers, st.none() | usual, st.integers(0, 1_000))
def test_what_is_read_by_types_is_what_the_rules_say(reported: Any, details: Any, prefill: Any, turn: int) -> None:
    text = msgspec.json.encode(reported)
    extension = b"" if details is None else msgspec.json.encode({"cached_tokens_details": details})
    plain = plain_usage(text, extension, paired=prefill is not None)
    if plain is not None:
        assert plain == merge_usage(reported, details, prefill, 0)
        price = Rates(600_000, 60_000, 3_000_000)
        entry = Entry("wr-1", "acme", None, "aa", turn, "here", "m", "chat", True, price, 5.0)
        one, other = (usage_object(entry, plain, {}, said) for said in (text, reported))
        assert one == other


def test_the_usual_report_is_read_by_types() -> None:
    text = (
        b'{"prompt_tokens":512,"total_tokens":612,"completion_tokens":100,"prompt_tokens_details":{"cached_tokens":%d},'
    )
    text += b'"reasoning_tokens":0}'
    for cached, extension in (384, b""), (0, b""), (384, b'{"cached_tokens_details":{"device":300,"host":84}}'):
        assert plain_usage(text % cached, extension, paired=False) is not None


@given(reports, tier_details, reports, rates, st.data())
def test_every_receipt_passes_the_readers_check(
    reported: Any, details: Any, prefill: Any, price: Rates, data: st.DataObject
) -> None:
    usage = merge_usage(reported, details, prefill, 3)
    size = st.integers(0, usage.prompt_tokens + 100)
    loss = classify(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        page_size=data.draw(st.sampled_from([1, 16, 64])),
        estimates=IndexEstimates(data.draw(size), data.draw(size), data.draw(size)),
        last_turn=data.draw(st.none() | st.builds(LastTurn, size, size, st.booleans(), st.booleans())),
        disaggregated=data.draw(st.booleans()),
        misreported=usage.misreported_tokens > 0,
        cached_reported="cached_tokens" not in usage.estimated,
    )
    workers = workers_json((ServedBy("east-a0", 0, "aggregated"),))
    entry = Entry("wr-1", "acme", None, "aa", 1, "east", "m", "chat", True, price, 5.0, workers=workers)
    text, full, charged = usage_object(entry, usage, loss, reported)
    assert b"\n" not in text
    shown = json.loads(text)
    assert contract.check(shown) == []
    assert (shown["warmroute"]["list_nanousd"], shown["warmroute"]["price_nanousd"]) == (full, charged)
    settled = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "cost", "warmroute"}
    for name in set(reported or {}) - settled:
        assert shown[name] == json.loads(msgspec.json.encode(reported[name]))


@given(
    st.integers(1, 100_000), st.integers(0, 100_000), st.tuples(*[st.integers(0, 50_000)] * 3), st.sampled_from((1, 64))
)
def test_several_answers_have_no_more_cached_tokens_than_the_cache_had(
    prompt: int, cached: int, expected: tuple[int, int, int], page: int
) -> None:
    """What lies within the error of the estimate is the engine's to say; more counts as what was expected."""
    report = {"prompt_tokens": prompt, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": cached}}
    usage = merge_usage(report, None, None, 0)
    found = before_answers(usage, expected, page)
    assert found.cached_tokens in {usage.cached_tokens, sum(expected)}
    assert found.cached_tokens <= min(usage.cached_tokens, sum(expected) * 1.03 + page)
    assert found.device + found.host + found.storage == found.cached_tokens
    assert ("cached_tokens" in found.estimated) == (found is not usage or "cached_tokens" in usage.estimated)
