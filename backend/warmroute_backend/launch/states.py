"""The life cycle of a launched process: a table of states and events, and the rule for restarts. Pure.

`next_state` raises `IllegalTransition` for an event that cannot happen in a state. `docs/reference/launch.md` shows the
table as a diagram.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class State(StrEnum):
    WAITING = "waiting"
    """Earlier stages do not serve yet."""
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """The proxy gives the process no new work. The launcher stops the process when its requests have ended."""
    STOPPING = "stopping"
    """The process was asked to end."""
    STOPPED = "stopped"
    BACKING_OFF = "backing_off"
    """The process ended unasked, and will be started again after a pause."""
    FAILED = "failed"
    """The process ended too often. Only an operator's order starts it again."""


class Event(StrEnum):
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
"""States in which a process exists."""


def next_state(state: State, event: Event) -> State:
    found = TABLE[state].get(event)
    if found is None:
        raise IllegalTransition(f"{event} in state {state}")
    return found


@dataclass(frozen=True, slots=True)
class Backoff:
    """At most `limit` restarts within `window_s`, after pauses that double from `first_s` up to `longest_s`.

    Each restart within the window doubles the pause, so that a process that ends at once is not restarted forever. If a
    process has run for the whole window, the next pause is the first one again.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    limit: int = 5
    window_s: float = 1_800.0

    def recent(self, restarts_s: Sequence[float], now_s: float) -> list[float]:
        """The restarts that count at `now_s`, which is on the clock of `restarts_s`."""
        return [at_s for at_s in restarts_s if now_s - at_s < self.window_s]

    def pause_s(self, restarts_s: Sequence[float], now_s: float) -> float | None:
        """The pause before the next restart; None if there were too many restarts."""
        count = len(self.recent(restarts_s, now_s))
        if count >= self.limit:
            return None
        return min(self.longest_s, self.first_s * 2.0**count)
