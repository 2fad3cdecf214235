"""A short run of three proxies on stores that break; the long one is `python -m tests.field.chaos --replicas 3`."""

from pathlib import Path
from typing import get_args

import pytest
import uvloop

from .__main__ import replica_figures
from .replica_audit import audit_replicas
from .replicas import Replicas
from .store_faults import Kind, store_schedule

REQUESTS = 400


@pytest.mark.timeout(120)
@pytest.mark.real_deadlines("budgets", "store_thread")
def test_no_request_is_lost_or_billed_twice_while_stores_and_proxies_break(tmp_path: Path) -> None:
    seed = 1
    print(f"seed {seed}: python -m tests.field.chaos --replicas 3 --requests {REQUESTS} --concurrency 40 --seed {seed}")
    found = uvloop.run(Replicas(seed, REQUESTS, 40, tmp_path, print, 3).go())
    print(replica_figures(found))
    assert audit_replicas(found, REQUESTS) == []
    assert any(row["price_nanousd"] for row in found.rows)


def test_a_seed_names_the_faults_of_stores() -> None:
    assert store_schedule(7, 1000, 3) == store_schedule(7, 1000, 3) != store_schedule(8, 1000, 3)
    assert {fault.kind for fault in store_schedule(7, 300, 3)} == set(get_args(Kind))
