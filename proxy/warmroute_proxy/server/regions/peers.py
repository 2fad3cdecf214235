"""Probes whether the proxies of other regions are ready, and asks them small questions in the name of a tenant."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from warmroute.contract import headers as names
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.metrics import GaugeRow
from warmroute_proxy.server.engines.server_info import json_object
from warmroute_proxy.server.engines.small_get import OWN_FAULT, ask
from warmroute_proxy.server.engines.upstream import Upstream
from warmroute_proxy.server.regions.forward_claim import SHA256_OF_NOTHING, Forwards
from warmroute_proxy.server.regions.versions import misunderstood, spoken_by, stranger

ANSWER_S: float = 2.0
"""A region that answers a probe later than this gets no new work."""

PROBE_EVERY_S: Final = 1.0
PROBE_UNKNOWN_EVERY_S: Final = 0.2
STARTS_S: Final = 10.0
"""For this time after the start, regions that have not answered are probed more often, since a fleet's regions start
at about the same time.
"""

MISSES: Final = 2
"""After this number of failed probes in a row, requests that run in a region are given up."""

_LOG: Final = logging.getLogger(__name__)


class Peers:
    def __init__(
        self, urls: Mapping[str, str], connect_timeout_s: float, clock: Callable[[], float], forwards: Forwards
    ) -> None:
        """`forwards`: signs the requests to other regions."""
        self.forwards = forwards
        self._reported: dict[str, str] = {}  # the problem that was logged last, by region
        self._missed = dict.fromkeys(urls, 0)  # failed probes in a row, by region
        self.upstreams = {region: Upstream(url, connect_timeout_s, clock) for region, url in urls.items()}
        self.down: set[str] = set(urls)
        """The regions whose last probe has failed, or that have not been probed yet."""

        self.silent: set[str] = set(urls)
        """The regions whose last probe was not answered by any of their proxies, not even by one that is not ready."""

        self.rtt_s: dict[str, float] = {}
        """The round trip of each region's last successful probe."""

        self._clock = clock
        self._began_s = clock()

    def gauges(self) -> list[GaugeRow]:
        """The gauges of the other regions for the metrics page."""
        rows: list[GaugeRow] = []
        for region in self.upstreams:
            label = (("peer", region),)  # Prometheus renames a label `region` that clashes with that of its targets
            rows.append((declared.REGION_UP, label, float(region not in self.down)))
            if region in self.rtt_s:
                rows.append((declared.REGION_RTT_SECONDS, label, self.rtt_s[region]))
        return rows

    def gone(self, region: str) -> bool:
        """Whether requests that run in a region are to be given up. One failed probe is not enough."""
        return self._missed[region] >= MISSES

    async def watch(self, router: Router) -> None:
        """Probe all regions again and again, each independently of the others."""
        await asyncio.gather(*[self._watch(region, router) for region in self.upstreams])

    async def _watch(self, region: str, router: Router) -> None:
        while True:
            try:
                await self.probe(region, router)
            except Exception as error:
                _LOG.error("the probe of region %s failed: %s", region, type(error).__name__)
            await asyncio.sleep(PROBE_UNKNOWN_EVERY_S if self._starts(region) else PROBE_EVERY_S)

    def _starts(self, region: str) -> bool:
        return region not in self.rtt_s and self._clock() - self._began_s < STARTS_S

    async def probe(self, region: str, router: Router) -> None:
        began_s = self._clock()
        status, body = await ask(self.upstreams[region], "/ready", timeout_s=ANSWER_S)
        if status == OWN_FAULT:
            return
        found = json_object(body) or {}
        self._observe(region, found)
        level, problem = self._problem(region, status, found)
        up = not problem
        starts = self._starts(region) and (status in {0, 503} or bool(found.get("elsewhere")))
        if up:
            self.rtt_s[region] = self._clock() - began_s
        self._missed[region] = 0 if up else self._missed[region] + 1
        if not starts:
            self._report(region, level, problem)
        if status == 0 and region not in self.down:
            router.suspect_peer(region)
        else:
            router.set_peer_up(region, up)
        (self.down.discard if up else self.down.add)(region)

    def _observe(self, region: str, ready: Mapping[str, Any]) -> None:
        """Note whether a proxy of the right region has answered, ready or not."""
        (self.silent.discard if ready.get("region") == region else self.silent.add)(region)

    def _problem(self, region: str, status: int, ready: Mapping[str, Any]) -> tuple[int, str]:
        """Why nothing is forwarded to that region, empty if its proxy is ready. A problem that ends without a change of
        a config or a version is a warning.
        """
        there = spoken_by(ready)
        common = there.common()
        if status == 0:
            return logging.WARNING, f"region {region} does not answer at its url: nothing is forwarded there"
        if ready.get("region") != region:
            return logging.ERROR, stranger(region, status, ready)
        if common is None:
            return logging.ERROR, misunderstood(region, there)
        self.forwards.versions.found(region, common, self._clock())
        if status != 200:
            text = f"the proxy of region {region} is not ready (status {status}): nothing is forwarded there"
            return logging.WARNING, text
        if ready.get("elsewhere"):
            return logging.WARNING, f"no engine of region {region} takes turns: nothing is forwarded there"
        return logging.INFO, ""

    def _report(self, region: str, level: int, problem: str) -> None:
        """Log a region's problem once it has lasted for `MISSES` probes, unless it was logged last; and its end."""
        if not problem:
            if self._reported.pop(region, ""):
                _LOG.info("region %s is ready again", region)
        elif self._missed[region] >= MISSES and self._reported.get(region) != problem:
            self._reported[region] = problem
            _LOG.log(level, "%s", problem)

    def sweep(self) -> None:
        for upstream in self.upstreams.values():
            upstream.sweep()

    def close(self) -> None:
        for upstream in self.upstreams.values():
            upstream.close()


class PeerQuestions:
    """Asks the regions in which a tenant may be served and whose last probe was answered, in the tenant's name."""

    def __init__(self, peers: Peers, forwards: Forwards, timeout_s: float) -> None:
        self._peers = peers
        self._forwards = forwards
        self._timeout_s = timeout_s

    async def ask(self, tenant: TenantConfig, path: str) -> tuple[int, bytes]:
        """Ask one region after the other by a small GET, until one answers with status 200 or 202. Returns that answer;
        without one the status 404 if all regions have answered 404, otherwise 503.
        """
        missing = 404
        for region, upstream in self._peers.upstreams.items():
            if not tenant.may_be_served(region):
                continue
            if region in self._peers.silent:
                missing = 503
                continue
            token = self._forwards.sign(
                tenant.name, tenant.share_group, path, region, SHA256_OF_NOTHING, self._timeout_s
            )
            status, body = await ask(upstream, path, f"{names.FORWARD}: {token}\r\n")
            if status in {200, 202}:
                return status, body
            if status != 404:
                missing = 503
        return missing, b""

    async def ask_all(
        self, tenant: TenantConfig, target: str, session: str | None, timeout_s: float, *, of_all: bool = False
    ) -> dict[str, bytes | None]:
        """The answer of each region to a GET of `target`, a path with its query; None for a region that did not answer.

        `session`: the value of the session header; `of_all`: the question is about all tenants, so all regions are
        asked.
        """
        may = [region for region in self._peers.upstreams if of_all or tenant.may_be_served(region)]
        asked = [region for region in may if region not in self._peers.silent]
        answers = await asyncio.gather(*[self._ask(region, tenant, target, session, timeout_s) for region in asked])
        return dict.fromkeys(may) | dict(zip(asked, answers, strict=True))

    async def _ask(
        self, region: str, tenant: TenantConfig, target: str, session: str | None, timeout_s: float
    ) -> bytes | None:
        token = self._forwards.sign(tenant.name, tenant.share_group, target, region, SHA256_OF_NOTHING, timeout_s)
        head = f"{names.FORWARD}: {token}\r\n" + (f"{names.AFFINITY}: {session}\r\n" if session else "")
        status, body = await ask(self._peers.upstreams[region], target, head, timeout_s)
        return body if status == 200 else None
