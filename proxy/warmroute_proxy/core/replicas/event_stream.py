"""The events of a router on their way to another proxy, over a link that is slow and loses messages.

The sender numbers its events. A message has those that came together, with the number of the first. At most one message
is under way: it is sent again until it is confirmed, so that events arrive in order. The receiver skips events that it
has applied already. Where some are missing, it forgets the open requests of that sender, as it does when the sender
dies: an end may be among the missing events, and a request must not count as load for ever.

Limits: `MAX_WAITING` events wait for a peer, the oldest are dropped first. `MAX_SENDERS` senders are known, the one
that was silent longest is forgotten first; so is one that was silent for `SILENT_S`. A sender that has nothing to say
sends an empty message each `ALIVE_EVERY_S`.
"""

from collections import OrderedDict, deque
from typing import Final

import msgspec

from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.peer_router import PeerRouter

MAX_WAITING: Final = 16_384
MAX_IN_MESSAGE: Final = 256
MAX_SENDERS: Final = 256
SILENT_S: Final = 30.0
ALIVE_EVERY_S: Final = 5.0


class Events(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="p"):
    """Consecutive events of one router. `sender` is a random number of it."""

    sender: int
    first: int
    events: list[Event]


class Outbox:
    """What one peer is to be sent."""

    __slots__ = ("_first", "_sender", "_under_way", "_waiting", "lost", "sent_s")

    def __init__(self, sender: int) -> None:
        self._sender = sender
        self._first = 0  # the number of the first event that waits
        self._waiting: deque[Event] = deque()
        self._under_way = 0  # events of the message that is under way
        self.lost = 0
        """Events that were dropped."""
        self.sent_s = 0.0
        """When a message was sent last."""

    @property
    def waiting(self) -> int:
        """Events that are not confirmed yet."""
        return len(self._waiting)

    def add(self, event: Event) -> None:
        """Have an event sent."""
        self._waiting.append(event)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self._first += 1
            self._under_way = max(0, self._under_way - 1)
            self.lost += 1

    def take(self, now_s: float, most: int = MAX_IN_MESSAGE) -> Events | None:
        """The message to send now: of at most `most` events; None where there is nothing to say."""
        count = min(len(self._waiting), most)
        if not count and now_s - self.sent_s < ALIVE_EVERY_S:
            return None
        self.sent_s = now_s
        self._under_way = count
        return Events(self._sender, self._first, [self._waiting[at] for at in range(count)])

    def confirmed(self) -> None:
        """The message under way has arrived."""
        for _ in range(self._under_way):
            self._waiting.popleft()
        self._first += self._under_way
        self._under_way = 0


class Inbox:
    """What the peers have sent."""

    __slots__ = ("_last_s", "_next", "gaps")

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._last_s: OrderedDict[int, float] = OrderedDict()
        self.gaps = 0
        """How often events were missing."""

    @property
    def senders(self) -> int:
        """Peers that were heard lately."""
        return len(self._next)

    def apply(self, message: Events, router: PeerRouter, now_s: float) -> int:
        """Apply the events that were not applied yet. Return how many."""
        sender = message.sender
        expected = self._next.get(sender, message.first)
        if message.first > expected:
            self.gaps += 1
            router.forget(sender, now_s)
            expected = message.first
        new = message.events[expected - message.first :]
        for event in new:
            router.apply(sender, event, now_s)
        self._next[sender] = expected + len(new)
        self._last_s[sender] = now_s
        self._last_s.move_to_end(sender)
        if len(self._last_s) > MAX_SENDERS:
            self._forget(next(iter(self._last_s)), router, now_s)
        return len(new)

    def drop_silent(self, router: PeerRouter, now_s: float) -> None:
        """Forget the requests of peers that were silent for long."""
        while self._last_s:
            sender = next(iter(self._last_s))
            if now_s - self._last_s[sender] < SILENT_S:
                break
            self._forget(sender, router, now_s)

    def _forget(self, sender: int, router: PeerRouter, now_s: float) -> None:
        del self._last_s[sender], self._next[sender]
        router.forget(sender, now_s)
