"""What the request path needs of one proxy process, in one place: no globals, so that tests can run several."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from warmroute.contract import headers as names
from warmroute_proxy.core.accounting.idempotency import IdempotencyBounds
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.secrets import ApiKeys, Secrets
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.upstream import Upstream
from warmroute_proxy.server.ledger.ledger import Ledger
from warmroute_proxy.server.ledger.recording import Recording
from warmroute_proxy.server.processes.peer_processes import Gauges, PeerProcesses
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.forward_claim import Forwards
from warmroute_proxy.server.request.idempotency import IdempotentCalls
from warmroute_proxy.server.request.re_prefill import RePrefills
from warmroute_proxy.server.request.request_metrics import RequestMetrics

if TYPE_CHECKING:
    from warmroute_proxy.server.request.forwarding import ForwardedRequest
    from warmroute_proxy.server.request.relay import InferenceRequest

MAX_DECISIONS: Final = 1000  # newest kept, for the admin page
MAX_KEYS: Final = 65_536  # of clients' calls
REMEMBER_KEY_S: Final = 600.0  # the time after which a stock client gives up waiting, and tries again


@dataclass(slots=True)
class Services:
    """Everything that lives as long as the proxy. `clock` is monotonic seconds, `unix_clock` wall time."""

    config: Config
    secrets: Secrets
    api_keys: ApiKeys
    router: Router
    engines: Engines
    peers: dict[str, Upstream]
    forwards: Forwards
    ledger: Ledger
    metrics: Metrics
    clock: Callable[[], float]
    unix_clock: Callable[[], float]
    recording: Recording | None = None
    peer_processes: PeerProcesses | None = None
    """The other processes of this proxy; None where it is one."""

    live: "set[InferenceRequest | ForwardedRequest]" = field(default_factory=set)
    """Bounded by the connections: one request each."""
    admission: Admission = field(init=False)
    decisions: deque[tuple[str, Decision]] = field(default_factory=lambda: deque(maxlen=MAX_DECISIONS))
    peers_down: set[str] = field(default_factory=set)
    draining: bool = False
    request_metrics: RequestMetrics = field(init=False)
    idempotent_calls: IdempotentCalls = field(init=False)
    re_prefills: RePrefills = field(init=False)
    region: str = field(init=False)
    answer_bytes: int = field(init=False)
    """Of an engine, at most."""
    answer_lines: bytes = field(init=False)
    """The headers of a whole answer, with a place for the id of its receipt."""

    def __post_init__(self) -> None:
        self.request_metrics = RequestMetrics(self.metrics)
        self.region = self.config.proxy.region
        self.answer_bytes = self.config.limits.response_bytes
        home = self.region.encode("latin-1", "replace").replace(b"%", b"%%")
        self.answer_lines = (
            f"content-type: application/json\r\n{names.RECEIPT}: %b\r\n{names.HOME}: ".encode() + home + b"\r\n"
        )
        limits = self.config.limits
        bounds = IdempotencyBounds(
            limits.keyed_answer_bytes, limits.keyed_total_bytes, MAX_KEYS, limits.keyed_replay_s, REMEMBER_KEY_S
        )
        self.idempotent_calls = IdempotentCalls(bounds, limits.keyed_outlive_s, self.clock, self.metrics)
        self.re_prefills = RePrefills(self)
        self.admission = Admission(self.config, self.router, self.metrics, self.clock)

    def publish(self) -> None:
        """Tell the other processes how this one does."""
        if self.peer_processes is not None:
            self.peer_processes.publish(self.metrics, self.gauges())

    def gauges(self) -> Gauges:
        """What this process has in its hands."""
        queue, kept = self.admission.queue, self.re_prefills.kept
        return Gauges(len(self.live), queue.requests, queue.bytes, len(kept), kept.bytes, self.ledger.waiting)
