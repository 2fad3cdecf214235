"""The lives of requests and attempts: each transition of the tables happens, and no other one can."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.subjects.request_scene import CONTENT, DONE, EVENTS, Scene, in_loop

import warmroute_proxy
from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.server.ledger.journal import JournalError
from warmroute_proxy.server.request.attempt import MAX_HELD_BYTES, Attempt
from warmroute_proxy.server.request.failure import Failure
from warmroute_proxy.server.request.states import (
    ATTEMPT,
    REQUEST,
    AttemptEvent,
    AttemptState,
    IllegalTransition,
    RequestEvent,
    RequestState,
    next_state,
)

pytestmark = pytest.mark.skipif(warmroute_proxy.COMPILED, reason="compiled code takes no scripted neighbours")

R, E = RequestState, RequestEvent
Step = Callable[[Scene], object]
T = TypeVar("T")


def in_turn(*steps: Callable[[T], object]) -> Callable[[T], object]:
    """One step after the other."""
    return lambda it: [step(it) for step in steps]


def pair(scene: Scene) -> bool:
    return "prefill" in scene.engines.by_id


def dispatched(scene: Scene) -> None:
    scene.begin()


def prefilled(scene: Scene) -> None:
    scene.begin()
    if pair(scene):
        scene.prefill()
    else:
        scene.request.prefilled(scene.now)


def answering(scene: Scene) -> None:
    scene.begin()
    scene.content()


def left(scene: Scene) -> None:
    answering(scene)
    scene.client.leave()


def settling(scene: Scene) -> None:
    answering(scene)
    scene.complete()


REACH: dict[RequestState, Step] = {
    R.PLACING: lambda scene: None,  # noqa: ARG005 - it is new
    R.QUEUED: lambda scene: scene.begin("queue"),
    R.FORWARDED: lambda scene: scene.begin("forward"),
    R.DISPATCHED: dispatched,
    R.PREFILLED: prefilled,
    R.ANSWERING: answering,
    R.LEFT: left,
    R.SETTLING: settling,
    R.SETTLING_LEFT: in_turn(left, Scene.give_up_usage),
    R.ENDED: in_turn(settling, Scene.write_row),
    R.CRASHED: in_turn(settling, lambda scene: scene.request.crashed()),
}
"""How a request comes to each state."""

CAUSE: dict[tuple[RequestState, RequestEvent], Step] = {
    (R.PLACING, E.QUEUE): lambda scene: scene.begin("queue"),
    (R.PLACING, E.FORWARD): lambda scene: scene.begin("forward"),
    (R.PLACING, E.DISPATCH): lambda scene: scene.begin(),
    (R.PLACING, E.REFUSE): lambda scene: scene.begin("refuse"),
    (R.PLACING, E.SETTLE): in_turn(dispatched, Scene.engine_fails),
    (R.QUEUED, E.ADMIT): lambda scene: scene.admit(),
    (R.QUEUED, E.REFUSE): lambda scene: scene.turn_away(),
    (R.FORWARDED, E.HOME_FAILED): lambda scene: scene.home_fails(),
    (R.FORWARDED, E.FORWARD_ENDED): lambda scene: scene.home_ends(),
    (R.DISPATCHED, E.PREFILL): lambda scene: scene.request.prefilled(scene.now),
    (R.SETTLING, E.ROW_WRITTEN): lambda scene: scene.write_row(),
    (R.SETTLING_LEFT, E.ROW_WRITTEN): lambda scene: scene.write_row(JournalError("full")),
    (R.CRASHED, E.ROW_WRITTEN): lambda scene: scene.write_row(),
    (R.LEFT, E.SETTLE): lambda scene: scene.complete(),
    **{(state, E.CONTENT): Scene.content for state in (R.DISPATCHED, R.PREFILLED)},
    **{(state, E.SETTLE): Scene.complete for state in (R.DISPATCHED, R.PREFILLED, R.ANSWERING)},
    **{(state, E.FAIL): Scene.engine_fails for state in (R.DISPATCHED, R.PREFILLED, R.ANSWERING)},
    **{
        (state, E.CLIENT_LEFT): lambda scene: scene.client.leave() for state, event in REQUEST if event is E.CLIENT_LEFT
    },
    **{(state, E.CRASH): lambda scene: scene.request.crashed() for state in R},
}
"""What makes each transition happen."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The transitions that are taken, in order."""
    found: list[Any] = []

    def noted(table: Any, state: Any, event: Any) -> Any:
        found.append((state, event))
        return next_state(table, state, event)

    monkeypatch.setattr("warmroute_proxy.server.request.inference_request.next_state", noted)
    monkeypatch.setattr("warmroute_proxy.server.request.attempt.next_state", noted)
    return found


def test_the_steps_are_those_of_the_table() -> None:
    assert CAUSE.keys() == REQUEST.keys()
    assert REACH.keys() == set(R)


@pytest.mark.parametrize("edge", REQUEST, ids=lambda edge: f"{edge[0].name}-{edge[1].name}")
async def test_a_request_takes_each_transition(edge: tuple[RequestState, RequestEvent], taken: list[Any]) -> None:
    scene = Scene(stream=edge != (R.DISPATCHED, E.SETTLE))  # a stream has its first token before its end
    REACH[edge[0]](scene)
    assert scene.request.state is edge[0]
    taken.clear()
    CAUSE[edge](scene)
    assert edge in taken
    if edge[1] not in {E.ADMIT, E.HOME_FAILED, E.FAIL}:  # it goes on at once from those
        assert scene.request.state is REQUEST[edge]
    scene.request.crashed()  # nothing is left of it in any state
    assert not scene.open_requests.live
    assert all(w["running"] == 0 for w in scene.router.snapshot(scene.now)["workers"].values())


@pytest.mark.parametrize("state", R, ids=lambda state: state.name)
async def test_a_request_takes_no_other_transition(state: RequestState) -> None:
    scene = Scene()
    REACH[state](scene)
    for event in E:
        if (state, event) not in REQUEST:
            with pytest.raises(IllegalTransition, match=f"{event.name} cannot happen in RequestState {state.name}"):
                scene.request._advance(event)
            assert scene.request.state is state


@pytest.mark.parametrize(
    "state", [R.QUEUED, R.DISPATCHED, R.PREFILLED, R.ANSWERING, R.SETTLING], ids=lambda each: each.name
)
async def test_a_turn_whose_client_leaves_is_unanswered_at_once_and_never_later(state: RequestState) -> None:
    """The client may send it again at once, and is then answered before the first row is written."""
    scene = Scene()
    REACH[state](scene)
    scene.client.leave()
    assert scene.unanswered == 1
    scene.give_up_usage()
    while scene.rows:
        scene.write_row()
    assert scene.request.state is R.ENDED
    assert scene.unanswered == 1


def _has_leg(scene: Scene, role: str = "") -> bool:
    name = role or ("decode" if pair(scene) else "aggregated")
    legs = scene.engines.by_id[name].upstream.legs
    return bool(legs) and not legs[-1].done


STEPS: list[Step] = [
    lambda scene: scene.begin("here"),
    lambda scene: scene.begin("queue"),
    lambda scene: scene.begin("forward"),
    lambda scene: scene.begin("turn away"),
    Scene.admit,
    Scene.turn_away,
    Scene.home_fails,
    Scene.home_ends,
    Scene.content,
    Scene.complete,
    Scene.prefill,
    Scene.engine_fails,
    lambda scene: scene.engine_fails("here"),
    lambda scene: scene.leg("prefill").fail(Cause.BROKEN, "broke"),
    lambda scene: scene.client.leave(),
    Scene.give_up_usage,
    Scene.write_row,
    lambda scene: scene.write_row(JournalError("full")),
    lambda scene: scene.request.sweep(scene.now),
    lambda scene: scene.request.shut_down(),
    lambda scene: setattr(scene, "now", scene.now + 700.0),
    lambda scene: setattr(scene, "journal_works", not scene.journal_works),
]
POSSIBLE: list[Callable[[Scene], bool]] = [
    *[lambda scene: scene.request.state is R.PLACING and not scene.client.ended] * 4,
    *[lambda scene: scene.request.state is R.QUEUED] * 2,
    *[lambda scene: scene.request.state is R.FORWARDED] * 2,
    *[_has_leg] * 2,
    lambda scene: pair(scene) and _has_leg(scene, "prefill"),
    *[_has_leg] * 2,
    lambda scene: pair(scene) and _has_leg(scene, "prefill"),
    lambda scene: not scene.client.ended and scene.request.state not in {R.PLACING, R.FORWARDED},
    lambda scene: True,  # noqa: ARG005
    *[lambda scene: bool(scene.rows)] * 2,
    *[lambda scene: True] * 4,  # noqa: ARG005
]


@given(numbers=st.lists(st.integers(0, len(STEPS) - 1), max_size=25), paired=st.booleans(), several=st.booleans())
def test_a_request_ends_once_whatever_happens(numbers: list[int], paired: bool, several: bool) -> None:
    def steps() -> None:
        scene = Scene(("prefill", "decode") if paired else ("aggregated",), several=several)
        for number in numbers:
            if POSSIBLE[number](scene):
                STEPS[number](scene)
            assert scene.request.state is not R.CRASHED, "an error of the proxy's own"
            assert scene.client.ends <= 1
            assert scene.settled <= 1
        while scene.rows:
            scene.write_row()
        if scene.request.state is R.ENDED:
            assert scene.client.ended
            assert not scene.open_requests.live
            assert all(w["running"] == 0 for w in scene.router.snapshot(scene.now)["workers"].values())

    in_loop(steps)


# -- attempts

A, D = AttemptState, AttemptEvent


class Owner:
    """An owner that lets everything pass."""

    def __init__(self) -> None:
        self.ends = 0

    def content(self, data: bytes) -> None: ...
    def passthrough_target(self) -> None: ...
    def prefilled(self, now_s: float) -> None: ...

    def finished(self, now_s: float) -> None:
        self.ends += 1

    def failed(self, failure: Failure) -> None:
        self.ends += 1

    def crashed(self) -> None:
        self.ends += 1


class Tried:
    """An attempt at a pair, and its legs."""

    def __init__(self) -> None:
        self.scene = scene = Scene(("prefill", "decode"))
        parsed = scene.request.parsed
        decision: Decision = scene.router.place(parsed.routing, scene.now)
        engines: Any = scene.engines
        self.owner = Owner()
        self.attempt = Attempt(self.owner, engines, decision, "rid", parsed, 1 << 20, None)

    def start(self) -> None:
        self.attempt.start(self.scene.request.parsed, self.scene.request.body, "", "/v1/chat/completions", tagged=False)

    def event(self, data: bytes) -> None:
        leg = self.scene.leg()
        if not leg.head_seen:
            leg.head(200, EVENTS)
        leg.body(data)

    def answering(self) -> None:
        self.start()
        self.event(CONTENT)

    def stopping(self) -> None:
        self.answering()
        self.attempt.abort()

    def failing(self) -> None:
        """The answering engine says nothing; the prefill engine may say why."""
        self.start()
        self.event(b": %b\n\n" % (b"x" * MAX_HELD_BYTES))

    def finish(self) -> None:
        self.event(DONE)

    def fail(self) -> None:
        if self.attempt.state is A.FAILING:
            self.attempt._conclude_pending()
        else:
            self.scene.prefill()
            self.scene.leg().fail(Cause.BROKEN, "broke")


REACH_ATTEMPT: dict[AttemptState, Callable[[Tried], object]] = {
    A.NEW: lambda tried: None,  # noqa: ARG005
    A.SENT: Tried.start,
    A.ANSWERING: Tried.answering,
    A.STOPPING: Tried.stopping,
    A.FAILING: Tried.failing,
    A.FINISHED: in_turn(Tried.answering, Tried.finish),
    A.FAILED: in_turn(Tried.start, Tried.fail),
    A.CLOSED: in_turn(Tried.start, lambda tried: tried.attempt.close()),
}
CAUSE_ATTEMPT: dict[AttemptEvent, Callable[[Tried], object]] = {
    D.SEND: Tried.start,
    D.CONTENT: lambda tried: tried.event(CONTENT),
    D.ABORT: lambda tried: tried.attempt.abort(),
    D.LEG_FAILED: lambda tried: tried.scene.leg().fail(Cause.BROKEN, "broke"),
    D.FINISH: Tried.finish,
    D.FAIL: Tried.fail,
    D.CLOSE: lambda tried: tried.attempt.close(),
}


@pytest.mark.parametrize("edge", ATTEMPT, ids=lambda edge: f"{edge[0].name}-{edge[1].name}")
async def test_an_attempt_takes_each_transition(edge: tuple[AttemptState, AttemptEvent], taken: list[Any]) -> None:
    tried = Tried()
    REACH_ATTEMPT[edge[0]](tried)
    assert tried.attempt.state is edge[0]
    taken.clear()
    CAUSE_ATTEMPT[edge[1]](tried)
    assert taken == [edge]
    assert tried.attempt.state is ATTEMPT[edge]
    assert tried.owner.ends <= 1


@pytest.mark.parametrize("state", A, ids=lambda state: state.name)
async def test_an_attempt_takes_no_other_transition(state: AttemptState) -> None:
    tried = Tried()
    REACH_ATTEMPT[state](tried)
    for event in D:
        if (state, event) not in ATTEMPT:
            with pytest.raises(IllegalTransition, match=f"{event.name} cannot happen in AttemptState {state.name}"):
                tried.attempt._advance(event)
