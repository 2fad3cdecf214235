"""Rows as draws of their arrivals: medians, ranges, the rule on medians, and the rows that are held back."""

from scripts.placement.draws import Drawn, Policy, drawn, is_held_back, policies_of, rule_holds, table


def policy(hit: float, p90_s: float) -> Policy:
    return Policy(Drawn(hit, hit, hit), Drawn(p90_s, p90_s, p90_s))


def test_the_median_of_a_column_counts_and_its_range_is_shown() -> None:
    results = [{"policy": "warmroute", "hit": hit, "ttft_p90_s": 10 * hit} for hit in (0.5, 0.1, 0.2)]
    found = policies_of(results)["warmroute"]
    assert found == Policy(drawn([0.1, 0.2, 0.5]), Drawn(2.0, 1.0, 5.0))
    assert found.hit.text(3) == "0.200 (0.100-0.500)"


def test_the_rule_compares_with_the_shortest_tail_near_the_best_hit_ratio() -> None:
    others = [policy(0.90, 2.0), policy(0.89, 1.5), policy(0.70, 0.1)]
    assert rule_holds(policy(0.896, 1.57), others)
    assert not rule_holds(policy(0.894, 1.0), others)
    assert not rule_holds(policy(0.95, 1.58), others)


def test_about_a_third_of_the_rows_is_held_back_by_name_alone() -> None:
    held_back = [is_held_back(f"row {number}") for number in range(300)]
    assert 80 < sum(held_back) < 120
    assert held_back == [is_held_back(f"row {number}") for number in range(300)]


def test_a_table_says_what_the_rule_says_of_ours_alone() -> None:
    lines = table("row 1", {"warmroute": policy(0.9, 1.0), "lmetric": policy(0.8, 1.0)}).splitlines()
    assert lines[-2].endswith("| holds |")
    assert lines[-1].endswith("|  |")
