"""ThunderAgent's router in its mode `tr`: pauses whole sessions if KV is short, and resumes them if they fit again.

Source: H. Kang et al., "ThunderAgent: A Simple, Fast and Program-Aware Agentic Inference System", arXiv:2602.13692;
github.com/ThunderAgent-org/ThunderAgent, commit a7eef77a, ThunderAgent/scheduler/router.py:
`update_program_before_request`, `_greedy_resume`, `_pause_until_safe`, `_wait_for_resume`, and
ThunderAgent/backend/state.py: `remaining_capacity`.

A program, here a session, has a backend, here a worker. All tokens of the program and 100 more count at its backend,
whether it reasons (a request is under way) or acts (it is idle), until its client releases it. If no program is paused,
a new program goes to the backend with the fewest tokens among those where it fits; otherwise it is paused, too.
Requests of a paused program wait. Every 5 s:

1. Resume: the router selects paused programs up to the free tokens of all backends. Programs with a request come first,
   then new ones, then idle ones, each group from the smallest on. Then it places the selected programs, the largest
   first, each on the backend with the most free tokens.
2. Pause: if the programs of a backend need more tokens than it has, idle ones are paused, the smallest first, until the
   rest fits. If that is not enough, all reasoning programs there are paused when their request ends.

A request that has waited for 30 minutes is sent in any case: to the backend where its program was, or to the one with
the fewest programs. As by default, acting tokens count in full, without decay, and shared prefixes are not subtracted
(the source never updates them). In this model, tokens are exact, and those of an answer count at its end (in the
source, every 20 tokens). Clients release a session at the end of its last turn. The sandboxes of tools are not
modelled. If a worker is gone, its programs count as new.
"""

from typing import Final

from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy

INTERVAL_S: Final = 5.0
BUFFER_TOKENS: Final = 100
LONGEST_WAIT_S: Final = 1800.0


class _Program:
    """A session. `worker` is None while it is paused or new; `home` is the worker that it had before the pause."""

    __slots__ = ("home", "is_marked", "running", "steps", "tokens", "waiting", "worker")

    def __init__(self) -> None:
        self.home: Worker | None = None
        self.is_marked = False
        self.running = 0
        self.steps = 0
        self.tokens = 0
        self.waiting: list[ReplayTurn] = []
        self.worker: Worker | None = None

    @property
    def need_tokens(self) -> int:
        return self.tokens + BUFFER_TOKENS


class ThunderAgent(Policy):
    """Pauses programs if KV is short, and resumes them at workers that have KV for them."""

    exact = False

    def __init__(self, fleet: ReplayFleet) -> None:
        super().__init__(fleet)
        self._programs: dict[int, _Program] = {}
        self._is_due = False

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker | None:
        self._check_later(now_s)
        session = turn.request.session
        program = self._programs.setdefault(session, _Program())
        program.steps += 1
        program.tokens = turn.request.input_tokens
        if program.worker is not None and program.worker.index not in self.fleet.up:
            program.worker = None
        if program.worker is None and program.home is None and not program.waiting:
            program.worker = self._where_it_fits(program)
        if program.worker is None:
            program.waiting.append(turn)
            return None
        program.running += 1
        return program.worker

    def ended(self, turn: ReplayTurn, now_s: float) -> None:  # noqa: ARG002 - part of the interface
        request = turn.request
        program = self._programs[request.session]
        program.running -= 1
        program.tokens = request.input_tokens + request.output_tokens
        if self.is_last(turn) and not program.running and not program.waiting:
            del self._programs[request.session]
        elif program.is_marked and not program.running:
            self._pause(program)

    def lost(self, turn: ReplayTurn, now_s: float) -> None:  # noqa: ARG002 - part of the interface
        self._programs[turn.request.session].running -= 1

    def _where_it_fits(self, program: _Program) -> Worker | None:
        """The worker for a new program; None if the program has to wait."""
        if any(each.worker is None for each in self._programs.values() if each is not program):
            return None
        free = {worker: tokens for worker, tokens in self._free().items() if tokens >= program.need_tokens}
        return max(free, key=lambda worker: free[worker] - _capacity(worker), default=None)

    def _free(self) -> dict[Worker, int]:
        free = {worker: _capacity(worker) for worker in self.fleet.prefills}
        for program in self._programs.values():
            if program.worker in free:
                free[program.worker] -= program.need_tokens
        return free

    def _pause(self, program: _Program) -> None:
        program.home, program.worker, program.is_marked = program.worker, None, False

    def _check_later(self, now_s: float) -> None:
        if not self._is_due:
            self._is_due = True
            self.later((now_s // INTERVAL_S + 1) * INTERVAL_S, self._check)

    def _check(self, now_s: float) -> None:
        self._is_due = False
        self._resume(now_s)
        self._pause_until_safe()
        if any(each.running or each.waiting for each in self._programs.values()):
            self._check_later(now_s)

    def _resume(self, now_s: float) -> None:
        free = {worker: tokens for worker, tokens in self._free().items() if tokens > BUFFER_TOKENS}
        left = sum(free.values())
        chosen: list[_Program] = []
        for program in sorted((each for each in self._programs.values() if each.worker is None), key=_rank):
            if program.need_tokens <= left:
                left -= program.need_tokens
                chosen.append(program)
        for program in sorted(chosen, key=_tokens, reverse=True):
            worker = max(free, key=free.__getitem__)
            if program.need_tokens <= free[worker]:
                free[worker] -= program.need_tokens
                self._go(program, worker, now_s)
        for program in list(self._programs.values()):
            if program.waiting and now_s - program.waiting[0].arrived_s >= LONGEST_WAIT_S:
                home = program.home if program.home in self.fleet.prefills else None
                self._go(program, home or self._fewest(), now_s)

    def _fewest(self) -> Worker:
        programs = [program.worker for program in self._programs.values()]
        return min(self.fleet.prefills, key=programs.count)

    def _go(self, program: _Program, worker: Worker, now_s: float) -> None:
        program.worker, program.home = worker, None
        turns, program.waiting = program.waiting, []
        program.running += len(turns)
        for turn in turns:
            self.send(turn, worker, now_s)

    def _pause_until_safe(self) -> None:
        for worker, tokens in self._free().items():
            if tokens >= 0:
                continue
            programs = sorted((each for each in self._programs.values() if each.worker is worker), key=_tokens)
            short = -tokens
            for program in programs:
                if short > 0 and not program.running:
                    self._pause(program)
                    short -= program.need_tokens
            for program in programs if short > 0 else ():
                program.is_marked = program.running > 0


def _capacity(worker: Worker) -> int:
    return worker.scheduler.capacity_pages * worker.scheduler.page_size


def _tokens(program: _Program) -> int:
    return program.tokens


def _rank(program: _Program) -> tuple[int, int]:
    return 1 if program.steps == 1 else 0 if program.waiting else 2, program.tokens
