"""The life of a launched process, as a table: what follows from a state and an event; and when it restarts. Pure.

What is not in the table is not possible: `next_state` raises `IllegalTransition`. `docs/reference/launch.md` has it as
a diagram.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a process is."""

    WAITING = "waiting"
    """For those that are started before it."""
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """The proxy gives it no new work, and it is stopped when it has none."""
    STOPPING = "stopping"
    """It was asked to end."""
    STOPPED = "stopped"
    BACKING_OFF = "backing_off"
    """It ended by itself, and is started again after a pause."""
    FAILED = "failed"
    """It ended too often. Only an operator's order starts it again."""


class Event(StrEnum):
    """What happens to a process."""

    START = "start"
    SERVES = "serves"
    DRAIN = "drain"
    STOP = "stop"
    ENDS = "ends"
    GIVE_UP = "give_up"


class IllegalTransition(Exception):
    """An event that cannot happen in a state."""


TABLE: Final[Mapping[State, Mapping[Event, State]]] = {
    State.WAITING: {Event.START: State.STARTING, Event.STOP: State.STOPPED},
    State.STARTING: {Event.SERVES: State.READY, Event.STOP: State.STOPPING, Event.ENDS: State.BACKING_OFF},
    State.READY: {Event.DRAIN: State.DRAINING, Event.STOP: State.STOPPING, Event.ENDS: State.BACKING_OFF},
    State.DRAINING: {Event.STOP: State.STOPPING, Event.ENDS: State.STOPPED},
    State.STOPPING: {Event.ENDS: State.STOPPED},
    State.STOPPED: {Event.START: State.STARTING},
    State.BACKING_OFF: {Event.START: State.STARTING, Event.GIVE_UP: State.FAILED, Event.STOP: State.STOPPED},
    State.FAILED: {Event.START: State.STARTING, Event.STOP: State.STOPPED},
}

ALIVE: Final = frozenset({State.STARTING, State.READY, State.DRAINING, State.STOPPING})
"""States in which there is a process."""


def next_state(state: State, event: Event) -> State:
    found = TABLE[state].get(event)
    if found is None:
        raise IllegalTransition(f"{event} in state {state}")
    return found


@dataclass(frozen=True, slots=True)
class Backoff:
    """At most `limit` restarts within `window_s`; pauses from `first_s`, doubled, up to `longest_s`.

    The pause doubles with each restart within the window, so a process that dies at once is not started in a circle.
    One that has run for the whole window begins again with the first pause.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    limit: int = 5
    window_s: float = 1_800.0

    def recent(self, restarts_s: Sequence[float], now_s: float) -> list[float]:
        """The restarts that count at `now_s`, on the same clock."""
        return [at_s for at_s in restarts_s if now_s - at_s < self.window_s]

    def pause_s(self, restarts_s: Sequence[float], now_s: float) -> float | None:
        """The pause before the next restart; None: there were too many."""
        count = len(self.recent(restarts_s, now_s))
        if count >= self.limit:
            return None
        return min(self.longest_s, self.first_s * 2.0**count)
