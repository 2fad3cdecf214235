"""Rows as draws of their arrivals: medians, ranges, the rule on medians, what is held back, and what the page says."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bench.placement import draws, figures, tight
from bench.placement.draws import Draw, Draws, keep, kept, play
from bench.placement.margins import margins
from bench.placement.page import main_page
from bench.placement.rows import BASELINES, OURS, ROWS, SEEDS, TRIAL_SEEDS, Row, is_held_back
from bench.placement.rule import Drawn, drawn, verdict, verdicts

from warmroute_cli.main import main
from warmroute_lab.replay.setup import POLICIES

TINY = Row("tiny", "Traces", ("$TRACES/tiny.jsonl", "--workers", "2"), ("session_hash",))


def draws_of(hit: float, p90_s: float) -> list[Draw]:
    return [Draw(1, hit, p90_s, 0.03)]


def row_of(**others: tuple[float, float]) -> tuple[Row, dict[str, list[Draw]]]:
    return Row("row", "Traces", (), tuple(others)), {name: draws_of(*each) for name, each in others.items()}


def test_the_median_of_a_column_counts_and_its_range_is_shown() -> None:
    assert drawn((0.5, 0.1, 0.2)) == Drawn(0.2, 0.1, 0.5)
    assert drawn((0.5, 0.1, 0.2)).text(3) == "0.200 (0.100-0.500)"
    assert drawn((0.5,)).text(3) == "0.500"


@pytest.mark.parametrize(
    ("ours", "hit_holds", "p90_holds"),
    [((0.596, 2.09), True, True), ((0.594, 2.09), False, True), ((0.596, 2.11), True, False), ((0.2, 9), False, False)],
)
def test_the_rule_is_held_against_the_best_hit_and_the_best_tail_near_it(
    ours: tuple[float, float], hit_holds: bool, p90_holds: bool
) -> None:
    row, played = row_of(herds=(0.60, 4.0), balances=(0.585, 2.0), ignores=(0.10, 1.0))
    found = verdict(row, "warmroute", played | {"warmroute": draws_of(*ours)})
    assert (found.best.policy, found.yardstick.policy) == ("herds", "balances")
    assert (found.hit_holds, found.p90_holds) == (hit_holds, p90_holds)
    assert found.holds == (hit_holds and p90_holds)


def test_about_a_third_of_the_rows_is_held_back_by_name_alone() -> None:
    assert 80 < sum(is_held_back(f"row {number}") for number in range(300)) < 120
    assert [row.name for row in ROWS if row.is_held_back][:3] == [
        "conversation, N=8, 4x", "synthetic, N=8, 2x", "toolagent, N=8, 2x",
    ]  # fmt: skip


def test_rows_have_names_of_their_own_and_trials_no_seed_of_the_page() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert not set(SEEDS) & set(TRIAL_SEEDS)
    assert {*OURS, *BASELINES} <= set(POLICIES)


def test_draws_are_kept_and_only_what_is_missing_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, commands = tmp_path / "draws.json", []
    chats = [
        {"timestamp": 0, "input_length": 9000, "output_length": 9, "hash_ids": [*range(18 * number, 18 * number + 18)]}
        for number in range(9)
    ]
    (tmp_path / "tiny.jsonl").write_text("\n".join(map(json.dumps, chats)) + "\n")

    def replay(words: list[str]) -> tuple[list[Any], None]:
        commands.append(words)
        assert main(["replay", *words, "--json", str(tmp_path / "rows.json")]) == 0
        return json.loads((tmp_path / "rows.json").read_text()), None

    monkeypatch.setattr(draws, "replay", replay)
    play([TINY], [21], str(tmp_path), file)
    play([TINY], [21, 22], str(tmp_path), file)
    seeds = [words[words.index("--seed") + 1] for words in commands]
    assert seeds == ["21"] * len(TINY.policies) + ["22"] * len(TINY.policies)
    found = kept(file)[TINY.name]
    assert set(found) == set(TINY.policies)
    assert all([draw.seed for draw in draws] == [21, 22] for draws in found.values())
    assert found["warmroute"][0] != found["warmroute"][1]
    json.loads(file.read_text("utf-8"))


def some_draws(ours: Mapping[str, tuple[float, float]]) -> Draws:
    """All rows at three seeds: the baselines equal, ours as given."""
    return {
        row.name: {
            policy: [Draw(seed, *ours.get(policy, (0.9, 1.0)), 0.03) for seed in SEEDS[:3]] for policy in row.policies
        }
        for row in ROWS
    }


def test_the_page_says_first_where_the_rule_holds_and_where_not_and_stays_short() -> None:
    found = some_draws({"warmroute": (0.9, 1.2), "warmroute+events": (0.91, 0.9)})
    lines = main_page(found, verdicts(found), figures.kept()).splitlines()
    assert len(lines) < 250
    answer = lines[lines.index("## The answer") :][:18]
    assert f"| warmroute | all rows | 0 of {len(ROWS)} | 85% | {len(ROWS)} | 0 |" in answer
    agents = sum(row.is_agents for row in ROWS)
    assert f"| warmroute+events | agents' rows | {agents} of {agents} | 100% | {agents} | {agents} |" in answer
    assert "| row | warmroute | warmroute+events |" in answer
    assert f"| {ROWS[0].name} | p90 1.2 s (1.05) | holds |" in answer


def test_a_row_that_was_not_played_is_named_on_the_page() -> None:
    found = some_draws({})
    del found[ROWS[0].name]
    assert f"Not played: {ROWS[0].name}." in main_page(found, verdicts(found), figures.kept())


def test_the_plot_of_all_rows_marks_what_lies_beyond_its_edge() -> None:
    inside, beyond = (margins(verdicts(some_draws(dict.fromkeys(OURS, (0.9, p90_s))))) for p90_s in (1.0, 9.0))
    assert inside.count("<circle") == beyond.count("<circle") + len(OURS) * len(ROWS)


def test_keeping_draws_leaves_no_other_file(tmp_path: Path) -> None:
    keep({"row": {"warmroute": draws_of(0.5, 1.0)}}, tmp_path / "draws.json")
    assert [path.name for path in tmp_path.iterdir()] == ["draws.json"]


def test_a_tight_row_is_held_against_the_best_router_of_each_column_at_the_seeds_of_all() -> None:
    assert {policy for row in (*tight.BARS, *tight.PROXIES) for policy in row.policies} <= set(POLICIES)
    assert not {*SEEDS, *TRIAL_SEEDS} & set(tight.SEEDS)
    row = next(row for row in tight.BARS if row.name == "16 x 1 M")

    def draw(seed: int, computed: float, p90_s: float) -> Draw:
        return Draw(seed, 0.5, p90_s, 0.03, computed * 1e6, 1.0, 1.0, 1.0, 1.0, 1.0)

    played = {policy: [draw(11, 200, 8.0)] for policy in row.policies}
    played[tight.OURS] = [draw(11, 100, 2.0), draw(12, 900, 90.0)]
    text = "\n".join(tight.tight_tables({row.name: played}))
    assert "| 16 x 1 M, 1 draw |" in text
    assert "| x the best router (bar) |  | 0.50 (1.02) |  |  | 0.25 (1.02) | 1.00 (1.15) |  | 1.00 (1.02) |" in text


def test_bounds_on_waiting_are_compared_at_the_seeds_that_all_of_a_fleet_were_played_at() -> None:
    def draws(seeds: range, p90_s: float) -> dict[str, list[Draw]]:
        return {tight.OURS: [Draw(seed, 0.5, p90_s + seed, 0.03, 1e6, 1.0, 1.0, 1.0, 1.0, 1.0) for seed in seeds]}

    small = [row for row in tight.BOUNDS if row.name.startswith("8 x 1 M")]
    played: Draws = {row.name: draws(range(11, 13 + at), 10.0 * at) for at, row in enumerate(small)}
    one, other = tight.BOUNDS[0], small[0]
    lines = tight.tight_tables(played | {one.name: draws(range(11, 14), 0.0)})
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| 8 x 1 M |")]
    assert [cells[:3] for cells in found] == [
        ["8 x 1 M", bound, "2"] for bound in ("60 s", "120 s", "240 s", "480 s", "none")
    ]
    assert [cells[7] for cells in found] == [
        f"{10 * at + 11.5:.1f} ({10 * at + 11}.0-{10 * at + 12}.0)" for at in range(5)
    ]
    assert not any(line.startswith(f"| {one.name.partition(',')[0]} |") for line in lines), "four bounds are missing"
    assert {row.words for row in tight.BARS if row.name in (one.name, other.name)} == {one.words, other.words}
