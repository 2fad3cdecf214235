"""Which paths are served over WebSockets, too."""

from collections.abc import Callable, Mapping
from typing import Protocol

from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.open_conversations import OpenConversations
from warmroute_proxy.server.dialects.responses import RESPONSES
from warmroute_proxy.server.dialects.responses_socket import ResponsesSockets
from warmroute_proxy.server.http.exchange import Exchange, Request


class Sockets(Protocol):
    """What opens the WebSockets of an API."""

    def open(self, request: Request, exchange: Exchange) -> None:
        """Take the offer of a client whose key was checked. Raises: Refusal, if the offer is malformed."""


def sockets_by_path(
    terms: Callable[[TenantConfig], Terms], open_conversations: OpenConversations
) -> Mapping[str, Sockets]:
    """What opens them, by path. `terms`: what a translation of a tenant's request depends on."""
    return {RESPONSES: ResponsesSockets(terms, open_conversations)}
