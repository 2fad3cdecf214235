"""What every inference request uses on its path through the proxy."""

from dataclasses import dataclass

from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.client_answer import AnswerHeaders
from warmroute_proxy.server.request.deadlines import Deadlines
from warmroute_proxy.server.request.faults import Faults
from warmroute_proxy.server.request.forwarding import Forwarding
from warmroute_proxy.server.request.open_requests import OpenRequests
from warmroute_proxy.server.request.placing import Placing
from warmroute_proxy.server.request.re_prefill import RePrefills
from warmroute_proxy.server.request.request_metrics import RequestMetrics
from warmroute_proxy.server.request.settlement import Settlement


@dataclass(frozen=True, slots=True)
class RequestPath:
    """The collaborators of a request, in the order in which it needs them."""

    open_requests: OpenRequests
    placing: Placing
    admission: Admission
    forwarding: Forwarding
    faults: Faults
    engines: Engines
    deadlines: Deadlines
    settlement: Settlement
    re_prefills: RePrefills
    answer_headers: AnswerHeaders
    metrics: RequestMetrics
    max_answer_bytes: int
    """Of an engine's answer that is not streamed."""
