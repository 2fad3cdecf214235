"""What a finished, sampled request hands over: times and ids, and the entry that the rest is read from."""

from typing import NamedTuple

from warmroute_proxy.core.accounting.entry import Entry


class Child(NamedTuple):
    """A child span. Times: seconds of the engines' clock. `parent_id`: 0 for the request's own span.

    `span_id`: 0 if no other process knows it. `failed_by`: the event that ended it, if it was not a success.
    """

    name: str
    began_s: float
    ended_s: float
    span_id: int = 0
    parent_id: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    failed_by: str = ""


class Finished(NamedTuple):
    """A request that has ended. `offset_s`: unix seconds less those of the engines' clock.

    `entry`: None if none was opened. `status`: 0 if the client got none.
    """

    trace_id: int
    span_id: int
    parent_id: int
    began_s: float
    ended_s: float
    offset_s: float
    receipt_id: str
    session: str | None
    model: str
    route: str
    stream: bool
    turn: int
    outcome: str
    status: int
    error_code: str
    entry: Entry | None
    children: list[Child]
