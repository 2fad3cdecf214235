"""The questions about usage again, where both regions send their rows to one PostgreSQL."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.proxy import test_usage as of_files
from tests.integration.proxy.test_usage import (  # noqa: F401 - run here, too
    Regions,
    get,
    same,
    test_a_session_is_added_up_where_it_was_not_served,
    test_a_tenant_gets_nothing_of_another_one,
    test_a_time_limits_what_is_counted,
    test_a_token_between_proxies_is_for_one_question,
    test_a_wrong_question_is_a_400_that_says_what_can_be_asked,
    test_groups_add_up_to_all_turns_of_the_tenant,
    test_operators_see_all_tenants_of_all_regions,
    test_receipts_are_listed_newest_first_from_all_regions,
    test_without_a_question_it_is_the_total_of_all_regions,
)
from tests.subjects.processes import ProxyProcess, until
from tests.subjects.stores import Postgres

from .operating import ledger_table


class SentRegions(Regions):
    """Whose turns are in the database once they are made."""

    def turn(self, proxy: ProxyProcess, *args: Any, **fields: Any) -> None:
        super().turn(proxy, *args, **fields)
        tenant, turns = fields.get("tenant", 0), self.sums(tenant=fields.get("tenant", 0))["turns"]

        def counted() -> bool:
            return all(get(each, "/v1/usage", tenant).json()["turns"] == turns for each in (self.east, self.west))

        until(counted, "all turns are counted")


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory, dsn: str) -> Iterator[Regions]:
    folder = tmp_path_factory.mktemp("usage")
    with of_files.used_regions(folder, SentRegions, ledger_table(folder, dsn)) as made:
        yield made


def test_a_receipt_is_read_from_the_database_in_any_region(regions: Regions) -> None:
    usage = next(usage for usage in regions.usages if usage["key"] == "far")
    path = f"/v1/usage/receipts/{usage['warmroute']['id']}"
    found = get(regions.east, path).json()
    assert found["usage"] == {name: value for name, value in usage.items() if name not in {"tenant", "key", "model"}}
    assert found == get(regions.west, path).json()
    assert get(regions.east, path, tenant=1).status_code == 404


def test_the_database_has_each_row_once(regions: Regions, postgres: Postgres, dsn: str) -> None:
    ids = sorted(usage["warmroute"]["id"] for usage in regions.usages)
    assert sorted(postgres.sql("SELECT id FROM turn", dsn)) == ids
    prices = sum(usage["warmroute"]["price_nanousd"] for usage in regions.usages)
    for table in ("usage_hour", "usage_session"):
        assert postgres.sql(f"SELECT sum(turns), sum(price_nanousd) FROM {table}", dsn) == [f"{len(ids)}|{prices}"]


def test_sums_begin_at_a_full_hour(regions: Regions, postgres: Postgres, dsn: str) -> None:
    *before, last_s = sorted(map(float, postgres.sql("SELECT settled_at FROM turn WHERE tenant = 'first'", dsn)))
    of_its_hour = [each_s for each_s in (*before, last_s) if each_s // 3600 == last_s // 3600]
    assert get(regions.east, f"/v1/usage?since={last_s}").json()["turns"] == len(of_its_hour)
