"""Runs the modelled steps of one scheduler at the pace of the wall clock, and passes on their tokens.

The schedule is the model's: a step starts where the last one ended, whatever the wall does. A process that is late
(too many streams for its core) emits late and catches up, several steps in one turn of the event loop; the virtual
times it reports do not change.
"""

import asyncio
import time
from collections.abc import Callable

from warmroute_lab.engine.model.model import Scheduler, Step, Work

MAX_STEPS_PER_TURN = 8
"""Steps applied before the event loop gets to write and read, when late."""


class VirtualClock:
    """Virtual seconds since the start of the engine: wall seconds times `speed`."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._zero_s = time.monotonic()

    def now_s(self) -> float:
        return (time.monotonic() - self._zero_s) * self.speed

    def wall_s(self, virtual_s: float) -> float:
        return virtual_s / self.speed


class Pacer:
    """Drives one `Scheduler`; `on_token` gets each work with a new token, once per step and work.

    `on_step` gets each step that has ended, after its tokens, and None when there is nothing to do.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: VirtualClock,
        on_token: Callable[[Work], None],
        on_step: Callable[[Step | None], None] = lambda _: None,
    ) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._on_token = on_token
        self._on_step = on_step
        self._step: Step | None = None
        self._handle: asyncio.Handle | None = None
        self._probes: list[Callable[[], None]] = []

    def wake(self) -> None:
        """Something was added or released: begin a step if none is under way."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def probe(self, done: Callable[[], None]) -> None:
        """Call `done` when the scheduler next completes a step; at once when it has nothing to do."""
        if self._step is None and self._handle is None:
            done()
        else:
            self._probes.append(done)

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        self._handle = None
        for _ in range(MAX_STEPS_PER_TURN):
            step = self._step
            if step is None:
                step = self._step = self.scheduler.begin()
                if step is None:
                    self._on_step(None)
                    break
                for work in step.delivered:
                    self._on_token(work)
            ahead_s = step.end_s - self._clock.now_s()
            if ahead_s > 0:
                self._handle = loop.call_later(self._clock.wall_s(ahead_s), self._turn)
                return
            self._step = None
            for work in self.scheduler.finish(step):
                self._on_token(work)
            self._on_step(step)
            self._answer_probes()
        else:
            self._handle = loop.call_soon(self._turn)
        self._answer_probes()

    def _answer_probes(self) -> None:
        probes, self._probes = self._probes, []
        for done in probes:
            done()
