"""Reads the requests of all callers: small ones at once, large ones in another process."""

from asyncio import AbstractEventLoop

from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.caller import Caller, Callers
from warmroute_proxy.server.intake.intake import read, read_body
from warmroute_proxy.server.intake.large_bodies import LargeBodies
from warmroute_proxy.server.intake.parsed_request import Intake


class Intakes:
    """What requests are read with."""

    def __init__(self, config: Config, callers: Callers, loop: AbstractEventLoop) -> None:
        self._config = config
        self.callers = callers
        self.large_bodies = LargeBodies(config, callers, loop)

    def terms(self, tenant: TenantConfig) -> Terms:
        """What a translation of a tenant's request depends on."""
        return Terms(tenant, self.callers.secrets, self._config)

    def read(self, request: Request, caller: Caller) -> Intake:
        """Read a request whose body is not large. Raises: Refusal."""
        return read(request, caller, self.callers, self._config)

    def facts(self, request: Request, caller: Caller) -> Facts:
        """What is known of a request that is not to be served; no conversation learns of it. Raises: Refusal."""
        return read_body(bytes(request.body), caller, self.callers.secrets, self._config).intake.facts
