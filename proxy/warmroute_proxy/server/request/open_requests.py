"""The requests that one process has under way, and the newest decisions about them."""

from collections import deque
from typing import Final, Protocol

import msgspec

from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.server.intake.parsed_request import ParsedRequest
from warmroute_proxy.server.intake.standing import NO_STANDING, PRIORITY_NAMES, Standing

MAX_DECISIONS: Final = 1000  # the newest ones are kept for the admin page


class OpenRequest(Protocol):
    """A request that was sent to an engine or to another region."""

    parsed: ParsedRequest

    def tokens(self) -> int: ...
    def sweep(self, now_s: float) -> None: ...
    def crashed(self) -> None: ...
    def shut_down(self) -> None: ...


class OpenRequests:
    """The requests under way. `closed`: the proxy is shutting down and takes no new requests."""

    def __init__(self) -> None:
        self.live: set[OpenRequest] = set()  # bounded by the connections, each with one request
        self.decisions: deque[tuple[str, Decision]] = deque(maxlen=MAX_DECISIONS)  # by receipt id
        self.closed = False

    @property
    def tokens(self) -> int:
        """The tokens of all prompts under way, and the tokens generated for them so far."""
        return sum(request.tokens() for request in self.live)

    def has_other_tenants(self, tenant: str) -> bool:
        return any(request.parsed.tenant.name != tenant for request in self.live)

    def record(self, receipt_id: str, decision: Decision, standing: Standing = NO_STANDING) -> None:
        if standing is not NO_STANDING and standing.is_recorded:
            decision = msgspec.structs.replace(
                decision,
                priority=PRIORITY_NAMES[standing.priority],
                program=standing.program,
                ignored_headers=standing.ignored,
            )
        self.decisions.append((receipt_id, decision))
