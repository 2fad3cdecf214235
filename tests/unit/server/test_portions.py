"""What an engine sends at once comes out as it came, whatever the size of its reads and of the portions."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.base.turns import Turns
from warmroute_proxy.server.engines.portions import PORTION_BYTES, PORTION_S, Portions


class Loop:
    """An event loop without time."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, step: Callable[[], None]) -> None:
        self.soon.append(step)

    def turn(self) -> bool:
        """One iteration. Whether there was anything to do."""
        steps, self.soon = self.soon, []
        for step in steps:
            step()
        return bool(steps)


class Source:
    """A connection whose portions take so long each."""

    def __init__(self, tenant: str, turns: Turns, clock: "Clock", portion_s: float, log: list[str]) -> None:
        self.tenant, self.clock, self.portion_s, self.log = tenant, clock, portion_s, log
        self.portions = Portions(self, turns, clock)
        self.taken: list[bytes] = []
        self.held = self.paused = False
        self.waiting = 0

    def hold_reading(self, held: bool) -> None:
        assert held is not self.held
        self.held = held

    def may_go_on(self) -> bool:
        return not self.paused

    def answers_for(self) -> str:
        return self.tenant

    def count_waiting(self, size_bytes: int) -> None:
        self.waiting = size_bytes

    def take_portion(self, data: bytes) -> None:
        assert 0 < len(data) <= PORTION_BYTES
        self.taken.append(data)
        self.log.append(self.tenant)
        self.clock.now_s += self.portion_s


class Clock:
    """A clock that goes on by work alone."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def scene() -> Any:
    return Scene()


class Scene:
    """A loop, its lines and its clock."""

    def __init__(self) -> None:
        self.loop, self.clock, self.log = Loop(), Clock(), list[str]()
        self.turns = Turns(self.clock, lambda _: None)
        self.turns.loop = self.loop  # type: ignore[assignment]

    def source(self, tenant: str, portion_s: float = PORTION_S) -> Source:
        return Source(tenant, self.turns, self.clock, portion_s, self.log)


@given(st.lists(st.integers(PORTION_BYTES + 1, 10 * PORTION_BYTES), max_size=6), st.booleans(), st.data())
def test_nothing_is_lost_or_turned_round(sizes: list[int], ends_early: bool, data: st.DataObject) -> None:
    scene = Scene()
    source, sent = scene.source("alice"), b""
    for number, size in enumerate(sizes):
        read = bytes([number]) * size
        sent += read
        source.portions.add(read)
        if data.draw(st.booleans()):
            source.paused = not source.paused
            if not source.paused:
                source.portions.go_on()
        if data.draw(st.booleans()):
            scene.loop.turn()
    if ends_early:
        source.portions.take_all()
    source.paused = False
    source.portions.go_on()
    while scene.loop.turn():
        pass
    assert b"".join(source.taken) == sent
    assert not source.held or ends_early


def test_tenants_take_turns(scene: Scene) -> None:
    alice, bob = [scene.source("alice") for _ in range(4)], scene.source("bob")
    for each in alice:
        each.portions.add(b"a" * 40 * PORTION_BYTES)
    began = len(scene.log)
    bob.portions.add(b"b" * 4 * PORTION_BYTES)
    while len(bob.taken) < 4:
        scene.loop.turn()
    assert scene.log[began:].count("alice") <= 8


def test_a_short_burst_is_not_held_up(scene: Scene) -> None:
    source = scene.source("alice", portion_s=PORTION_S / 20)
    source.portions.add(b"a" * 8 * PORTION_BYTES)
    assert len(source.taken) == 8
    assert not source.held


def test_nothing_of_a_client_that_reads_nothing_is_handled(scene: Scene) -> None:
    source = scene.source("alice")
    source.paused = True
    source.portions.add(b"a" * 4 * PORTION_BYTES)
    while scene.loop.turn():
        pass
    assert not source.taken
    assert source.held
    assert source.waiting == 4 * PORTION_BYTES
    source.paused = False
    source.portions.go_on()
    while scene.loop.turn():
        pass
    assert len(source.taken) == 4
    assert not source.held
