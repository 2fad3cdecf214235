"""Answers of several regions are one: groups of one key are added up, and what is missing is said."""

from typing import Any

import pytest

from warmroute_proxy.server.control import fleet_usage
from warmroute_proxy.server.control.fleet_usage import listed_body, usage_body
from warmroute_proxy.server.ledger.schema import TOTALS
from warmroute_proxy.server.ledger.usage_sums import SUMMED, Group, Listed, Sums

COUNTED = {"east": "counted", "west": "counted"}


def sums(price: int, names: tuple[str, ...] = SUMMED) -> dict[str, int]:
    wanted = {"turns": 1, "prompt_tokens": 10, "cached_tokens": 5, "list_nanousd": 2 * price, "price_nanousd": price}
    return {name: wanted.get(name, 5 if name == "new" else 0) for name in names}


def region(*groups: tuple[str, int], **more: Any) -> Sums:
    return Sums(sums(sum(price for _, price in groups)), [Group(key, sums(price)) for key, price in groups], **more)


def test_groups_of_one_key_are_added_up_the_dearest_first() -> None:
    body = usage_body(COUNTED, [region(("a", 3), ("b", 4)), region(("a", 2))], "model", None)
    assert [(group["key"], group["turns"], group["price_nanousd"]) for group in body["groups"]] == [
        ("a", 2, 5),
        ("b", 1, 4),
    ]
    assert (body["price_nanousd"], body["saved_nanousd"], body["hit_ratio"]) == (9, 9, 0.5)
    assert body["losses"] == {"new": 10}
    assert (body["complete"], body["groups_left_out"]) == (True, 0)


def test_days_are_in_their_order() -> None:
    body = usage_body(COUNTED, [region(("2026-11-22", 9), ("2026-11-21", 1)), region(("2026-11-23", 1))], "day", None)
    assert [group["key"] for group in body["groups"]] == ["2026-11-21", "2026-11-22", "2026-11-23"]


def test_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_usage, "MAX_GROUPS", 2)
    body = usage_body(COUNTED, [region(("a", 1), ("b", 2), groups_left_out=7), region(("c", 3))], "session", None)
    assert [group["key"] for group in body["groups"]] == ["c", "b"]
    assert body["groups_left_out"] == 8
    assert body["price_nanousd"] == 6


@pytest.mark.parametrize(
    ("regions", "answers", "since"),
    [
        ({"east": "counted", "west": "no answer"}, [region(("a", 1))], None),
        (
            COUNTED,
            [region(("a", 1), complete=False, counted_since=7.0), region(complete=False, counted_since=9.0)],
            9.0,
        ),
    ],
)
def test_what_is_missing_is_said(regions: dict[str, str], answers: list[Sums], since: float | None) -> None:
    body = usage_body(regions, answers, "model", None)
    assert (body["complete"], body["regions"], body["counted_since"]) == (False, regions, since)


def test_where_one_region_read_no_losses_there_are_none() -> None:
    body = usage_body(COUNTED, [region(("a", 1)), Sums(sums(1, TOTALS))], None, None)
    assert (body["losses"], body["turns"]) == (None, 2)
    assert "groups" not in body


def test_a_list_has_the_newest_of_all_regions() -> None:
    rows = [[{"id": "a", "settled_at": 3.0}, {"id": "b", "settled_at": 1.0}], [{"id": "c", "settled_at": 2.0}]]
    body = listed_body(COUNTED, [Listed(rows[0], True), Listed(rows[1], True)], 2)
    assert [row["id"] for row in body["data"]] == ["a", "c"]
