"""The paths that are also served over WebSockets."""

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
    """The openers of WebSockets, by path. `terms`: gives what the translation of a tenant's requests depends on."""
    return {RESPONSES: ResponsesSockets(terms, open_conversations)}
