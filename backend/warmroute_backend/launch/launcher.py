"""The launcher: starts the programs of a node in stages, restarts those that fail, and ends all in the reverse order.

The launcher looks at each process every `POLL_S`, and when a child ends, and acts by the process' state (`states`). An
engine that is ready gets no test requests for tokens, since a busy engine answers late. The launcher reads the engine's
metrics instead, and restarts an engine that hangs (`hangs`) or has ended, or whose start takes too long.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Protocol

from warmroute_backend.launch import readiness, state_file
from warmroute_backend.launch.comparison import against_plan, disagreements
from warmroute_backend.launch.hangs import HANG_S, HANGS, READ_EVERY_S, Progress, hang, observed
from warmroute_backend.launch.process import Process
from warmroute_backend.launch.program import STAGES, LaunchError
from warmroute_backend.launch.start_log import phases_s, pool, progress, rotate, tail
from warmroute_backend.launch.state_file import MAX_STARTS, StartRecord
from warmroute_backend.launch.states import ALIVE, Backoff, Event, State

if TYPE_CHECKING:
    from warmroute_backend.launch.node_reports import NodeReports

STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Waker:
    """Counts signals, and ends a wait when one comes: `with Waker() as waker`. `stops`: how many signals asked for a
    stop.
    """

    def __init__(self) -> None:
        self.stops = 0
        self._read, self._write = os.pipe()

    def __enter__(self) -> "Waker":
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._woken_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        heeded = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
        self._before = {number: signal.signal(number, self._stop) for number in heeded}
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _nothing)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout_s: float) -> None:
        """Wait until a signal comes, or for `timeout_s`."""
        if select.select([self._read], [], [], timeout_s)[0]:
            os.read(self._read, 4096)

    def _stop(self, _number: int, _stack: FrameType | None) -> None:
        self.stops += 1


def _nothing(_number: int, _stack: FrameType | None) -> None:
    """A handler that does nothing. A signal with a handler is not ignored, so it ends the wait."""


POLL_S: Final = 0.25
NOTE_EVERY_S: Final = 2.0
SHOW_EVERY_S: Final = 10.0
DRAIN_S: Final = 300.0
LOG_LINES_READ: Final = 2_000


class Drains(Protocol):
    """Asks the proxy to give an engine no new work. Each method may raise OSError; the launcher then continues without
    the proxy.
    """

    def drain(self, engine: str) -> bool:
        """Give the engine no new work. False if the engine was draining already: then the launcher must not undo it."""
        ...

    def is_drained(self, engine: str) -> bool: ...

    def undrain(self, engine: str) -> None: ...


@dataclass(slots=True)
class Limits:
    """Times of a launcher. `restarts_hung`: whether an engine that hangs for `hang_s` is restarted, or only
    reported.
    """

    backoff: Backoff
    drain_s: float = DRAIN_S
    hang_s: float = HANG_S
    restarts_hung: bool = True

    @property
    def read_every_s(self) -> float:
        """The period of reading metrics: so short that one reading never reaches `hang_s` (`hangs.LONGEST_STEP`)."""
        return min(READ_EVERY_S, self.hang_s / 4)


class Launcher:
    """Runs all processes of a node. `save` writes the state file, and `show` prints a line. `nodes`: the launchers of
    the other nodes; None if the plan has one node. `troubles`: what is wrong with those launchers.
    """

    def __init__(
        self,
        processes: Iterable[Process],
        state_dir: Path,
        drains: Drains,
        limits: Limits,
        save: Callable[[], None],
        show: Callable[[str], None],
        nodes: "NodeReports | None" = None,
    ) -> None:
        self.processes = list(processes)
        self._has_adopted = any(process.state in ALIVE for process in self.processes)
        self._state_dir = state_dir
        self._drains = drains
        self._limits = limits
        self._save = save
        self._show = show
        self._nodes = nodes
        self.troubles: list[str] = []
        self._has_looked = False
        self._noted_s = 0.0
        self._shown: dict[str, tuple[str, float]] = {}  # by name of a process

    def run(self, waker: Waker, up: Callable[[], None]) -> int:
        """Start everything, call `up`, watch until a signal, then stop everything. Returns 1 if a process has failed.

        Raises: LaunchError if a process does not become ready; everything is stopped before. Any other error leaves all
        processes running, as a kill of the launcher does.
        """
        was_up = False
        try:
            while not waker.stops:
                self._round()
                if not was_up and all(process.state is State.READY for process in self.processes):
                    was_up = True
                    up()
                waker.wait(POLL_S)
        except LaunchError:
            self.stop(waker)
            raise
        failed = any(process.state is State.FAILED for process in self.processes)
        self.stop(waker)
        return 1 if failed else 0

    def stop(self, waker: Waker | None = None) -> None:
        """Stop everything, beginning with the proxy, which lets requests end. A second signal kills what still runs."""
        for stage in reversed(range(len(STAGES))):
            members = [process for process in self.processes if process.program.stage == stage]
            for process in members:
                if process.state not in {State.STOPPED, State.STOPPING}:
                    self._stop(process)
            while any(process.state is State.STOPPING for process in members):
                for process in members:
                    if waker is not None and waker.stops > 1:
                        process.kill()
                    self._step_stopping(process)
                if waker is None:
                    time.sleep(POLL_S)
                else:
                    waker.wait(POLL_S)
        self._save()

    # --- a round -------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        for name in state_file.take_restarts(self._state_dir):
            self._order_restart(name)
        goes = state_file.take_start(self._state_dir)  # even if not needed now, or a later launch would take it
        if self._nodes is not None:
            self._look_at(self._nodes, goes=goes)
        for process in self.processes:
            self._step(process)
        now_s = time.monotonic()
        if now_s - self._noted_s >= NOTE_EVERY_S:
            self._noted_s = now_s
            changed = [process for process in self.processes if process.state in ALIVE and process.note_members()]
            if changed:
                self._save()
            for process in self.processes:
                with contextlib.suppress(OSError):  # a full disk: the log is not rotated
                    rotate(process.log)

    def _look_at(self, nodes: "NodeReports", *, goes: bool) -> None:
        """Report to the launchers of other nodes, and show what is wrong with them."""
        states = {process.name: str(process.state) for process in self.processes}
        stores = {process.name: str(process.state) for process in self.processes if process.program.kind == "store"}
        nodes.report(states, stores, goes=goes)
        found = nodes.troubles()
        if self._has_looked and [_fact(text) for text in found] == [_fact(text) for text in self.troubles]:
            return
        self._has_looked = True  # from the second look on, only changes are shown
        known = {_fact(text) for text in self.troubles}
        self.troubles[:] = found
        self._save()  # before the line is shown: its reader may ask for the status
        for text in found:
            if _fact(text) not in known:
                self._show(text)
        if not found:
            self._show("all nodes answer")

    def _step(self, process: Process) -> None:
        state = process.state
        if state in {State.STARTING, State.READY, State.DRAINING} and process.has_ended():
            self._ended(process)
        elif self._lacks_needs(process):
            process.kill()
            self._ended(process, f"was ended with {' and '.join(self._lacking(process))}")
        elif state is State.WAITING:
            if self._stage_is_open(process):
                self._start(process)
        elif state is State.STARTING:
            self._step_starting(process)
        elif state is State.READY and process.program.has_metrics:
            self._step_ready(process)
        elif state is State.DRAINING:
            self._step_draining(process)
        elif state is State.STOPPING:
            self._step_stopping(process)
        elif state in {State.STOPPED, State.FAILED} and process.entry.is_ordered and self._may_start_again(process):
            process.entry.is_ordered = False
            self._start(process)
        elif state is State.BACKING_OFF and time.monotonic() >= process.retry_s and self._may_start_again(process):
            process.entry.restarts_s.append(time.time())
            self._start(process)

    def _may_start_again(self, process: Process) -> bool:
        """Whether nothing is left of the last run, and all programs that the process needs serve."""
        return process.is_gone() and not self._lacking(process)

    def _lacking(self, process: Process) -> list[str]:
        ready = {each.name for each in self.processes if each.state is State.READY}
        return [name for name in process.program.needs if name not in ready]

    def _lacks_needs(self, process: Process) -> bool:
        """Whether a program that the process needs has gone. A process that an earlier launcher started with another
        command line needs no other program.
        """
        if process.state not in {State.STARTING, State.READY, State.DRAINING}:
            return False
        return process.is_of_its_program and bool(self._lacking(process))

    def _stage_is_open(self, process: Process) -> bool:
        if self._nodes is not None:
            is_first = process.program.stage == 0
            if not self._nodes.may_start() or not (is_first or self._nodes.stores_serve()):
                return False
        if any(process.name in other.program.needs and other.state in ALIVE for other in self.processes):
            return False  # an engine of an earlier launcher runs without this program, in the same memory
        before = [other for other in self.processes if other.program.stage < process.program.stage]
        if process.program.kind != "proxy":
            return all(other.state is State.READY for other in before)
        # A program that is broken, and engines that wait for it, do not keep the proxy from the engines that serve.
        passed = {State.READY, State.BACKING_OFF, State.FAILED}
        if any(other.state in passed - {State.READY} for other in before):
            passed.add(State.WAITING)
        return all(other.state in passed or other.program.kind in {"weights", "lmcache"} for other in before)

    def _start(self, process: Process) -> None:
        try:
            process.start(self._save)
        except LaunchError as error:
            if self._ends_all(process):
                raise
            self._back_off(process, str(error), "")
            return
        identity = process.entry.identity
        self._show(f"{process.name}: started{f', pid {identity.pid}' if identity else ''}; log: {process.log}")

    def _step_starting(self, process: Process) -> None:
        waited_s = time.time() - process.entry.started_s
        if not self._serves(process):
            if waited_s > process.program.start_timeout_s:
                process.kill()
                self._ended(process, f"was not ready after {waited_s:.0f} s and was ended")
            else:
                self._show_progress(process, waited_s)
            return
        if process.has_ended():  # then another process answers at its port
            self._ended(process)
            return
        lines = tail(process.log, LOG_LINES_READ, process.entry.log_begin)
        process.entry.findings = against_plan(process.program.expected, pool(lines))
        problems = self._pair_problems(process)
        if problems:
            process.kill()
            self._ended(process, f"was ended: {'; '.join(problems)}")
            return
        if process.program.is_engine:
            self._note_start(process, waited_s, lines)
        process.happen(Event.SERVES)
        process.progress = None
        process.entry.ready_s = time.time()
        process.entry.has_served = True
        self._save()
        self._show(f"{process.name}: ready after {waited_s:.0f} s")
        for finding in process.entry.findings:
            self._show(f"{process.name}: {finding}")
        is_proxy = process.program.kind == "proxy"
        for each in self.processes if is_proxy else [process]:  # engines may have come before the proxy
            if each.entry.is_drained and each.state is State.READY:
                self._undrain(each)

    @staticmethod
    def _serves(process: Process) -> bool:
        words = process.program.ready_line
        if words:
            return any(words in line for line in tail(process.log, LOG_LINES_READ, process.entry.log_begin))
        return readiness.serves(process.program)

    @staticmethod
    def _note_start(process: Process, total_s: float, lines: list[str]) -> None:
        info = readiness.server_info(process.program.url) if process.program.has_metrics else {}
        phases = phases_s(total_s, info, lines)
        record = StartRecord(process.entry.started_s, total_s, process.program.source, phases)
        process.entry.start_records = [*process.entry.start_records, record][-MAX_STARTS:]

    def _show_progress(self, process: Process, waited_s: float) -> None:
        """Show a line when the phase changes, and every `SHOW_EVERY_S`."""
        found = progress(tail(process.log, LOG_LINES_READ, process.entry.log_begin))
        what = found.phase if found.percent is None else f"{found.phase} {found.percent} %"
        shown, at_s = self._shown.get(process.name, ("", 0.0))
        if what != shown or waited_s - at_s >= SHOW_EVERY_S or waited_s < at_s:
            self._shown[process.name] = what, waited_s
            line = f" | {found.last_line}" if found.last_line else ""
            self._show(f"{process.name}: {what}, {waited_s:.0f} s{line}")

    def _pair_problems(self, process: Process) -> list[str]:
        """The settings on which the process disagrees with engines that serve already in the other role (prefill or
        decode).
        """
        kind = process.program.kind
        if kind not in {"prefill", "decode"}:
            return []
        other = "decode" if kind == "prefill" else "prefill"
        found = []
        for partner in self.processes:
            if partner.program.kind == other and partner.state in {State.READY, State.DRAINING}:
                prefill, decode = (process, partner) if kind == "prefill" else (partner, process)
                found += disagreements(
                    readiness.route(prefill.program.bootstrap_url or ""),
                    readiness.server_info(prefill.program.url),
                    readiness.server_info(decode.program.url),
                    (prefill.name, decode.name),
                )
        return found

    def _step_ready(self, process: Process) -> None:
        """Read the process' metrics if a period has passed, and act on a hang."""
        now_s = time.monotonic()
        before = process.progress or Progress(now_s)
        if process.progress is not None and now_s - before.at_s < self._limits.read_every_s:
            return
        after = observed(before, readiness.metrics(process.program.url), now_s, self._limits.read_every_s)
        found = hang(after, self._limits.hang_s)
        named = [each for each in process.entry.findings if each.startswith(HANGS)]  # also by an earlier launcher
        goes_on = process.progress is not None and after.still_s == after.silent_s == 0
        process.progress = after
        if found and self._limits.restarts_hung:
            process.kill()
            self._ended(process, found)
        elif (found and not named) or (named and goes_on):
            process.entry.findings = [each for each in process.entry.findings if each not in named]
            process.entry.findings += [found] if found else []
            self._save()
            self._show(f"{process.name}: {found or 'computes again'}")

    # --- ends ----------------------------------------------------------------------------------------------------

    def _ended(self, process: Process, how: str = "") -> None:
        was_draining = process.state is State.DRAINING
        how = how or process.how_it_ended()
        process.end_leftovers()
        process.happen(Event.ENDS)
        if was_draining:
            return
        words = process.last_words()
        process.entry.last_words = f"{how}{words}"
        if self._ends_all(process):
            raise LaunchError(f"{process.name} {how} while it started (log: {process.log}){words}")
        self._back_off(process, how, words)

    def _ends_all(self, process: Process) -> bool:
        """Whether an end of the process ends all processes: at its first start, unless some of them run since an
        earlier launcher."""
        return not process.entry.has_served and not self._has_adopted

    def _back_off(self, process: Process, how: str, words: str) -> None:
        """Start the process again after a pause, or give it up."""
        restarts_s = process.entry.restarts_s = self._limits.backoff.recent(process.entry.restarts_s, time.time())
        pause_s = self._limits.backoff.pause_s(restarts_s, time.time())
        if pause_s is None:
            process.happen(Event.GIVE_UP)
            self._show(f"{process.name}: {how}; it has failed {len(restarts_s)} times and stays down{words}")
        else:
            process.retry_s = time.monotonic() + pause_s
            self._show(f"{process.name}: {how}; it is started again in {pause_s:.0f} s{words}")
        self._save()

    def _order_restart(self, name: str) -> None:
        process = next((process for process in self.processes if process.name == name), None)
        if process is None or process.entry.is_ordered:
            return
        if process.state in {State.WAITING, State.STOPPING, State.DRAINING}:
            return
        self._show(f"{name}: restart ordered")
        if process.state is State.BACKING_OFF:
            process.entry.restarts_s, process.retry_s = [], 0.0
            return
        process.entry.is_ordered = True
        if process.state is State.FAILED:
            process.entry.restarts_s = []
        if process.state is State.READY and process.program.is_engine and self._drain(process):
            process.happen(Event.DRAIN)
            self._save()
        elif process.state in ALIVE:
            self._stop(process)

    def _drain(self, process: Process) -> bool:
        """Ask the proxy to give the process no new work; False if the proxy does not answer."""
        try:
            process.entry.is_drained = self._drains.drain(process.name)
        except OSError as error:
            self._show(f"{process.name}: is not drained: {error}")
            return False
        return True

    def _undrain(self, process: Process) -> None:
        try:
            self._drains.undrain(process.name)
        except OSError as error:
            self._show(f"{process.name}: still drains, `warmroute engines undrain {process.name}`: {error}")
        else:
            process.entry.is_drained = False
            self._save()

    def _step_draining(self, process: Process) -> None:
        late = time.monotonic() - process.changed_s > self._limits.drain_s
        try:
            drained = self._drains.is_drained(process.name)
        except OSError:
            drained = True  # without a proxy no new requests come
        if drained or late:
            self._show(f"{process.name}: {'drained' if drained else 'still has requests, and is stopped'}")
            self._stop(process)

    def _stop(self, process: Process) -> None:
        process.happen(Event.STOP)
        if process.state is State.STOPPING:
            process.note_members()
            process.terminate()
        self._save()

    def _step_stopping(self, process: Process) -> None:
        if process.state is not State.STOPPING:
            return
        if process.has_ended():
            process.end_leftovers()
            if process.is_gone():
                process.happen(Event.ENDS)
                self._save()
                self._show(f"{process.name}: stopped")
        elif time.monotonic() - process.changed_s > process.program.stop_timeout_s:
            self._show(f"{process.name}: did not stop in {process.program.stop_timeout_s:.0f} s, and is ended")
            process.kill()


def _fact(trouble: str) -> str:
    """A sentence without its seconds, so that a trouble that goes on is shown once."""
    return trouble.partition(" for ")[0]
