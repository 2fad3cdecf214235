"""The table of a launched process' states, and when one that ended is started again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_backend.launch.states import ALIVE, TABLE, Backoff, Event, IllegalTransition, State, next_state


def test_every_state_can_be_reached_and_left() -> None:
    reached = {State.WAITING}
    for _ in State:
        reached |= {after for state in reached for after in TABLE[state].values()}
    assert reached == set(State)
    assert all(TABLE[state] for state in State)


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_a_process_runs_only_after_a_start_and_until_an_end(events: list[Event]) -> None:
    state, runs = State.WAITING, False
    for event in events:
        try:
            state = next_state(state, event)
        except IllegalTransition:
            continue
        runs = event is Event.START or (runs and event is not Event.ENDS)
        assert runs == (state in ALIVE)


@pytest.mark.parametrize("state", State)
def test_all_can_be_stopped_but_what_stops_already(state: State) -> None:
    if state in {State.STOPPING, State.STOPPED}:
        with pytest.raises(IllegalTransition):
            next_state(state, Event.STOP)
    else:
        assert next_state(state, Event.STOP) in {State.STOPPING, State.STOPPED}


def test_pauses_double_up_to_the_longest_and_end_at_the_limit() -> None:
    backoff = Backoff(first_s=1, longest_s=10, limit=6, window_s=1000)
    restarts: list[float] = []
    pauses: list[float] = []
    while (pause := backoff.pause_s(restarts, 0.0)) is not None:
        pauses.append(pause)
        restarts.append(0.0)
    assert pauses == [1, 2, 4, 8, 10, 10]


def test_what_has_run_for_the_window_begins_again() -> None:
    backoff = Backoff(limit=2, window_s=100)
    assert backoff.pause_s([0.0, 1.0], 50.0) is None
    assert backoff.pause_s([0.0, 1.0], 100.5) == 2.0
    assert backoff.pause_s([0.0, 1.0], 101.0) == 1.0


@given(st.lists(st.floats(0, 1e6), max_size=20), st.floats(0, 1e6))
def test_a_pause_is_within_its_bounds(restarts: list[float], now_s: float) -> None:
    pause = Backoff().pause_s(restarts, now_s)
    assert pause is None or 1.0 <= pause <= 60.0
