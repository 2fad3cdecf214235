"""Every recorded session on an embedded fleet with room for all: each loss has a cause that was there."""

from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from warmroute.contract.money import Rates, list_and_price
from warmroute_cli.own_rows import folders_in, rows_of
from warmroute_cli.run.closing import POSSIBLE
from warmroute_lab.demo.played import ideal_by_label, run_pass
from warmroute_lab.demo.results import Pass
from warmroute_lab.fleet import FleetOptions
from warmroute_lab.recordings import load_recordings
from warmroute_proxy.ladder.of_entries import turn_of
from warmroute_proxy.ladder.steps import STEPS

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

RECORDINGS = load_recordings()
BELOW_REACHABLE = frozenset(STEPS[1:])


@pytest.fixture(scope="module", params=["cost", "round_robin"])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pass, Path]:
    folder = tmp_path_factory.mktemp("played")
    options = FleetOptions(policy=request.param, speed=50, seed=1)
    return run_pass(Console(quiet=True), folder, "all", options, RECORDINGS, 12), folder / "demo-all"


def losses(one: Pass) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in one.rows:
        found.update(row["usage"]["warmroute"]["loss"])
    return found


def test_nothing_was_evicted_and_nothing_is_left_over(played: tuple[Pass, Path]) -> None:
    one, _ = played
    lost, prompt = losses(one), sum(row["prompt_tokens"] for row in one.rows)
    assert one.violations == []  # of each receipt the classes add up, too
    assert {"evicted", "forgotten", "engine_misreport"}.isdisjoint(lost)
    assert lost["unknown"] <= 0.001 * prompt


def test_what_could_have_been_cached_is_what_one_cache_for_all_had_cached(played: tuple[Pass, Path]) -> None:
    one, _ = played
    lost, prompt = losses(one), sum(row["prompt_tokens"] for row in one.rows)
    possible = sum(row["cached_tokens"] for row in one.rows) + sum(lost[name] for name in POSSIBLE)
    ideal = sum(each.shared for each in ideal_by_label(RECORDINGS, one).values())
    assert abs(possible - ideal) <= 0.005 * prompt


def test_the_priced_loss_is_the_difference_to_the_ideal(played: tuple[Pass, Path]) -> None:
    rows = [row for folder in folders_in(played[1]) for row in rows_of(folder, None)]
    assert len(rows) == len(played[0].rows)
    for row in rows:
        costs = turn_of(row).costs
        tokens = sum(cost.tokens for cost in costs if cost.step in BELOW_REACHABLE)
        paid, best = (
            list_and_price(Rates(*row.rates), row.prompt_tokens, row.cached_tokens + more, row.completion_tokens)[1]
            for more in (0, tokens)
        )
        assert sum(cost.nanousd for cost in costs if cost.step in BELOW_REACHABLE) == paid - best
