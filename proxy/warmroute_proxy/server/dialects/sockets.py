"""Which paths are served over WebSockets, too."""

from collections.abc import Callable, Mapping

from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.dialect import Sockets
from warmroute_proxy.server.dialects.open_conversations import OpenConversations
from warmroute_proxy.server.dialects.responses import RESPONSES
from warmroute_proxy.server.dialects.responses_socket import ResponsesSockets


def sockets_by_path(
    terms: Callable[[TenantConfig], Terms], open_conversations: OpenConversations
) -> Mapping[str, Sockets]:
    """What opens them, by path. `terms`: what a translation of a tenant's request depends on."""
    return {RESPONSES: ResponsesSockets(terms, open_conversations)}
