"""The interface by which a router reports, in order, what it does."""

from collections.abc import Collection
from typing import Any

from warmroute_proxy.core.base.compiled import mypyc_attr
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.ticket import Ticket
from warmroute_proxy.core.placement.waits import Waits
from warmroute_proxy.core.prompt.routing_request import RoutingRequest


@mypyc_attr(allow_interpreted_subclasses=True)
class Listener:
    """Methods that do nothing, for subclasses to override. They must not raise, or call the router that calls them.
    Subclasses send what they get to other processes (`replicas.replica`), or record it (`replicas.recorder`).
    """

    def before_reading(self) -> None:
        """A decision or a status page is about to be made from what the router knows."""

    def placed(
        self, routing: RoutingRequest, exclude: frozenset[str], decision: Decision | None, served: bool, now_s: float
    ) -> None:
        """A decision was made; None without a usable worker. Then `served` says whether the model has any worker."""

    def dispatched(self, ticket: Ticket, routing: RoutingRequest, begins: bool, now_s: float) -> None:
        """A request was sent. `begins`: a conversation begins with it."""

    def first_token(self, ticket: Ticket, is_first: bool, now_s: float) -> None:
        """The prompt of a request has been computed. `is_first`: whether this is the first report of it."""

    def progress(self, ticket: Ticket, completion_tokens: int) -> None:
        """The stream of a request has had `completion_tokens` so far."""

    def ending(self, ticket: Ticket, now_s: float) -> None:
        """A request is about to end successfully."""

    def settled(
        self,
        ticket: Ticket,
        routing: RoutingRequest,
        turn: SettledTurn,
        streamed_tokens: int | None,
        expected: int,
        now_s: float,
    ) -> None:
        """A request ended successfully. `expected`: how soon its session will probably return
        (`cache.return_times`).
        """

    def failed(self, ticket: Ticket, at_fault: Collection[str], now_s: float) -> None:
        """A request failed."""

    def updated(self, method: str, *arguments: Any) -> None:
        """The fleet was changed by a call of the router's `method` with these arguments."""

    def waits(self, waits: Waits, now_s: float) -> None:
        """The requests that wait for KV memory in the queue of this process have changed."""

    def evicted(self, lineage: int, worker: WorkerState, cuts: list[int], now_s: float) -> None:
        """The router has found that a worker has evicted `cuts` (prefix hashes) of a lineage."""

    def applied(self, peer: int, event: Any, now_s: float) -> None:
        """An event of another process was applied (`replicas.peer_events`)."""

    def forgotten(self, peer: int, now_s: float) -> None:
        """The requests of another process were forgotten."""
