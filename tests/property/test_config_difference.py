"""Two configs compared: what is merged differs from the new one only in what waits for a restart."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_difference import LIVE_LISTS, Kind, compare, merged, usd_budgets_live
from warmroute_proxy.server.base.config_file import parse_config
from warmroute_proxy.server.base.config_schema import document_schema

names = st.sampled_from(["a", "b", "c", "d"])


def listed(name: str, **keys: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    element = st.fixed_dictionaries({name: names}, optional=keys)
    return st.lists(element, min_size=1, max_size=4, unique_by=lambda each: each[name])


books = st.dictionaries(st.sampled_from(["first", "second"]), st.sampled_from(["4", "5"]), max_size=2).map(
    lambda outputs: [
        {"name": name, "from": datetime(2026, 1, at + 1, tzinfo=UTC), "input": "2", "cached": "1", "output": output}
        for at, (name, output) in enumerate(sorted(outputs.items()))
    ]
)

amounts: list[dict[str, Any]] = [
    {"usd_per_month": "2"},
    {"usd_per_month": "3", "warn_share": 0.5},
    {"requests_per_minute": 1},
    {"requests_per_minute": 2},
]

documents = st.builds(
    lambda engines, models, tenants, limits, proxy, sync, budgets: {
        "proxy": {"region": "east", **proxy},
        "ledger": {"sync": sync},
        "limits": limits,
        "region": [{"name": "east"}],
        "engine": [{"url": f"http://{each['id']}", "region": "east", **each} for each in engines],
        "model": [{"input": "2", "cached": "1", "output": "3", **each} for each in models],
        "budget": [{"name": name, "tenants": [tenants[0]["name"]], **amount} for name, amount in budgets],
        "tenant": [{"key_sha256": [f"{ord(each['name']):064x}"], **each} for each in tenants],
    },
    listed("id", url=st.sampled_from(["http://x:1", "http://y:2"]).map(str), max_running=st.integers(1, 3)),
    listed("name", output=st.sampled_from(["4", "5"]), context_tokens=st.integers(1, 3), price=books),
    listed("name", requests_per_minute=st.integers(1, 3), salt_epoch=st.integers(0, 2)),
    st.fixed_dictionaries({}, optional={"queue_timeout_s": st.integers(1, 3), "keyed_replay_s": st.integers(1, 3)}),
    st.fixed_dictionaries(
        {}, optional={"watch_config": st.booleans(), "port": st.integers(1, 3), "media_schemes": st.just(["https"])}
    ),
    st.sampled_from(["process", "disk"]),
    st.lists(st.tuples(names, st.sampled_from(amounts)), max_size=4, unique_by=lambda each: each[0]),
).filter(lambda document: len({each["url"] for each in document["engine"]}) == len(document["engine"]))


def config(document: dict[str, Any]) -> Config:
    return parse_config(document, Path(), "test")


configs = documents.map(config)


@searched(40)
@given(configs, configs)
def test_what_is_merged_is_the_new_config_but_for_what_waits(running: Config, new: Config) -> None:
    usd_live = usd_budgets_live(running)
    found = merged(running, new, usd_live)
    changes = compare(running, new, usd_live)
    assert compare(found, new, usd_live) == [change for change in changes if change.waits_for_restart]
    assert not [change for change in compare(running, found, usd_live) if change.waits_for_restart]
    for attribute in [*LIVE_LISTS.values(), "group_limits"]:
        assert getattr(found, attribute) == getattr(new, attribute)
    keys = {key for change in changes if change.table == "proxy" for key in change.keys}
    assert keys <= set(document_schema()["properties"]["proxy"]["properties"])
    if not any(change.waits_for_restart for change in changes):
        assert found == new
    assert bool(changes) == (running != new)


@searched(40)
@given(configs, configs)
def test_added_and_removed_change_their_places_the_other_way_round(one: Config, other: Config) -> None:
    there = {(each.table, each.name, each.kind) for each in compare(one, other, usd_live=True)}
    back = {(each.table, each.name, each.kind) for each in compare(other, one, usd_live=True)}
    mirrored = {Kind.ADDED: Kind.REMOVED, Kind.REMOVED: Kind.ADDED, Kind.CHANGED: Kind.CHANGED, Kind.MOVED: Kind.MOVED}
    assert there == {(table, name, mirrored[kind]) for table, name, kind in back}


@searched(40)
@given(configs)
def test_no_change_shows_a_value(running: Config) -> None:
    tenants = tuple(replace(each, key_sha256=("f" * 64,)) for each in running.tenants[:1])
    changes = compare(running, replace(running, tenants=tenants), usd_budgets_live(running))
    assert ("key_sha256",) in [change.keys for change in changes]
    assert "f" * 64 not in repr(changes)
