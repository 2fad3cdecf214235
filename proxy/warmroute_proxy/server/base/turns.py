"""Shares the event loop: work of a tenant waits for earlier work of this tenant, and for one step of each other tenant.

The work is divided into *steps*: requests that begin or are refused, tasks of the control plane, and pieces of engines'
streams. Each tenant has a line (a queue) of steps. In one iteration of the loop, steps run for `SLICE_S` at most; the
remaining steps wait. The time that the steps of each line have taken decides which line is next: start-time fair
queueing (P. Goyal, H. Vin, H. Cheng, 1996). Requests without a key share one line, and each engine has a line for work
that belongs to no tenant.

A refusal costs mostly the reading of the refused request, which happens outside the step. The reading time is *charged*
to the line, which then waits longer for its next turn. A task that a step begins runs in the next iteration. The
present iteration ends with that step, so only one task begins in each iteration. The time of the task's steps is
charged to the line, too.

The lines are bounded by the connections of clients and engines: each connection has at most one step that waits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

log = logging.getLogger(__name__)

SLICE_S: Final = 0.004
MOST_CHARGED_S: Final = 0.25

Step = Callable[[], None]


class Turns:
    def __init__(self, clock: Callable[[], float], ran: Callable[[float], None]) -> None:
        """`ran`: called with the seconds for which a step has held the loop."""
        self._clock = clock
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop; None: the running loop is looked up."""

        self._ran = ran
        self.lines: dict[str, deque[Step]] = {}
        """Tenant -> its line of waiting steps. A line that becomes empty is deleted."""

        self.began = False
        """Whether a step has run or lined up in this iteration of the loop, in which steps may begin until `end_s`."""

        self.end_s = 0.0
        self._turns: list[tuple[float, int, str]] = []  # a heap: time, number and tenant of each line
        self._turn_s = 0.0  # virtual time of the line that ran last
        self._lined_up = 0
        self._tasks = 0  # tasks that have begun but whose first step has not run
        self._charged_s: dict[str, float] = {}

    def take(self, tenant: str, step: Step) -> None:
        """Run a step: now if no step waits and this iteration has time left, else when it is the tenant's turn."""
        if not self.lines:
            now_s = self._clock()
            if not self.began or now_s < self.end_s:
                self.begin(now_s)
                step()
                self._ran(self._clock() - now_s)
                return
        self.line_up(tenant, step)

    def begin(self, now_s: float) -> None:
        """Record that a step runs now, without having waited."""
        if not self.began:
            self.began = True
            self.end_s = now_s + SLICE_S
            self._call_soon()

    def line_up(self, tenant: str, step: Step) -> None:
        line = self.lines.get(tenant)
        if line is None:
            self.lines[tenant] = deque((step,))
            self._lined_up += 1
            heappush(self._turns, (self._turn_s + self._charged_s.pop(tenant, 0.0), self._lined_up, tenant))
        else:
            line.append(step)
        if not self.began:
            self.began = True
            self._call_soon()

    def charge(self, tenant: str, seconds: float) -> None:
        """Charge a line with `seconds` that a step costs besides its run time. This iteration loses them, too."""
        self.end_s -= seconds
        self._charged_s[tenant] = min(self._charged_s.get(tenant, 0.0) + seconds, MOST_CHARGED_S)

    def task_begun(self) -> None:
        """Record that a step has begun a task. This iteration ends, since the task runs in the next one."""
        self._tasks += 1
        self.end_s = 0.0

    def task_ran(self, tenant: str, seconds: float, *, first: bool) -> None:
        """Charge a line for a task's step. `first`: the step is the task's first, or the task has ended without one."""
        if first:
            self._tasks -= 1
        self._ran(seconds)
        self._charged_s[tenant] = min(self._charged_s.get(tenant, 0.0) + seconds, MOST_CHARGED_S)

    def _call_soon(self) -> None:
        (self.loop or asyncio.get_running_loop()).call_soon(self.go_on)

    def _await_turn(self, tenant: str, turn_s: float) -> None:
        self._lined_up += 1
        heappush(self._turns, (turn_s + self._charged_s.pop(tenant, 0.0), self._lined_up, tenant))

    def go_on(self) -> None:
        lines = self.lines
        if not lines:
            self.began = False
            if self._charged_s:
                self._charged_s.clear()
            return
        now_s = self._clock()
        self.end_s = now_s + SLICE_S
        while lines and now_s < self.end_s and not self._tasks:
            turn_s, _, tenant = heappop(self._turns)
            self._turn_s = max(self._turn_s, turn_s)
            line = lines[tenant]
            try:
                line.popleft()()
            except Exception as error:  # other steps still run; only the error's type is logged, never its text
                log.error("a step of the event loop failed: %s", type(error).__name__)
            began_s, now_s = now_s, self._clock()
            self._ran(now_s - began_s)
            if line:
                self._await_turn(tenant, turn_s + now_s - began_s)
            else:
                del lines[tenant]
        self._call_soon()
