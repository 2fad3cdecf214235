"""Tracks named conditions with state machines: faults of a worker or a region that last longer than a moment.

Each observation gives a condition a sign: bad, good, or None if it says nothing about the condition. A condition is
raised after `RAISE_AFTER` bad signs in a row and cleared after `CLEAR_AFTER` good signs in a row. So a single event
does not raise a condition, and a pause does not clear it. The module `signs` derives signs from observations.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class Condition(StrEnum):
    """The names that operators and alert rules see. Each has a section in docs/reference/conditions.md."""

    ACCEPT_LENGTH = "accept_length_falls_after_hits"
    MISSING_HITS = "predicted_hits_are_not_reported"
    TRANSFERS = "pd_transfers_fail_or_are_slow"
    RETRACTIONS = "retraction_storm"
    STARVING_SIDE = "pd_side_starves"
    WORKING_SET = "working_set_does_not_fit"
    EMPTY_ANSWERS = "answers_are_empty"
    HAND_OVERS = "pd_hand_overs_fail"
    NO_HITS = "prompts_repeat_without_hits"
    UNEXPLAINED = "losses_without_a_cause"
    MISCOUNTED = "counts_are_impossible"


class Phase(StrEnum):
    """How certain a condition is."""

    CLEAR = "clear"
    SUSPECTED = "suspected"
    RAISED = "raised"
    EASING = "easing"
    """Raised, but the newest signs are good."""


RAISE_AFTER: Final = 2
CLEAR_AFTER: Final = 3

TABLE: Final[Mapping[tuple[Phase, bool], tuple[Phase, Phase]]] = {
    (Phase.CLEAR, True): (Phase.SUSPECTED, Phase.RAISED),
    (Phase.CLEAR, False): (Phase.CLEAR, Phase.CLEAR),
    (Phase.SUSPECTED, True): (Phase.SUSPECTED, Phase.RAISED),
    (Phase.SUSPECTED, False): (Phase.CLEAR, Phase.CLEAR),
    (Phase.RAISED, True): (Phase.RAISED, Phase.RAISED),
    (Phase.RAISED, False): (Phase.EASING, Phase.CLEAR),
    (Phase.EASING, True): (Phase.RAISED, Phase.RAISED),
    (Phase.EASING, False): (Phase.EASING, Phase.CLEAR),
}
"""(Phase, whether the sign is bad) -> (the next phase, the next phase after enough equal signs in a row)."""

ENOUGH: Final[Mapping[bool, int]] = {True: RAISE_AFTER, False: CLEAR_AFTER}


class ConditionChange(NamedTuple):
    """A condition was raised or cleared."""

    condition: Condition
    subject: str
    raised: bool
    detail: str


class Watched:
    """One condition of one subject (a worker's id or a region's name). `since_s`: when it was last raised or
    cleared.
    """

    __slots__ = ("_in_a_row", "_was_bad", "condition", "detail", "phase", "since_s", "subject")

    def __init__(self, condition: Condition, subject: str) -> None:
        self.condition = condition
        self.subject = subject
        self.phase = Phase.CLEAR
        self.detail = ""
        self.since_s = 0.0
        self._was_bad = False
        self._in_a_row = 0

    @property
    def is_raised(self) -> bool:
        return self.phase in {Phase.RAISED, Phase.EASING}

    def observe(self, bad: bool | None, detail: str, now_s: float) -> ConditionChange | None:
        """Take in the sign of one observation; None is ignored. Returns the change if the condition is raised or
        cleared now.
        """
        if bad is None:
            return None
        self._in_a_row = self._in_a_row + 1 if bad is self._was_bad else 1
        self._was_bad = bad
        before = self.is_raised
        onwards, sure = TABLE[self.phase, bad]
        self.phase = sure if self._in_a_row >= ENOUGH[bad] else onwards
        if bad:
            self.detail = detail
        if self.is_raised is before:
            return None
        self.since_s = now_s
        return ConditionChange(self.condition, self.subject, self.is_raised, self.detail)
