"""Lists what an inference request uses on its path through the proxy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.queue.quota import UsedTokens
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.http.exchange import Exchange
from warmroute_proxy.server.intake.parsed_request import ParsedRequest
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.client_answer import AnswerHeaders
from warmroute_proxy.server.request.deadlines import Deadlines
from warmroute_proxy.server.request.faults import Faults
from warmroute_proxy.server.request.open_requests import OpenRequests
from warmroute_proxy.server.request.placing import Placing
from warmroute_proxy.server.request.request_metrics import RequestMetrics
from warmroute_proxy.server.request.settlement import Settlement


class Forwards(Protocol):
    def replace(self, config: Config) -> None:
        """Use the limits of another config."""

    def begin(
        self,
        exchange: Exchange,
        parsed: ParsedRequest,
        request_id: str,
        decision: Decision,
        serve_here: Callable[[str], None],
        begun: Callable[[], None],
        ended: Callable[[UsedTokens | None], None],
    ) -> None:
        """Forward a request to its home region. `begun`: called when the client gets a stream; from then on the body is
        not needed. `serve_here(peer id)`: called if the home cannot take the request. `ended`: called at any other end,
        with the tokens that count; None if they are unknown.
        """


class KeepsPrompts(Protocol):
    """Keeps prompts, so that another engine can compute them when their own engine leaves."""

    @property
    def min_bytes(self) -> int:
        """The size of the smallest body that is worth keeping."""

    def keep(self, parsed: ParsedRequest, body: bytes, path: str, cache_worker: str) -> None:
        """Keep the prompt of a turn that was served."""


@dataclass(frozen=True, slots=True)
class RequestPath:
    """The components that a request uses, in the order in which it needs them."""

    open_requests: OpenRequests
    placing: Placing
    admission: Admission
    forwarding: Forwards
    faults: Faults
    engines: Engines
    deadlines: Deadlines
    settlement: Settlement
    re_prefills: KeepsPrompts
    answer_headers: AnswerHeaders
    metrics: RequestMetrics
    max_answer_bytes: int
    """The bound on an engine's answer that is not streamed."""
