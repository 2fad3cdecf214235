"""The proxies of other regions: whether they are ready, and small questions to them in the name of a tenant."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from warmroute.contract import headers as names
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.metrics import GaugeRow
from warmroute_proxy.server.engines.server_info import json_object
from warmroute_proxy.server.engines.small_get import OWN_FAULT, get
from warmroute_proxy.server.engines.upstream import Upstream
from warmroute_proxy.server.regions.forward_claim import SHA256_OF_NOTHING, Forwards
from warmroute_proxy.server.regions.versions import misunderstood, spoken_by

_LOG: Final = logging.getLogger(__name__)


class Peers:
    """The other regions' proxies, by region."""

    def __init__(
        self, urls: Mapping[str, str], connect_timeout_s: float, clock: Callable[[], float], forwards: Forwards
    ) -> None:
        """`forwards`: signs what is sent to them."""
        self.forwards = forwards
        self._reported: set[str] = set()  # regions that were said to speak other versions
        self.upstreams = {region: Upstream(url, connect_timeout_s, clock) for region, url in urls.items()}
        self.down: set[str] = set(urls)
        """The regions whose last probe has failed, or that have not been probed: nothing is known of their version."""

        self.rtt_s: dict[str, float] = {}
        """How long the last probe of a region took that succeeded: there and back."""

        self._clock = clock

    @property
    def all_known(self) -> bool:
        """Whether each region has answered once."""
        return len(self.rtt_s) == len(self.upstreams)

    def gauges(self) -> list[GaugeRow]:
        """What the page of metrics says of the other regions."""
        rows: list[GaugeRow] = []
        for region in self.upstreams:
            label = (("region", region),)
            rows.append((declared.REGION_UP, label, float(region not in self.down)))
            if region in self.rtt_s:
                rows.append((declared.REGION_RTT_SECONDS, label, self.rtt_s[region]))
        return rows

    async def probe(self, router: Router) -> None:
        """Ask each whether requests should be sent to it."""
        await asyncio.gather(*[self._probe(region, router) for region in self.upstreams])

    async def _probe(self, region: str, router: Router) -> None:
        began_s = self._clock()
        status, body = await get(self.upstreams[region], "/ready")
        if status == OWN_FAULT:
            return
        if status == 200:
            self.rtt_s[region] = self._clock() - began_s
        up = status == 200 and self._understands(region, body)
        router.set_peer_up(region, up)
        (self.down.discard if up else self.down.add)(region)

    def _understands(self, region: str, ready: bytes) -> bool:
        """Whether a region and this one read a version in common, by what its probe has answered."""
        there = spoken_by(json_object(ready) or {})
        common = there.common()
        if common is not None:
            self.forwards.versions[region] = common
            self._reported.discard(region)
        elif region not in self._reported:
            self._reported.add(region)
            _LOG.error("%s", misunderstood(region, there))
        return common is not None

    def sweep(self) -> None:
        """Drop idle connections."""
        for upstream in self.upstreams.values():
            upstream.sweep()

    def close(self) -> None:
        """Close all connections."""
        for upstream in self.upstreams.values():
            upstream.close()


class PeerQuestions:
    """Asks other regions in the name of a tenant."""

    def __init__(self, peers: Peers, forwards: Forwards, timeout_s: float) -> None:
        self._peers = peers
        self._forwards = forwards
        self._timeout_s = timeout_s

    async def ask(self, tenant: TenantConfig, path: str) -> tuple[int, bytes] | None:
        """The first answer of another region to a small GET that found something; None where none has."""
        for region, upstream in self._peers.upstreams.items():
            token = self._forwards.sign(
                tenant.name, tenant.share_group, path, region, SHA256_OF_NOTHING, self._timeout_s
            )
            status, body = await get(upstream, path, f"{names.FORWARD}: {token}\r\n")
            if status in {200, 202}:
                return status, body
        return None

    async def ask_all(
        self, tenant: TenantConfig, target: str, session: str | None, timeout_s: float
    ) -> dict[str, bytes | None]:
        """Region -> its answer to a GET of a path with its query; None where there was none. `session`: the header."""
        regions = list(self._peers.upstreams)
        answers = await asyncio.gather(*[self._ask(region, tenant, target, session, timeout_s) for region in regions])
        return dict(zip(regions, answers, strict=True))

    async def _ask(
        self, region: str, tenant: TenantConfig, target: str, session: str | None, timeout_s: float
    ) -> bytes | None:
        token = self._forwards.sign(tenant.name, tenant.share_group, target, region, SHA256_OF_NOTHING, timeout_s)
        head = f"{names.FORWARD}: {token}\r\n" + (f"{names.AFFINITY}: {session}\r\n" if session else "")
        status, body = await get(self._peers.upstreams[region], target, head, timeout_s)
        return body if status == 200 else None
