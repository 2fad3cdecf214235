"""Has rows of other regions voided, whose answers were lost on the way to the client (`ledger.void_orders`)."""

import asyncio
from collections.abc import Callable
from typing import Final

from warmroute.contract import headers as names
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.small_get import ask
from warmroute_proxy.server.ledger.void_orders import VoidOrder, VoidOrders
from warmroute_proxy.server.regions.forward_claim import SHA256_OF_NOTHING, VALID_S, Forwards
from warmroute_proxy.server.regions.peers import Peers

VOIDS_AT_ONCE: Final = 100  # of a region, between two probes
NEVER_COMES_S: Final = 4 * VALID_S  # after it no proxy takes the forward any more


class ReceiptVoider:
    """Has rows of other regions voided."""

    def __init__(
        self,
        peers: Peers,
        forwards: Forwards,
        orders: VoidOrders,
        metrics: Metrics,
        unix_clock: Callable[[], float],
        timeout_s: float,
    ) -> None:
        self.peers = peers
        self.forwards = forwards
        self._orders = orders
        self._metrics = metrics
        self._clock = unix_clock
        self._timeout_s = timeout_s

    def order(self, tenant: TenantConfig, region: str, receipt_id: str) -> None:
        """Have a row voided, now or when its region can be reached."""
        self._metrics.add(declared.VOIDS_ORDERED_TOTAL)
        self._orders.add(VoidOrder(receipt_id, region, tenant.name, tenant.share_group, self._clock()))

    async def send(self) -> None:
        """Send the orders for regions that can be reached."""
        self._orders.sweep()
        if self._orders.waiting:
            up = [region for region in self.peers.upstreams if region not in self.peers.down]
            await asyncio.gather(*[self._send_to(region) for region in up])

    async def _send_to(self, region: str) -> None:
        for order in self._orders.of_region(region)[:VOIDS_AT_ONCE]:
            path = f"/v1/usage/receipts/{order.id}/void"
            token = self.forwards.sign(order.tenant, order.share_group, path, region, SHA256_OF_NOTHING, VALID_S)
            header = f"{names.FORWARD}: {token}\r\n"
            status, _ = await ask(self.peers.upstreams[region], path, header, self._timeout_s, method="POST")
            never_came = status == 404 and self._clock() - order.at_s > NEVER_COMES_S
            if status == 200 or never_came:
                self._orders.carried_out(order)
            elif not status:
                return
            else:
                self._orders.put_off(order)
