"""Whatever one tenant sends, another one's step waits for a slice and for one step of each other tenant at most."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.test_portions import Clock, Loop

from warmroute_proxy.server.base.turns import SLICE_S, Turns

KINDS = ("step", "refusal", "task")
LONGEST_S = 0.02
work = st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0.000_01, LONGEST_S)), min_size=1, max_size=300)


class Scene:
    """A loop in which steps and tasks take time."""

    def __init__(self) -> None:
        self.loop, self.clock = Loop(), Clock()
        self.turns = Turns(self.clock, lambda _: None)
        self.turns.loop = self.loop  # type: ignore[assignment]
        self.done: list[str] = []

    def send(self, tenant: str, kind: str, seconds: float) -> None:
        self.turns.take(tenant, self.step_of(tenant, kind, seconds))

    def step_of(self, tenant: str, kind: str, seconds: float) -> Callable[[], None]:
        def task() -> None:
            self.clock.now_s += seconds
            self.turns.task_ran(tenant, seconds, first=True)
            self.done.append(tenant)

        def step() -> None:
            if kind == "task":
                self.turns.task_begun()
                self.loop.call_soon(task)
                return
            self.clock.now_s += seconds
            if kind == "refusal":
                self.turns.charge(tenant, 0.000_2)
            self.done.append(tenant)

        return step


@given(work, st.sampled_from(KINDS))
def test_a_step_of_another_tenant_waits_for_a_slice_and_two_steps(flood: list[tuple[str, float]], kind: str) -> None:
    scene = Scene()
    for each, seconds in flood:
        scene.send("alice", each, seconds)
    sent_s, before = scene.clock.now_s, len(scene.done)
    scene.send("bob", kind, 0.000_1)
    while "bob" not in scene.done[before:]:
        assert scene.loop.turn()
    assert scene.clock.now_s - sent_s <= SLICE_S + 3 * LONGEST_S


@given(work)
def test_all_is_done_in_the_order_of_a_line(flood: list[tuple[str, float]]) -> None:
    scene, order = Scene(), list[int]()
    for number, (_, seconds) in enumerate(flood):

        def step(number: int = number, seconds: float = seconds) -> None:
            scene.clock.now_s += seconds
            order.append(number)

        scene.turns.take("alice", step)
    while scene.loop.turn():
        pass
    assert order == list(range(len(flood)))
    assert not scene.turns.lines
    assert not scene.turns.began


@given(st.integers(2, 60), st.floats(0.000_1, 0.004))
def test_one_iteration_begins_one_task(tasks: int, seconds: float) -> None:
    scene = Scene()
    for _ in range(tasks):
        scene.send("alice", "task", seconds)
    turns = 0
    while scene.loop.turn():
        turns += 1
    assert scene.done == ["alice"] * tasks
    assert turns >= tasks


def test_a_line_that_was_charged_long_ago_does_not_wait_for_it() -> None:
    scene = Scene()
    for _ in range(1000):
        scene.send("alice", "task", 0.01)
        while scene.loop.turn():
            pass
    for _ in range(20):
        scene.send("bob", "step", SLICE_S)
    scene.send("alice", "step", SLICE_S)
    while scene.loop.turn():
        pass
    assert scene.done[-21:].index("alice") <= 5


def test_a_step_that_fails_holds_up_no_line(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()

    def fails() -> None:
        raise ValueError("secret")

    for _ in range(3):
        scene.turns.line_up("alice", fails)
    scene.turns.line_up("bob", scene.step_of("bob", "step", 0.001))
    while scene.loop.turn():
        pass
    assert scene.done == ["bob"]
    assert "secret" not in caplog.text
