"""The sequences that decode together: each step brings every one of them a token.

Between two changes of the batch all steps are equal, so a run of them needs no simulation: step n of a run ends at
origin + n * length. A caller that takes the steps one by one gets the same numbers from the same formula, without the
drift of repeated addition.

Tokens are not counted by sequence either. The batch numbers its steps; a sequence notes on joining which one brings its
last token, and a heap has the next of these on top.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from warmroute_backend.costs import Costs
from warmroute_lab.engine.model.work import Work


class _Ending(NamedTuple):
    """When a sequence has its last token. `order` is that of joining, and decides between equal steps."""

    last_step: int
    order: int
    work: Work


class DecodeBatch:
    """The sequences that decode, and `planned` steps (0 when none), the last one ending at the time returned."""

    __slots__ = (
        "_costs",
        "_done",
        "_ending",
        "_joins",
        "_origin_s",
        "_step_s",
        "_step_s_of",
        "_steps",
        "planned",
        "width",
    )

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._step_s_of: dict[int, float] = {}
        """The length of a step by width, as far as they were needed."""
        self.width = 0
        """Sequences; one piece of work may be several."""
        self.planned = 0
        self._steps = 0  # since the start
        self._ending: list[_Ending] = []
        self._joins = 0
        self._origin_s = 0.0
        self._step_s = 0.0
        self._done = 0  # steps of this run

    def join(self, work: Work) -> None:
        """`work` has its first token."""
        work.last_step = self._steps + work.output_tokens - 1
        self.width += work.width
        self._joins += 1
        heappush(self._ending, _Ending(work.last_step, self._joins, work))

    def leave(self, work: Work) -> None:
        """Remove `work` before its end."""
        work.generated = self.generated(work)
        self.width -= work.width
        self._ending = [entry for entry in self._ending if entry.work is not work]
        heapify(self._ending)

    def generated(self, work: Work) -> int:
        return work.output_tokens - (work.last_step - self._steps)

    def plan_mixed(self) -> None:
        """Plan one step that prefills too; the caller knows its length."""
        self.planned = 1 if self.width else 0
        self._step_s = 0.0

    def plan_run(self, start_s: float, *, one_step: bool) -> float:
        """Decode until a sequence ends; goes on with the run that ends at `start_s` if its steps are as long."""
        width = self.width
        step_s = self._step_s_of.get(width)
        if step_s is None:
            step_s = self._step_s_of[width] = self._costs.prefill_s(0) + self._costs.decode_s(width)
        if step_s != self._step_s or self._origin_s + self._done * step_s != start_s:
            self._origin_s, self._step_s, self._done = start_s, step_s, 0
        self.planned = 1 if one_step else self._ending[0].last_step - self._steps
        return self._origin_s + (self._done + self.planned) * step_s

    def cut(self, at_s: float) -> float:
        """Let a run end with the step that is under way at `at_s`, or ends then. It must last longer than that."""
        origin_s, step_s, done = self._origin_s, self._step_s, self._done
        steps = max(1, int((at_s - origin_s) / step_s) - done)
        while steps > 1 and origin_s + (done + steps - 1) * step_s >= at_s:
            steps -= 1
        while origin_s + (done + steps) * step_s < at_s:
            steps += 1
        self.planned = steps
        return origin_s + (done + steps) * step_s

    def reached_s(self) -> float:
        """When the last step of a run that was applied has ended."""
        return self._origin_s + self._done * self._step_s

    def apply(self, steps: int) -> Sequence[Work]:
        """`steps` of those planned have ended. Removes and returns the work that has ended, in order of joining."""
        self.planned -= steps
        self._done += steps
        self._steps = steps = self._steps + steps
        ending = self._ending
        if not ending or ending[0].last_step != steps:  # as after most runs, which end because work joins
            return ()
        ended = []
        while ending and ending[0].last_step == steps:
            work = heappop(ending).work
            work.generated = work.output_tokens
            self.width -= work.width
            ended.append(work)
        return ended
