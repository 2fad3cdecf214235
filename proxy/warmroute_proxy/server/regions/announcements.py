"""Announces turns to other regions, so that a session finds its home wherever its next request comes in.

A session's home is the region whose engines have its KV. A proxy announces each turn that it dispatches to its engines,
and again when the turn has settled (`RegionalTurn`: keyed hashes and counts). It also announces the newest requests of
conversations without a session key (`Newest`). The announcements that come within `SEND_WITHIN_S` go in one POST to
each region, which is signed like a forwarded request, but without a tenant. A tenant's announcements, which contain
text of its newest requests, go only to regions in which the tenant may be served. No request waits for an announcement.
If one is lost, at most one turn does not find its home.

Proxies of one region send their events by the same kind of POST (`other_proxies`).

Limits: as long as `MAX_UNDER_WAY` posts to a region have no answer, up to `MAX_WAITING` announcements wait for it; then
the oldest are dropped. A region whose last probe has failed gets no announcements. A post has at most
`MAX_ANNOUNCED_BYTES`.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from warmroute.contract import headers as names
from warmroute.contract.conversations import Conversations, Newest
from warmroute_proxy.core.cache.settled_turn import RegionalTurn
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.replicas.event_stream import Events
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.background import BackgroundTasks
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.small_get import ask
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.processes.peer_processes import Continued, PeerProcesses
from warmroute_proxy.server.regions.forward_claim import Forwards
from warmroute_proxy.server.regions.other_proxies import NO_TENANT, SEND_WITHIN_S, OtherProxies
from warmroute_proxy.server.regions.peers import Peers
from warmroute_proxy.server.regions.versions import ANNOUNCEMENTS, MAX_ANNOUNCED_BYTES

MAX_IN_POST: Final = 256
MAX_WAITING: Final = 4_096
MAX_UNDER_WAY: Final = 4

Announcement = RegionalTurn | Continued | Events

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Announcement]).decode


class Announcements:
    """Sends the announcements of this proxy, and applies those of other proxies."""

    def __init__(
        self,
        region: str,
        peers: Peers,
        forwards: Forwards,
        metrics: Metrics,
        clock: Callable[[], float],
        timeout_s: float,
        other_proxies: OtherProxies,
        processes: PeerProcesses | None = None,
    ) -> None:
        """`region`: this proxy's region; `other_proxies`: the other proxies of this region; `processes`: the other
        processes of this proxy, if it has several.
        """
        self.region = region
        self.other_proxies = other_proxies
        self._peers = peers
        self._forwards = forwards
        self._clock = clock
        self._timeout_s = timeout_s
        self._waiting = {region: deque[Announcement](maxlen=MAX_WAITING) for region in peers.upstreams}
        self._under_way = dict.fromkeys(peers.upstreams, 0)
        self._unanswered = 0  # announcements in posts that have no answer yet
        self._processes = processes
        self._due = False
        self._tasks = BackgroundTasks()
        self._sent, self._lost, self._received = (
            metrics.counter(declared.ANNOUNCEMENTS_TOTAL, (("result", result),))
            for result in ("sent", "lost", "received")
        )

    @property
    def active(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """How many announcements other regions have not confirmed yet."""
        return self._unanswered + sum(map(len, self._waiting.values()))

    def announce(self, announcement: Announcement, allowed: Collection[str] | None) -> None:
        """Announce to the regions that are `allowed` for the tenant; None means all."""
        for region, waiting in self._waiting.items():
            if region in self._peers.down or (allowed is not None and region not in allowed):
                continue
            if len(waiting) == MAX_WAITING:
                self._lost[0] += 1
            waiting.append(announcement)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(SEND_WITHIN_S, self._send)

    def newest(self, newest: Newest, allowed: Collection[str] | None) -> None:
        """Announce the newest request of a conversation to the `allowed` regions and to the other processes of this
        proxy. If this region is allowed, also announce it to the other proxies of this region.
        """
        if self._processes is not None:
            self._processes.send_newest(newest)
        if allowed is None or self.region in allowed:
            self._to_proxies_here(newest)
        if self._waiting:
            self.announce(Continued(newest), allowed)

    def receive(
        self,
        request: Request,
        exchange: Exchange,
        router: Router,
        conversations: Conversations,
        may_be_served: Callable[[str], bool],
    ) -> None:
        """Apply the announcements of another proxy. Raises: Refusal.

        `may_be_served`: whether a tenant may be served in this region; if not, its newest requests are not kept.
        """
        claim = self._forwards.check(request.headers.get(names.FORWARD, ""), request.body_sha256())
        if claim.tenant != NO_TENANT or claim.request_id != ANNOUNCEMENTS:
            raise Refusal(401, "the token is for a request, not for announcements", code="invalid_forward")
        try:
            found = _decode(request.body)
        except msgspec.MsgspecError:
            raise Refusal(400, "the announcements cannot be read: is it another version?", code="bad_request") from None
        now_s = self._clock()
        self._received[0] += len(found)
        for each in found:
            if isinstance(each, Continued):
                if not may_be_served(each.newest.tenant):
                    continue
                conversations.observe(each.newest)
                if self._processes is not None:
                    self._processes.send_newest(each.newest)
                if claim.region != self.region:
                    self._to_proxies_here(each.newest)
            elif isinstance(each, Events):
                self.other_proxies.receive(each)
            elif each.turn.region in self._waiting:
                router.observe_turn(each, now_s)
        exchange.respond(200, (("content-type", "application/json"),), b"{}")

    def _to_proxies_here(self, newest: Newest) -> None:
        if self.other_proxies.active:
            self.other_proxies.send_beside(Continued(newest))

    def _send(self) -> None:
        self._due = False
        for region in self._waiting:
            self._send_to(region)

    def _send_to(self, region: str) -> None:
        waiting = self._waiting[region]
        while waiting and self._under_way[region] < MAX_UNDER_WAY:
            announced = [waiting.popleft() for _ in range(min(len(waiting), MAX_IN_POST))]
            body = _encode(announced)
            while len(body) > MAX_ANNOUNCED_BYTES:  # a single announcement is never too long: its text is bounded
                half = len(announced) // 2
                waiting.extendleft(reversed(announced[half:]))
                announced = announced[:half]
                body = _encode(announced)
            self._under_way[region] += 1
            self._unanswered += len(announced)
            self._tasks.start(self._post(region, body, len(announced)))

    async def _post(self, region: str, body: bytes, count: int) -> None:
        digest = hashlib.sha256(body).hexdigest()
        token = self._forwards.sign(NO_TENANT, NO_TENANT, ANNOUNCEMENTS, region, digest, self._timeout_s)
        upstream = self._peers.upstreams[region]
        status = 0
        try:
            header = f"{names.FORWARD}: {token}\r\n"
            status, _ = await ask(upstream, ANNOUNCEMENTS, header, self._timeout_s, method="POST", body=body)
        finally:
            self._under_way[region] -= 1
            self._unanswered -= count
            (self._sent if status == 200 else self._lost)[0] += count
        self._send_to(region)
