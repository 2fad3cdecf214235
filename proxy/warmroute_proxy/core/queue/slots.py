"""Limits concurrent requests over several proxies: a store leases places under the limit for some seconds.

Each process tells the store how many of its requests run and how many places it wants. The store answers how many
places the process may use. All numbers are absolute (not differences), so the next exchange repairs what a lost answer
or a restart of the store has changed:

    free  = limit - places of the other processes
    share = the places of this process if the limit is divided by max-min fairness among all that want places
    held  = min(wanted, share, free)

A process that runs more than its share begins no other request until some have ended. So a process with a long queue
cannot keep all places. The lease ends `LEASE_S` after the process last asked, so the places of a killed process become
free.

Requests do not wait for the store's answer. A request begins if its process holds a place, if the store's last answer
had a place left, or if the store has not answered yet. So several processes together can exceed the limit by the
requests that they begin in one round trip to the store. After a minute without requests, each process can exceed the
limit by one. A request without a place waits in the queue, as it does under a limit of its own process (`quota`). While
the store does not answer, only the limits of each process hold.
"""

from typing import Final, NamedTuple

from warmroute_proxy.core.queue.scope import Scope

LEASE_S: Final = 5.0
ASK_AGAIN_S: Final = 1.0
KEPT_FRESH_S: Final = 60.0
"""For this time after its last request, a process keeps asking how many places are left."""

SPARE_PART: Final = 8
"""While places are left, a process with running requests holds places beyond those in use: an eighth of the limit."""


class SlotLimit(NamedTuple):
    """How many requests of a scope (tenants or keys) may run at once. Clients are warned from the used share
    `warn_share` on.
    """

    scope: Scope
    limit: int
    warn_share: float


class Held(NamedTuple):
    """The store's answer: how many places this process may use, and how many no process holds."""

    held: int
    left: int


class SlotLease:
    """The places of one process under one limit. Callers pass all times, in seconds of one clock."""

    def __init__(self, slots: SlotLimit) -> None:
        self.slots = slots
        self.running = 0
        self.held = 0
        self.left: int | None = None
        """How many places the store had left at its last answer; None before the first answer."""

        self.asking = False
        self.away = False
        """Whether the store did not answer the last time."""

        self._turned_away = 0
        self._recorded = 0
        self._asked_s = 0.0
        self._ended_s = 0.0

    def may_begin(self) -> bool:
        """Whether another request may run. A request that may not run counts as one that wants a place."""
        if self.away or self.left is None or self.running < self.held + self.left:
            return True
        self._turned_away += 1
        return False

    def begin(self, requests: int) -> None:
        self.running += requests

    def end(self, requests: int, now_s: float) -> None:
        self.running -= requests
        self._ended_s = now_s

    @property
    def beyond(self) -> bool:
        """Whether more requests run than the store has been told."""
        return self.running > self._recorded

    def wanted(self, now_s: float) -> int | None:
        """How many places to ask the store for now; None if it is not time to ask."""
        since_s = now_s - self._asked_s
        if self.asking or (self.away and since_s < ASK_AGAIN_S):
            return None
        if self._idle and (self.left is None or since_s < ASK_AGAIN_S or now_s - self._ended_s >= KEPT_FRESH_S):
            return None
        wanted = self.running + max(self._turned_away, self._spare())
        if self.left and now_s - self._ended_s < ASK_AGAIN_S:
            wanted = max(wanted, self.held)
        if self.running > self.held or self._turned_away or not self.left or since_s >= ASK_AGAIN_S:
            return min(wanted, self.slots.limit)
        return None

    def rests(self, now_s: float) -> bool:
        """Whether the store need not be asked until a request comes."""
        return self._idle and not self.asking and now_s - max(self._asked_s, self._ended_s) >= KEPT_FRESH_S

    def asked(self, now_s: float) -> None:
        self.asking = True
        self._recorded = self.running
        self._turned_away = 0
        self._asked_s = now_s

    def answered(self, answer: Held) -> None:
        self.asking = self.away = False
        self.held, self.left = answer
        self._recorded = max(self._recorded, self.held)

    def not_answered(self) -> None:
        """Record that the store does not answer: the places that this process held are lost."""
        self.asking, self.away = False, True
        self.held, self.left = 0, None

    def used_share(self) -> float:
        """The used share of the limit, as far as this process knows."""
        left = 0 if self.left is None or self.away else self.left
        others = self.slots.limit - left - self.held if self.left is not None and not self.away else 0
        return max(0, self.running + max(0, others)) / self.slots.limit

    @property
    def _idle(self) -> bool:
        return not (self.running or self._turned_away or self.held or self._recorded)

    def _spare(self) -> int:
        return self.slots.limit // SPARE_PART if self.running and self.left != 0 else 0
