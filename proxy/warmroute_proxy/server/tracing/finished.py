"""The record that a sampled request hands over at its end: times, ids, and the ledger entry with everything else."""

from typing import NamedTuple

from warmroute_proxy.core.accounting.entry import Entry


class Child(NamedTuple):
    """A child span. Times are in seconds of the proxy's monotonic clock. `parent_id`: 0 stands for the request's span.

    `span_id`: 0 if the span's id was not sent to another process. `failed_by`: the event by which the span failed.
    """

    name: str
    began_s: float
    ended_s: float
    span_id: int = 0
    parent_id: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    failed_by: str = ""


class Finished(NamedTuple):
    """A request that has ended. `offset_s`: unix seconds minus seconds of the proxy's monotonic clock.

    `entry`: the ledger entry; None if none was opened. `status`: 0 if the client got no status.
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
