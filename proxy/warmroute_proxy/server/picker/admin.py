"""The HTTP endpoint of a picker: operators' requests, probes, and signed requests of other pickers of its region.

A proxy answers probes and other proxies at the port for clients, but the picker's port for clients speaks gRPC.
"""

from typing import Final

from warmroute_proxy.server.admin_endpoint import AdminEndpoint
from warmroute_proxy.server.authentication import is_forwarded
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.endpoint import OPEN_PATHS, PublicEndpoint
from warmroute_proxy.server.http.exchange import Endpoint, Exchange, Request
from warmroute_proxy.server.regions.versions import ANNOUNCEMENTS

_RECEIPTS: Final = "/v1/usage/receipts/"


class PickerAdmin:
    def __init__(self, admin: AdminEndpoint, public: PublicEndpoint) -> None:
        self._admin = admin
        self._public = public

    def on_head(self, request: Request) -> None:
        """Refuse a request whose key or signature does not give access to its path."""
        self._of(request).on_head(request)

    def handle(self, request: Request, exchange: Exchange) -> None:
        self._of(request).handle(request, exchange)

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        return self._admin.in_shape(request, refusal)

    def on_status(self, request: Request, status: int) -> None:
        self._admin.on_status(request, status)

    def _of(self, request: Request) -> Endpoint:
        of_picker = is_forwarded(request) and request.path.startswith(_RECEIPTS)
        is_public = of_picker or request.path == ANNOUNCEMENTS or request.path in OPEN_PATHS
        return self._public if is_public else self._admin
