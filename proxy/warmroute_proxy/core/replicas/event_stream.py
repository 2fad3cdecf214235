"""Sends the events of a router to another proxy, over a link that is slow and loses messages.

The sender numbers its events. A message holds consecutive events and the number of the first. At most one message to a
peer is under way: the sender repeats it until the peer confirms it, so that events arrive in order. The receiver skips
events that it has already applied. If events are missing, the receiver forgets the open requests of that sender, as if
the sender had died. Otherwise a request whose end is among the missing events would count as load for ever.

Limits: at most `MAX_WAITING` events, or `MAX_WAITING_BYTES`, wait for a peer, and the oldest are dropped first. Events
larger than a message, and messages that a peer refuses, are dropped, too. A receiver knows `MAX_SENDERS` senders, and
first forgets the sender that was silent longest. A sender that was silent for `SILENT_S` is forgotten, too. To stay
known, a sender without events sends an empty message (keep-alive) every `ALIVE_EVERY_S`.
"""

from collections import OrderedDict, deque
from typing import Final

import msgspec

from warmroute_proxy.core.cache.settled_turn import RegionalTurn
from warmroute_proxy.core.replicas.peer_events import Event, Evicted, Sent
from warmroute_proxy.core.replicas.replica import Replica

MAX_WAITING: Final = 16_384
MAX_WAITING_BYTES: Final = 8 << 20
MAX_IN_MESSAGE: Final = 256
MAX_MESSAGE_BYTES: Final = 700_000
"""As estimated by `bytes_of`; receivers accept messages of up to 1 MiB."""

EVENT_BYTES: Final = 400
CUT_BYTES: Final = 14  # a hash and where it ends
MAX_SENDERS: Final = 256
SILENT_S: Final = 30.0
ALIVE_EVERY_S: Final = 5.0


class Events(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="p"):
    """Consecutive events of one router. `sender` is a random number that identifies the router."""

    sender: int
    first: int
    events: list[Event]


class Outbox:
    """The events that wait for one peer."""

    __slots__ = ("_bytes", "_first", "_sender", "_under_way", "_waiting", "lost", "sent_s")

    def __init__(self, sender: int) -> None:
        self._sender = sender
        self._first = 0  # the number of the first event that waits
        self._waiting: deque[Event] = deque()
        self._bytes = 0  # the estimated bytes of all waiting events
        self._under_way = 0  # the number of events in the message under way
        self.lost = 0
        """How many events were dropped."""
        self.sent_s = 0.0
        """When the last message was sent."""

    @property
    def waiting(self) -> int:
        """How many events are not confirmed yet."""
        return len(self._waiting)

    def add(self, event: Event) -> None:
        size = bytes_of(event)
        if size > MAX_MESSAGE_BYTES:
            self.lost += 1
            return
        self._waiting.append(event)
        self._bytes += size
        while len(self._waiting) > MAX_WAITING or self._bytes > MAX_WAITING_BYTES:
            self._drop()
            self._under_way = max(0, self._under_way - 1)
            self.lost += 1

    def take(self, now_s: float, most: int = MAX_IN_MESSAGE) -> Events | None:
        """The message to send now, with at most `most` events; None if no message is due."""
        if not self._waiting and now_s - self.sent_s < ALIVE_EVERY_S:
            return None
        count = size = 0
        for event in self._waiting:
            size += bytes_of(event)
            if count == most or size > MAX_MESSAGE_BYTES:
                break
            count += 1
        self.sent_s = now_s
        self._under_way = count
        return Events(self._sender, self._first, [self._waiting[at] for at in range(count)])

    def confirmed(self) -> None:
        for _ in range(self._under_way):
            self._drop()
        self._under_way = 0

    def refused(self) -> None:
        """Drop the message under way, which the peer has refused."""
        self.lost += self._under_way
        self.confirmed()

    def _drop(self) -> None:
        self._bytes -= bytes_of(self._waiting.popleft())
        self._first += 1


def bytes_of(event: Event) -> int:
    """An upper estimate of the bytes that an event takes in a message."""
    if isinstance(event, Sent):
        return EVENT_BYTES + CUT_BYTES * len(event.chain.hashes)
    if isinstance(event, Evicted):
        return EVENT_BYTES + CUT_BYTES * len(event.cuts)
    if isinstance(event, RegionalTurn):
        return EVENT_BYTES + CUT_BYTES * len(event.new)
    return EVENT_BYTES


class Inbox:
    """Applies the events that peers have sent."""

    __slots__ = ("_last_s", "_next")

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._last_s: OrderedDict[int, float] = OrderedDict()

    def apply(self, message: Events, replica: Replica, now_s: float) -> int:
        """Apply the events that were not applied yet. Returns their number."""
        sender = message.sender
        expected = self._next.get(sender, message.first)
        if message.first > expected:
            replica.forget(sender, now_s)
            expected = message.first
        new = message.events[expected - message.first :]
        self._next[sender] = expected + len(new)  # set first, so that a fault in `apply` does not repeat events
        self._last_s[sender] = now_s
        self._last_s.move_to_end(sender)
        if len(self._last_s) > MAX_SENDERS:
            self._forget(next(iter(self._last_s)), replica, now_s)
        for event in new:
            replica.apply(sender, event, now_s)
        return len(new)

    def drop_silent(self, replica: Replica, now_s: float) -> None:
        """Forget the requests of peers that were silent for `SILENT_S`."""
        while self._last_s:
            sender = next(iter(self._last_s))
            if now_s - self._last_s[sender] < SILENT_S:
                break
            self._forget(sender, replica, now_s)

    def _forget(self, sender: int, replica: Replica, now_s: float) -> None:
        del self._last_s[sender], self._next[sender]
        replica.forget(sender, now_s)
