"""What the proxies of one region tell each other, so that they decide as one: what was sent where, and when it ended.

Each proxy names the others of its region (`[proxy] other_proxies`). Its router's events go to them within
`SEND_WITHIN_S`, as those of processes do, in the POST by which regions announce turns, signed in the same way. Where a
proxy has several processes, the one that receives a message shows it to the others. A request waits for none of this.

The newest requests of conversations without a session key go with them (`send_beside`).

One message to a proxy is under way at a time. One that is not confirmed is sent again (`replicas.event_stream`).
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from warmroute.contract import headers as names
from warmroute_proxy.core.replicas.event_stream import Events, Inbox, Outbox
from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.replica import Replica
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.small_get import ask
from warmroute_proxy.server.engines.upstream import Upstream
from warmroute_proxy.server.regions.forward_claim import SHA256_OF_NOTHING, Forwards

SEND_WITHIN_S: Final = 0.002
RETRY_S: Final = 1.0
MAX_BESIDE: Final = 4_096
"""Announcements that wait for a proxy; the oldest are dropped."""

MAX_BESIDE_IN_POST: Final = 16
NO_TENANT: Final = ""
_REFUSED: Final = frozenset({400, 413, 500})
"""The same message would have the same answer."""

_encode: Final = msgspec.msgpack.Encoder().encode


class _Link:
    """One other proxy."""

    __slots__ = ("beside", "busy", "outbox", "retry_at_s", "up", "upstream", "url")

    def __init__(self, url: str, upstream: Upstream, sender: int) -> None:
        self.url = url
        self.upstream = upstream
        self.outbox = Outbox(sender)
        self.beside: deque[msgspec.Struct] = deque(maxlen=MAX_BESIDE)
        self.busy = False
        self.up = False
        self.retry_at_s = 0.0


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
        """`path`: where announcements are sent; `sender`: a random number of this process."""
        self.region = region
        self._path = path
        self._forwards = forwards
        self._clock = clock
        self._timeout_s = timeout_s
        self._links = [_Link(url, Upstream(url, timeout_s, clock), sender) for url in urls]
        self._inbox = Inbox()
        self._due = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._replica: Replica | None = None
        self._show: Callable[[Events], None] | None = None
        self._apply_shown: Callable[[], None] | None = None
        self._sent, self._lost, self._received = (
            metrics.counter(declared.SHARED_EVENTS_TOTAL, (("result", result),))
            for result in ("sent", "lost", "received")
        )

    @property
    def active(self) -> bool:
        """Whether there are other proxies."""
        return bool(self._links)

    async def ask(self, path: str, tenant: tuple[str, str]) -> int:
        """The status of the first other proxy that knows of what a POST without a body asks for; else 404, or 503 where
        one does not answer. `tenant`: its name and its share group.
        """
        found = await asyncio.gather(*[self._ask(link, path, tenant) for link in self._links])
        known = [status for status in found if status in {200, 409}]
        if known:
            return known[0]
        return 404 if all(status == 404 for status in found) else 503

    async def _ask(self, link: _Link, path: str, tenant: tuple[str, str]) -> int:
        """All are asked at once, and have half of the time: who asks this proxy waits for it all."""
        timeout_s = self._timeout_s / 2
        token = self._forwards.sign(*tenant, path, self.region, SHA256_OF_NOTHING, timeout_s)
        return (await ask(link.upstream, path, f"{names.FORWARD}: {token}\r\n", timeout_s, method="POST"))[0]

    def start(
        self,
        replica: Replica,
        show: Callable[[Events], None] | None = None,
        apply_shown: Callable[[], None] | None = None,
    ) -> None:
        """`router` gets what others send. `show`: tells the other processes of this proxy of a message; `apply_shown`:
        applies what they have told.
        """
        self._replica, self._show, self._apply_shown = replica, show, apply_shown

    def send(self, event: Event, now_s: float) -> None:  # noqa: ARG002 - the router calls it with the time
        """Send an event of this process' router to all other proxies."""
        for link in self._links:
            lost = link.outbox.lost
            link.outbox.add(event)
            self._lost[0] += link.outbox.lost - lost
        self._send_soon()

    def send_beside(self, announcement: msgspec.Struct) -> None:
        """Send what is no event of a router to all other proxies, in the same posts; once."""
        for link in self._links:
            link.beside.append(announcement)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(SEND_WITHIN_S, self._send_all)

    def receive(self, message: Events) -> None:
        """Apply a message that another proxy has sent to this process."""
        if self._apply_shown is not None:
            self._apply_shown()
        self.apply(message)
        if self._show is not None:
            self._show(message)

    def apply(self, message: Events) -> None:
        """Apply a message, whichever process of this proxy it came to."""
        if self._replica is not None:
            self._received[0] += self._inbox.apply(message, self._replica, self._clock())

    def sweep(self) -> None:
        """Send again what was not confirmed, and forget proxies that are silent. Called a few times a second."""
        if not self._links:
            return
        if self._replica is not None:
            self._inbox.drop_silent(self._replica, self._clock())
        self._send_all()
        for link in self._links:
            link.upstream.sweep()

    def close(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.upstream.close()

    def _send_all(self) -> None:
        self._due = False
        for link in self._links:
            self._send_to(link)

    def _send_to(self, link: _Link) -> None:
        now_s = self._clock()
        if link.busy or now_s < link.retry_at_s:
            return
        message = link.outbox.take(now_s)
        beside = [link.beside.popleft() for _ in range(min(len(link.beside), MAX_BESIDE_IN_POST))]
        if message is None and not beside:
            return
        body = _encode([*([] if message is None else [message]), *beside])
        link.busy = True
        count = 0 if message is None else len(message.events)
        task = asyncio.get_running_loop().create_task(self._post(link, body, count))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, link: _Link, body: bytes, count: int) -> None:
        digest = hashlib.sha256(body).hexdigest()
        token = self._forwards.sign(NO_TENANT, NO_TENANT, self._path, self.region, digest, self._timeout_s)
        status = 0
        try:
            header = f"{names.FORWARD}: {token}\r\n"
            status, _ = await ask(link.upstream, self._path, header, self._timeout_s, method="POST", body=body)
        finally:
            link.busy = False
            link.up = status == 200
            if link.up:
                link.outbox.confirmed()
                self._sent[0] += count
            elif status in _REFUSED:
                link.outbox.refused()
                self._lost[0] += count
            else:
                link.retry_at_s = self._clock() + RETRY_S
        if link.outbox.waiting or link.beside:
            self._send_to(link)
