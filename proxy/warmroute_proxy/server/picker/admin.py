"""What a picker answers over HTTP: operators, and also what a proxy answers at the port of its clients, which is gRPC
here: probes, and the announcements of the other pickers of the region, which are signed.
"""

from warmroute_proxy.server.admin_endpoint import AdminEndpoint
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.endpoint import OPEN_PATHS, PublicEndpoint
from warmroute_proxy.server.http.exchange import Endpoint, Exchange, Request
from warmroute_proxy.server.regions.versions import ANNOUNCEMENTS


class PickerAdmin:
    """The endpoint of a picker's admin port."""

    def __init__(self, admin: AdminEndpoint, public: PublicEndpoint) -> None:
        self._admin = admin
        self._public = public

    def on_head(self, request: Request) -> None:
        """Refuse without a key or signature that opens the path."""
        self._of(request).on_head(request)

    def handle(self, request: Request, exchange: Exchange) -> None:
        self._of(request).handle(request, exchange)

    def in_shape(self, request: Request, refusal: Refusal) -> Refusal:
        return self._admin.in_shape(request, refusal)

    def on_status(self, request: Request, status: int) -> None:
        self._admin.on_status(request, status)

    def _of(self, request: Request) -> Endpoint:
        return self._public if request.path == ANNOUNCEMENTS or request.path in OPEN_PATHS else self._admin
