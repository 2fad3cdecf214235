"""Orders other regions to void ledger rows whose answers were lost on the way to the client (`ledger.void_orders`).

An order that was not carried out waits for 1 s, and is then sent after the other orders for its region. The wait
doubles each time, up to `MAX_WAIT_S`. An order that is `MAX_AGE_S` old is given up, with an error in the log.
"""

import asyncio
import logging
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

VOIDS_AT_ONCE: Final = 100  # for each region in one `send`
NEVER_COMES_S: Final = 4 * VALID_S  # a row that is missing then never comes: its request's token is no longer valid
FIRST_WAIT_S: Final = 1.0
MAX_WAIT_S: Final = 300.0
MAX_AGE_S: Final = 7 * 86_400.0

_LOG: Final = logging.getLogger(__name__)


class ReceiptVoider:
    def __init__(
        self,
        peers: Peers,
        forwards: Forwards,
        orders: VoidOrders,
        metrics: Metrics,
        unix_clock: Callable[[], float],
        steady_clock: Callable[[], float],
        timeout_s: float,
    ) -> None:
        """`unix_clock`: tells when an answer was lost. `steady_clock`: measures the waits, as it is never adjusted."""
        self.peers = peers
        self.forwards = forwards
        self._orders = orders
        self._metrics = metrics
        self._clock = unix_clock
        self._steady_clock = steady_clock
        self._waits: dict[str, tuple[float, float]] = {}  # by the order's id: the end and the length of its wait
        self._timeout_s = timeout_s

    def order(self, tenant: TenantConfig, region: str, receipt_id: str) -> None:
        """Order a region to void a row, as soon as the region can be reached."""
        self._metrics.add(declared.VOIDS_ORDERED_TOTAL)
        self._orders.add(VoidOrder(receipt_id, region, tenant.name, tenant.share_group, self._clock()))

    async def send(self) -> None:
        self._orders.sweep()
        for order in self._orders.older_than(self._clock() - MAX_AGE_S):
            days = MAX_AGE_S / 86_400
            _LOG.error("the row %s in region %s was not voided within %g days: given up", order.id, order.region, days)
            self._done(order)
        if self._orders.waiting:
            up = [region for region in self.peers.upstreams if region not in self.peers.down]
            await asyncio.gather(*[self._send_to(region) for region in up])

    async def _send_to(self, region: str) -> None:
        now_s = self._steady_clock()
        due = [order for order in self._orders.of_region(region) if self._waits.get(order.id, (0.0, 0.0))[0] <= now_s]
        for order in due[:VOIDS_AT_ONCE]:
            path = f"/v1/usage/receipts/{order.id}/void"
            token = self.forwards.sign(order.tenant, order.share_group, path, region, SHA256_OF_NOTHING, VALID_S)
            header = f"{names.FORWARD}: {token}\r\n"
            status, _ = await ask(self.peers.upstreams[region], path, header, self._timeout_s, method="POST")
            never_came = status == 404 and self._clock() - order.at_s > NEVER_COMES_S
            if status == 200 or never_came:
                self._done(order)
                continue
            self._put_off(order)
            if not status:
                return  # other orders may get no answer either; the next `send` begins with another order

    def _done(self, order: VoidOrder) -> None:
        self._waits.pop(order.id, None)
        self._orders.carried_out(order)

    def _put_off(self, order: VoidOrder) -> None:
        wait_s = min(2 * self._waits.get(order.id, (0.0, FIRST_WAIT_S / 2))[1], MAX_WAIT_S)
        self._waits[order.id] = self._steady_clock() + wait_s, wait_s
        self._orders.put_off(order)
