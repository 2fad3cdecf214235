"""Takes requests to engines in the place of the proxy's own connections, where a gateway sends them."""

from abc import ABC, abstractmethod

from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.engines.upstream import Parts


class Carrier(ABC):
    """What carries one request to the engine that answers it. It carries once: who picks again finds it spent."""

    @abstractmethod
    def send_with(self, decision: Decision, head: bytes, body: Parts, leg: Leg) -> None:
        """Have a request sent. `head`: as `Engine.head` makes it. The leg gets the answer."""
