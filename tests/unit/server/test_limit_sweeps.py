"""A sweep of limits over all proxies does a bounded amount of work, however many tenants have limits."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from warmroute_proxy.core.queue.budget import Amounts, Budget, Lease, Span, SpendReservation, Taken
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.core.queue.slots import KEPT_FRESH_S, LEASE_S, Held, SlotLease, SlotLimit
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.main import SWEEP_EVERY_S
from warmroute_proxy.server.stores import budgets as of_budgets
from warmroute_proxy.server.stores import leases as of_slots
from warmroute_proxy.server.stores.budgets import Budgets
from warmroute_proxy.server.stores.leases import Rotation, SharedSlots

pytestmark = pytest.mark.full

TENANTS = 10_000
NAMES = [f"t{number}" for number in range(TENANTS)]


class Scene:
    """Limits of many tenants, a store that counts its questions, and the number of leases that were looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000_020.0  # a minute begins
        self.questions: Counter[str] = Counter()
        self.looks = 0
        for kind in (Lease, SlotLease):
            self._count(monkeypatch, kind)
        scopes = [Scope(name, (name,), kind="tenant") for name in NAMES]
        by_minute = [Budget(scope, "minute", 60, 2.0, "requests") for scope in scopes]
        self.windows = Budgets(by_minute, self, Metrics(), lambda: self.now_s)
        self.slots = SharedSlots([SlotLimit(scope, 8, 2.0) for scope in scopes], self, lambda: self.now_s)

    def _count(self, monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
        wanted: Any = kind.wanted  # type: ignore[attr-defined]

        def counted(lease: Any, now_s: float) -> Any:
            self.looks += 1
            return wanted(lease, now_s)

        monkeypatch.setattr(kind, "wanted", counted)

    async def take(self, budget: Budget, span: Span, amount: int, least: int = 0) -> Taken:
        del span, least
        self.questions[budget.name] += 1
        return Taken(max(0, amount), budget.limit)

    async def hold(self, slots: SlotLimit, running: int, wanted: int) -> Held:
        del running
        self.questions[slots.scope.name] += 1
        return Held(wanted, slots.limit - wanted)

    async def sweep(self, of: Budgets | SharedSlots) -> tuple[int, int]:
        """The leases that one sweep looks at, and the questions that it asks."""
        looks, asked = self.looks, self.questions.total()
        of.sweep()
        looks = self.looks - looks
        for _ in range(3):
            await asyncio.sleep(0)
        self.now_s += SWEEP_EVERY_S
        return looks, self.questions.total() - asked


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


async def test_limits_that_nobody_uses_cost_nothing(scene: Scene) -> None:
    assert await scene.sweep(scene.windows) == await scene.sweep(scene.slots) == (0, 0)


async def test_a_sweep_of_limits_by_the_minute_is_bounded_and_reaches_all(scene: Scene) -> None:
    for name in NAMES:
        SpendReservation(scene.windows.of(name, ""), Amounts(requests=1)).reserve(scene.now_s)
    scene.windows.replace([lease.budget for lease in scene.windows.leases])  # all are in use, none was asked for
    while len(scene.questions) < TENANTS:
        looks, asked = await scene.sweep(scene.windows)
        assert 0 < looks <= of_budgets.MOST_LOOKED_AT
        assert 0 < asked <= of_budgets.MOST_ASKED
    assert set(scene.questions.values()) == {1}


async def test_limits_by_the_minute_rest_once_their_minute_is_over(scene: Scene) -> None:
    for name in NAMES[:10]:
        assert scene.windows.granted(SpendReservation(scene.windows.of(name, ""), Amounts(requests=1)))
    assert (await scene.sweep(scene.windows))[0] == 10
    scene.now_s += 60
    assert [(await scene.sweep(scene.windows))[0] for _ in range(2)] == [10, 0]


async def test_places_of_all_that_run_are_asked_for_again_before_they_end(scene: Scene) -> None:
    running = int(of_slots.MOST_ASKED * LEASE_S / SWEEP_EVERY_S)
    for name in NAMES[:running]:
        (lease,) = scene.slots.of(name, "")
        lease.begin(1)
    for _ in range(2):
        scene.questions.clear()
        for _ in range(int(LEASE_S / SWEEP_EVERY_S)):
            looks, asked = await scene.sweep(scene.slots)
            assert looks <= of_slots.MOST_LOOKED_AT
            assert asked <= of_slots.MOST_ASKED
        assert len(scene.questions) == running


async def test_limits_at_once_rest_a_minute_after_their_last_request(scene: Scene) -> None:
    (lease,) = scene.slots.of("t1", "")
    lease.begin(1)
    scene.slots.began([lease])
    lease.end(1, scene.now_s)
    for _ in range(int(KEPT_FRESH_S / SWEEP_EVERY_S)):
        assert (await scene.sweep(scene.slots))[0] == 1
    for _ in range(int(KEPT_FRESH_S / SWEEP_EVERY_S)):
        await scene.sweep(scene.slots)
    asked = scene.questions["t1"]
    assert await scene.sweep(scene.slots) == (0, 0)
    lease.begin(1)
    scene.slots.began([lease])
    lease.end(1, scene.now_s)
    await scene.sweep(scene.slots)
    assert scene.questions["t1"] > asked


def test_a_round_goes_on_where_the_last_one_has_ended() -> None:
    rotation = Rotation("abcde")
    assert list(rotation.round(2)) == ["a", "b"]
    rotation.add("a")
    for item in rotation.round(9):
        rotation.remove(item)
        if item == "d":
            break
    assert list(rotation.round(9)) == ["e", "a", "b"]
    assert len(rotation) == 3
