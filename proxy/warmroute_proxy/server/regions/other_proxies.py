"""Exchanges routers' events between the proxies of one region, so that all of them know which requests run where.

Each proxy's config names the other proxies of its region (`[proxy] other_proxies`). A proxy sends them its router's
events (a request was sent to a worker, or has ended) within `SEND_WITHIN_S`, by the kind of signed POST by which
regions announce turns. If a proxy has several processes, the process that receives a message passes it to the others.
No request waits for a message.

The newest requests of conversations without a session key go in the same POSTs (`send_beside`). If a message is not
confirmed, these requests are sent once more; if the next message is not confirmed either, they are counted as lost.

At most one message to a proxy is under way. An unconfirmed message is sent again (`replicas.event_stream`). Before the
first message, and after each unconfirmed message, the other proxy's `/ready` is asked which versions it reads
(`versions`).
"""

import asyncio
import hashlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from warmroute.contract import headers as names
from warmroute_proxy.core.placement.waits import Waits
from warmroute_proxy.core.replicas.event_stream import Events, Inbox, Outbox
from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.replica import Replica
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.background import BackgroundTasks
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.patience import Patience
from warmroute_proxy.server.engines.server_info import json_object
from warmroute_proxy.server.engines.small_get import ask
from warmroute_proxy.server.engines.upstream import Upstream
from warmroute_proxy.server.regions.forward_claim import SHA256_OF_NOTHING, Forwards
from warmroute_proxy.server.regions.versions import WAITS_SINCE, misunderstood, spoken_by

SEND_WITHIN_S: Final = 0.002
RETRY_S: Final = 1.0
MAX_BESIDE: Final = 4_096
MAX_BESIDE_BYTES: Final = 4_194_304
"""How many bytes of announcements may wait for a proxy; beyond this, the oldest are dropped."""

MAX_BESIDE_IN_POST: Final = 16
NO_TENANT: Final = ""
_LOG: Final = logging.getLogger(__name__)
_NO_ADDRESS: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
_REFUSED: Final = frozenset({400, 413, 500})
"""Statuses after which a message is dropped, since it would get the same answer if it were sent again."""

_encode: Final = msgspec.msgpack.Encoder().encode


class _Link:
    """The connection to one other proxy, and the messages that wait for it."""

    __slots__ = (
        "beside",
        "beside_bytes",
        "busy",
        "failed",
        "outbox",
        "reported",
        "retry_at_s",
        "upstream",
        "url",
        "version",
    )

    def __init__(self, url: str, upstream: Upstream, sender: int) -> None:
        self.url = url
        self.upstream = upstream
        self.outbox = Outbox(sender)
        self.beside: deque[bytes] = deque()
        self.beside_bytes = 0
        self.busy = False
        self.retry_at_s = 0.0
        self.failed = False  # whether the last message was not confirmed

        self.version: int | None = None
        """The version of messages to the other proxy; None before its `/ready` was asked, or without a common version.
        """

        self.reported = False  # whether the log has said that there is no common version

    def add_beside(self, announcement: bytes) -> int:
        """Add an announcement to those that wait. Returns how many of the oldest ones were dropped for it."""
        self.beside.append(announcement)
        self.beside_bytes += len(announcement)
        return self._drop_oldest()

    def _drop_oldest(self) -> int:
        dropped = 0
        while len(self.beside) > MAX_BESIDE or self.beside_bytes > MAX_BESIDE_BYTES:
            self.beside_bytes -= len(self.beside.popleft())
            dropped += 1
        return dropped

    def put_back(self, beside: list[bytes]) -> int:
        """Add announcements that were not confirmed before those that wait. Returns how many were dropped."""
        self.beside.extendleft(reversed(beside))
        self.beside_bytes += sum(map(len, beside))
        return self._drop_oldest()

    def take_beside(self, most: int) -> list[bytes]:
        taken = [self.beside.popleft() for _ in range(min(len(self.beside), most))]
        self.beside_bytes -= sum(map(len, taken))
        return taken


class OtherProxies:
    """The other proxies of this region. All methods are called in the event loop."""

    def __init__(
        self,
        urls: Sequence[str],
        region: str,
        path: str,
        forwards: Forwards,
        metrics: Metrics,
        clock: Callable[[], float],
        timeout_s: float,
        sender: int,
    ) -> None:
        """`path`: the path for announcements; `sender`: a random number that identifies this process."""
        self.region = region
        self._path = path
        self._forwards = forwards
        self._clock = clock
        self._timeout_s = timeout_s
        self._links = [_Link(url, Upstream(url, timeout_s, clock), sender) for url in urls]
        self._inbox = Inbox()
        self._due = False
        self._closed = False
        self._tasks = BackgroundTasks()
        self._replica: Replica | None = None
        self._show: Callable[[Events], None] | None = None
        self._apply_shown: Callable[[], None] | None = None
        self._sent, self._lost, self._received = (
            metrics.counter(declared.SHARED_EVENTS_TOTAL, (("result", result),))
            for result in ("sent", "lost", "received")
        )

    @property
    def active(self) -> bool:
        return bool(self._links)

    async def ask(self, path: str, tenant: tuple[str, str]) -> int:
        """Send a POST without a body to all other proxies. Returns 200 or 409 if a proxy has answered with it (the
        first such answer); otherwise 404 if all have answered 404; otherwise 410 if the others do not run, since their
        names have no address; otherwise 503. `tenant`: its name and share group.
        """
        found = [status for status, _ in await self._ask_all(path, tenant, "POST")]
        known = [status for status in found if status in {200, 409}]
        return known[0] if known else await self._missing(found)

    async def _missing(self, found: Sequence[int]) -> int:
        """404, 410 or 503, as `ask` returns them, from the statuses of all other proxies."""
        silent = [link.upstream for link, status in zip(self._links, found, strict=True) if status != 404]
        if not silent:
            return 404
        return 503 if any(await asyncio.gather(*map(self._has_address, silent))) else 410

    async def _has_address(self, upstream: Upstream) -> bool:
        """Whether the name of a proxy has an address. Kubernetes removes the names of pods that do not exist."""
        try:
            async with Patience(self._timeout_s / 4):
                await asyncio.get_running_loop().getaddrinfo(upstream.host, upstream.port)
        except socket.gaierror as error:
            return error.errno not in _NO_ADDRESS
        except OSError:  # includes TimeoutError
            return True
        return True

    async def read(self, path: str, tenant: tuple[str, str]) -> tuple[int, bytes]:
        """Send a GET about a turn to all other proxies. Returns the first answer with status 200 (the turn has ended)
        or 202 (it is under way); without one the status 404, 410 or 503, as `ask` does.
        """
        found = await self._ask_all(path, tenant, "GET")
        for status, body in found:
            if status in {200, 202}:
                return status, body
        return await self._missing([status for status, _ in found]), b""

    async def _ask_all(self, path: str, tenant: tuple[str, str], method: str) -> list[tuple[int, bytes]]:
        """Ask all other proxies. The timeout is half of `timeout_s`, since whoever asks this proxy waits only that."""
        timeout_s = self._timeout_s / 2

        async def asked(link: _Link) -> tuple[int, bytes]:
            token = self._forwards.sign(*tenant, path, self.region, SHA256_OF_NOTHING, timeout_s, version=link.version)
            return await ask(link.upstream, path, f"{names.FORWARD}: {token}\r\n", timeout_s, method=method)

        return await asyncio.gather(*map(asked, self._links))

    def start(
        self,
        replica: Replica,
        show: Callable[[Events], None] | None = None,
        apply_shown: Callable[[], None] | None = None,
    ) -> None:
        """Begin to apply messages. `replica` gets the other proxies' events. `show` passes a message to the other
        processes of this proxy, and `apply_shown` applies the messages that those processes have passed.
        """
        self._replica, self._show, self._apply_shown = replica, show, apply_shown

    def send(self, event: Event, now_s: float) -> None:  # noqa: ARG002 - the router calls it with the time
        """Send an event of this process' router to all other proxies of the region."""
        for link in self._links:
            if isinstance(event, Waits) and (link.version or 0) < WAITS_SINCE:
                continue
            lost = link.outbox.lost
            link.outbox.add(event)
            self._lost[0] += link.outbox.lost - lost
        self._send_soon()

    def send_beside(self, announcement: msgspec.Struct) -> None:
        """Send an announcement to all other proxies of the region, in the same POSTs as events."""
        encoded = _encode(announcement)
        for link in self._links:
            self._lost[0] += link.add_beside(encoded)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(SEND_WITHIN_S, self._send_all)

    def receive(self, message: Events) -> None:
        """Apply a message that another proxy has sent to this process, and pass it to the other processes."""
        if self._apply_shown is not None:
            self._apply_shown()
        self.apply(message)
        if self._show is not None:
            self._show(message)

    def apply(self, message: Events) -> None:
        """Apply a message that this or another process of this proxy has received."""
        if self._replica is not None:
            self._received[0] += self._inbox.apply(message, self._replica, self._clock())

    def sweep(self) -> None:
        """Send unconfirmed messages again, and forget the events of silent proxies. Called a few times a second."""
        if not self._links:
            return
        if self._replica is not None:
            self._inbox.drop_silent(self._replica, self._clock())
        self._send_all()
        for link in self._links:
            link.upstream.sweep()

    def close(self) -> None:
        """Close all connections, and send nothing more."""
        self._closed = True
        for link in self._links:
            link.upstream.close()

    def _send_all(self) -> None:
        self._due = False
        if self._closed:
            return
        for link in self._links:
            self._send_to(link)

    def _send_to(self, link: _Link) -> None:
        now_s = self._clock()
        if link.busy or now_s < link.retry_at_s:
            return
        message = link.outbox.take(now_s)
        beside = link.take_beside(MAX_BESIDE_IN_POST)
        if message is None and not beside:
            return
        body = _encode([*([] if message is None else [message]), *map(msgspec.Raw, beside)])
        link.busy = True
        count = 0 if message is None else len(message.events)
        self._tasks.start(self._post(link, body, count, beside))

    async def _post(self, link: _Link, body: bytes, count: int, beside: list[bytes]) -> None:
        """Send a message. `count`: how many events are in `body`; `beside`: the announcements in it."""
        status = 0
        try:
            if link.version is not None or await self._learn(link):
                status = await self._send_body(link, body)
        finally:
            link.busy = False
            if status == 200:
                link.failed = False
                link.outbox.confirmed()
                self._sent[0] += count + len(beside)
            elif status in _REFUSED:
                link.outbox.refused()
                self._lost[0] += count + len(beside)
            else:
                link.version = None
                link.retry_at_s = self._clock() + RETRY_S
                if link.failed:
                    self._lost[0] += len(beside) + len(link.take_beside(MAX_BESIDE))
                else:
                    self._lost[0] += link.put_back(beside)
                link.failed = True
        if link.outbox.waiting or link.beside:
            self._send_to(link)

    async def _send_body(self, link: _Link, body: bytes) -> int:
        digest, timeout_s = hashlib.sha256(body).hexdigest(), self._timeout_s
        token = self._forwards.sign(
            NO_TENANT, NO_TENANT, self._path, self.region, digest, timeout_s, version=link.version
        )
        header = f"{names.FORWARD}: {token}\r\n"
        return (await ask(link.upstream, self._path, header, timeout_s, method="POST", body=body))[0]

    async def _learn(self, link: _Link) -> bool:
        """Ask a proxy which versions it reads. Returns whether there is a common version. A proxy that names no
        versions reads version 0.
        """
        status, body = await ask(link.upstream, "/ready", timeout_s=self._timeout_s)
        if status <= 0:
            return False
        there = spoken_by(json_object(body) or {})
        common = there.common()
        if common is None and not link.reported:
            _LOG.error("%s", misunderstood(f"{self.region}, proxy {link.url}", there))
        link.reported = common is None
        link.version = common
        return common is not None
