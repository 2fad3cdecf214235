"""Each step of the ladder is at most the one before or a named negative, and its USD is the ledger's."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.subjects.entries import dispatched_entry, settle

from warmroute.contract.money import CacheRates, Rates
from warmroute_proxy.core.accounting.entry import Entry, Outcome
from warmroute_proxy.core.accounting.entry_steps import crediting, voiding
from warmroute_proxy.core.accounting.losses import IndexEstimates, LastTurn, classify
from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.ladder.of_entries import turn_of
from warmroute_proxy.ladder.steps import CAUSES, PROMPT, STEPS, UNEXPLAINED
from warmroute_proxy.ladder.sums import Ladder

counts = st.integers(0, 300_000) | st.integers(0, 400)
rates = st.integers(0, 10_000_000)
NEGATIVE = {
    "predicted": {"overpredicted"},
    "delivered": {"underpredicted", UNEXPLAINED},
    "reported": {UNEXPLAINED},
    "billed": {"estimated", "credit", "voided", UNEXPLAINED},
}
"""Step -> the causes whose losses may be negative at that step."""

OUTCOMES: tuple[Outcome, ...] = ("completed", "client_left", "engine_error", "cut_off", "refused")


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """An entry as the proxy settles it, whatever engine, prediction and price book say."""
    more = draw(st.none() | st.builds(CacheRates, rates, rates, rates, rates))
    cached_rate = draw(rates)
    outcome = draw(st.sampled_from(OUTCOMES))
    charged = outcome in {"completed", "client_left"} or draw(st.booleans())
    price = Rates(cached_rate + draw(rates), cached_rate, draw(rates), "book", more) if charged else Rates(0, 0, 0)
    entry = dispatched_entry(
        draw(st.integers(0, 10**9)), draw(counts), tenant=draw(st.sampled_from(["a", "b"])), rates=price,
        session=draw(st.sampled_from([None, "0123456789abcdef"])), model=draw(st.sampled_from(["m", "n"])),
    )  # fmt: skip
    prompt, cached = draw(counts), draw(st.integers(-5, 300_100))
    reported: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": draw(counts)}
    if draw(st.booleans()):
        reported["prompt_tokens_details"] = {
            "cached_tokens": cached, "cache_write_tokens": draw(st.just(0) | counts)
        }  # fmt: skip
    tiers = draw(st.none() | st.just({"device": max(0, cached - 64), "host": min(max(cached, 0), 64)}))
    usage = merge_usage(reported, tiers, None, 7)
    last = draw(st.none() | st.builds(LastTurn, counts, counts, st.booleans(), st.booleans(), st.booleans()))
    loss = classify(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        page_size=draw(st.sampled_from([1, 64])),
        estimates=IndexEstimates(draw(counts), draw(counts), draw(counts), draw(counts), draw(counts)),
        last_turn=last,
        disaggregated=draw(st.booleans()),
        misreported=usage.misreported_tokens > 0,
    )
    return settle(entry, reported, loss, usage, outcome=outcome)


@given(st.lists(entries(), max_size=8), st.sampled_from([None, "model", "tenant", "session", "day"]))
def test_each_step_is_at_most_the_one_before_or_a_named_negative(rows: list[Entry], by: str | None) -> None:
    ladder = Ladder(by)
    for entry in rows:
        ladder.add(turn_of(entry))
    for sums in (ladder.all, *ladder.groups.values()):
        levels, before = sums.levels(), sums.prompt_tokens
        for step in STEPS:
            named = sums.causes(step)
            assert set(named) <= set(CAUSES[step])
            assert all(tokens >= 0 for cause, (tokens, _) in named.items() if cause not in NEGATIVE.get(step, ()))
            assert levels[step][0] == before - sum(tokens for tokens, _ in named.values())
            before = levels[step][0]


@given(st.lists(entries(), max_size=8), st.sampled_from(["model", "tenant"]))
def test_the_last_step_costs_what_the_ledger_says(rows: list[Entry], by: str) -> None:
    ladder = Ladder(by)
    for entry in rows:
        ladder.add(turn_of(entry))
    price = sum(entry.price_nanousd for entry in rows)
    assert ladder.all.levels()["billed"][1] == ladder.all.price_nanousd == price
    assert sum(sums.price_nanousd for sums in ladder.groups.values()) == price
    lost = sum(nanousd for _, nanousd in ladder.all.lost.values())
    assert ladder.all.levels()[PROMPT][1] + lost == price
    assert all(cause != "voided" for _, cause in ladder.all.lost)


@given(entries())
def test_delivered_tokens_are_those_of_the_receipt(entry: Entry) -> None:
    ladder = Ladder()
    ladder.add(turn_of(entry))
    levels = ladder.all.levels()
    assert levels["delivered"][0] == entry.cached_tokens
    assert levels["chosen"][0] == entry.predicted_cached


@given(st.lists(entries(), min_size=1, max_size=4))
def test_rows_that_take_others_back_leave_nothing_billed(rows: list[Entry]) -> None:
    ladder = Ladder()
    for entry in rows:
        ladder.add(turn_of(entry))
        ladder.add(turn_of(voiding(entry, 3.0)))
    assert ladder.all.turns == 0
    assert ladder.all.prompt_tokens == 0
    assert ladder.all.levels()["billed"][1] == 0
    assert ladder.all.levels()["delivered"][0] == 0


@given(entries(), st.integers(1, 10**9))
def test_a_credit_is_a_cause_of_its_own(entry: Entry, nanousd: int) -> None:
    usage = msgspec.json.decode(entry.usage)
    usage["warmroute"]["credit"] = {"tokens": 1, "nanousd": nanousd}
    entry.usage = msgspec.Raw(msgspec.json.encode(usage))
    ladder = Ladder()
    ladder.add(turn_of(entry))
    ladder.add(turn_of(crediting(entry)))
    assert ladder.all.turns == 1
    assert ladder.all.levels()["billed"][1] == entry.price_nanousd - nanousd
    assert ladder.all.causes("billed")["credit"] == (0, -nanousd)
