"""The interface that sends requests to engines through a gateway instead of the proxy's own connections."""

from abc import ABC, abstractmethod

from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.engines.upstream import Parts


class Carrier(ABC):
    """Carries one request to the engine that answers it. A carrier works only once, so a retry cannot use it again."""

    @abstractmethod
    def send_with(self, decision: Decision, head: bytes, body: Parts, leg: Leg) -> None:
        """Have a request sent by the gateway. `head`: from `Engine.head`; `leg`: gets the answer."""
