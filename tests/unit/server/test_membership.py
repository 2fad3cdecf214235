"""Which engines join, stay and leave, without sockets: nothing here connects to an engine."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.config_engines import read_engine
from warmroute_proxy.server.base.config_table import Table
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines import drain_orders
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.http.body_memory import BodyMemory
from warmroute_proxy.server.reload.membership import Membership


def engine(name: str, port: int) -> EngineConfig:
    return read_engine(
        Table({"id": name, "url": f"http://127.0.0.1:{port}", "region": "east"}, "engine", []), {}, Path()
    )


A, B, OTHER = engine("e", 1), engine("e", 9), engine("f", 2)


class Fleet:
    """Engines A and OTHER. `waiting`: how many hot prompts keep one that leaves."""

    def __init__(self, state_dir: Path) -> None:
        metrics = Metrics()
        self.engines = Engines([A, OTHER], 1.0, time.monotonic, time.time, metrics, "east")
        router = Router("east", self.engines.workers(), [], "cost")
        self.router = router
        self.waiting = 0
        re_prefills: Any = SimpleNamespace(waiting=lambda _engine: self.waiting)
        memory = BodyMemory(1 << 20, 1, metrics.counter(declared.REFUSED_TOTAL, ()))
        self.membership = Membership(self.engines, router, re_prefills, memory, 1.0, state_dir, time.monotonic)

    def have(self, *configs: EngineConfig) -> None:
        self.membership.replace(configs, self.membership.make(configs))

    def url(self) -> str:
        return self.engines.by_id["e"].config.url


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.engines.close()


async def test_an_engine_gets_another_address_when_the_old_one_has_left(fleet: Fleet) -> None:
    fleet.waiting = 1
    fleet.have(B, OTHER)
    assert fleet.url() == A.url
    fleet.waiting = 0
    fleet.membership.sweep()
    assert fleet.url() == B.url


async def test_an_address_that_is_put_back_while_the_engine_drains_stays(fleet: Fleet) -> None:
    fleet.waiting = 1
    fleet.have(B, OTHER)
    fleet.have(A, OTHER)
    fleet.waiting = 0
    fleet.membership.sweep()
    assert fleet.url() == A.url
    assert not fleet.engines.drains.draining("e")


async def test_an_engine_that_joins_follows_the_order_to_drain_it(fleet: Fleet, tmp_path: Path) -> None:
    drain_orders.note(tmp_path, "e", 5.0)
    drain_orders.note(tmp_path, "late", 6.0)
    late = engine("late", 3)
    fleet.have(B, OTHER, late)
    assert fleet.url() == B.url
    drains = fleet.engines.drains
    assert (drains.of("e"), drains.of("late"), drains.of("f")) == ({"operator": 5.0}, {"operator": 6.0}, {})
    fleet.router.set_up("late", True)
    workers = fleet.router.snapshot(time.monotonic())["workers"]
    assert workers["late"]["health"] == "draining"


def test_an_order_for_one_engine_leaves_those_for_others(tmp_path: Path) -> None:
    drain_orders.note(tmp_path, "away", 5.0)
    drain_orders.note(tmp_path, "e", 6.0)
    assert drain_orders.load(tmp_path) == {"away": 5.0, "e": 6.0}
    drain_orders.note(tmp_path, "e", None)
    assert drain_orders.load(tmp_path) == {"away": 5.0}
    drain_orders.save(tmp_path, {f"x{number}": float(number) for number in range(drain_orders.MAX_ORDERS)})
    drain_orders.note(tmp_path, "e", 1e9)
    kept = drain_orders.load(tmp_path)
    assert (len(kept), "e" in kept, "x0" in kept) == (drain_orders.MAX_ORDERS, True, False)
