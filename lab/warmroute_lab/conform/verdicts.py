"""What a check found: a cell of the results, with the requests that show it."""

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from warmroute_lab.conform.wire import Exchange

State = Literal["pass", "fail", "not tried"]
FAIL: Final = "fail"
NOT_TRIED: Final = "not tried"


class Cell(NamedTuple):
    """The result of a check. `shown_by`: the requests that show it; a `fail` has at least one."""

    check: str
    state: State
    finding: str
    shown_by: Sequence[Exchange] = ()

    def as_dict(self) -> dict[str, Any]:
        shown = [each.as_dict() for each in self.shown_by] if self.state == FAIL else []
        return {"check": self.check, "state": self.state, "finding": self.finding, "shown_by": shown}


def passed(check: str, finding: str) -> Cell:
    return Cell(check, "pass", finding)


def failed(check: str, finding: str, *shown_by: Exchange) -> Cell:
    """A cell of a check that is not met."""
    return Cell(check, "fail", finding, shown_by)


def not_tried(check: str, finding: str) -> Cell:
    return Cell(check, "not tried", finding)
