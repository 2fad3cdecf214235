"""The table of a launched process' states."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_backend.launch.states import ALIVE, TABLE, Event, IllegalTransition, State, next_state


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
