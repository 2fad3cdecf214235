"""One launched process: starts it or finds it again, watches it, and ends it with all processes that it has started."""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmroute_backend.launch.hangs import Progress
from warmroute_backend.launch.identity import (
    MARK,
    Identity,
    boot_id,
    identity_of,
    is_alive,
    marked,
    session_members,
    signal_process,
)
from warmroute_backend.launch.program import Kind, LaunchError, Program
from warmroute_backend.launch.start_log import end_of, tail
from warmroute_backend.launch.state_file import Entry, Record, load
from warmroute_backend.launch.states import ALIVE, Event, State, next_state

SHOWN_LINES: Final = 12
MAX_LINE_CHARS: Final = 300


class Process:
    """A program and its entry in the state file. `mark`: a value in the environment of all its processes."""

    def __init__(self, program: Program, entry: Entry, mark: str) -> None:
        self.program = program
        self.entry = entry
        self.changed_s = time.monotonic()
        """When the process' state last changed."""
        self.retry_s = 0.0
        self.progress: Progress | None = None
        """What the process' metrics have shown since it became ready."""
        self._mark = mark
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def state(self) -> State:
        return self.entry.state

    @property
    def log(self) -> Path:
        return Path(self.entry.log)

    @property
    def is_of_its_program(self) -> bool:
        return self.entry.digest == self.program.digest

    def happen(self, event: Event) -> None:
        self.entry.state = next_state(self.entry.state, event)
        self.changed_s = time.monotonic()

    def start(self, save: Callable[[], None]) -> None:
        """Start the process. Its entry is saved before the start, so that a later launcher can find the process, and
        after it. Raises: LaunchError.
        """
        self.happen(Event.START)
        entry, program = self.entry, self.program
        entry.identity, entry.members, entry.ready_s = None, [], None
        entry.digest = program.digest
        entry.starts += 1
        entry.started_s = time.time()
        entry.findings = []
        entry.log_begin = end_of(self.log)
        save()
        try:
            with self.log.open("ab") as log:
                self._child = subprocess.Popen(  # noqa: S603 (of the plan)
                    program.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **dict(program.environment), MARK: self._mark},
                    start_new_session=True,
                )
        except OSError as error:
            self.happen(Event.ENDS)
            raise LaunchError(
                f"{self.name}: {program.command[0]} cannot be started: {error.strerror}; is it installed?"
            ) from None
        entry.identity = identity_of(self._child.pid)
        save()

    def find(self) -> bool:
        """Find a process that an earlier launcher started, by its entry or its mark. False if it is gone."""
        if self.entry.identity is None and self.state in ALIVE:
            found = marked(self._mark)
            self.entry.identity = min(found, key=lambda each: each.start_ticks) if found else None
        return self.entry.identity is not None and is_alive(self.entry.identity)

    def has_ended(self) -> bool:
        """Whether the main process is gone. If so, its children are noted before the system forgets their parent."""
        identity = self.entry.identity
        if identity is None:
            return True
        if self._child is None or self._child.pid != identity.pid:
            return not is_alive(identity)
        if self._child.returncode is not None:
            return True
        if os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self.note_members()
        self._child.wait()
        return True

    def note_members(self) -> bool:
        """Note the other processes of the process' session. Returns whether they have changed."""
        if self.entry.identity is None:
            return False
        found = sorted(session_members(self.entry.identity))
        changed = bool(found) and found != self.entry.members
        if changed:
            self.entry.members = found
        return changed

    def terminate(self) -> None:
        if self.entry.identity is not None:
            signal_process(self.entry.identity, signal.SIGTERM)

    def kill(self) -> None:
        self.note_members()
        if self.entry.identity is not None:
            signal_process(self.entry.identity, signal.SIGKILL)
        self.end_leftovers()

    def end_leftovers(self) -> None:
        """Kill what is left of the process' session. The kernel needs tens of seconds to free a large pinned pool."""
        for member in {*self.entry.members, *marked(self._mark)} - {self.entry.identity}:
            if is_alive(member):
                signal_process(member, signal.SIGKILL)
        if self.entry.identity is None or not is_alive(self.entry.identity):
            self.entry.members = [member for member in self.entry.members if is_alive(member)]

    def is_gone(self) -> bool:
        return self.has_ended() and not any(is_alive(member) for member in self.entry.members)

    def how_it_ended(self) -> str:
        """How the process ended, in words. The exit status of another launcher's child is not known."""
        code = None if self._child is None else self._child.returncode
        if code is None:
            return "ended"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with status {code}"

    def last_words(self) -> str:
        """The last lines that the process logged since its start."""
        lines = tail(self.log, SHOWN_LINES, self.entry.log_begin)
        return "".join(f"\n    {line[:MAX_LINE_CHARS]}" for line in lines)


def found_identity(pid: int) -> Identity:
    """The identity of this launcher's process. Raises: LaunchError if there is no /proc."""
    identity = identity_of(pid)
    if identity is None:
        raise LaunchError("/proc is not there: processes can be watched on Linux only")
    return identity


LOGS = "logs"


@dataclass(slots=True)
class Adopted:
    """The processes of the programs, some of them adopted from an earlier launcher. `processes`: one for each program,
    in the order of the programs. `stray`: processes that run and belong to no program any more.
    """

    record: Record
    processes: list[Process]
    stray: list[Process]
    notes: list[str]

    @property
    def fresh(self) -> list[Process]:
        """The processes that do not run yet."""
        return [process for process in self.processes if process.state not in ALIVE]


def adopt(programs: Sequence[Program], state_dir: Path, plan: str, engine: str, node: int, own: Identity) -> Adopted:
    """Match programs with the processes that still run. `own`: the launcher's identity. Raises: LaunchError if these
    processes have another kind of engine.
    """
    old = load(state_dir)
    (state_dir / LOGS).mkdir(parents=True, exist_ok=True)
    record = Record(secrets.token_hex(8), boot_id(), plan, engine, node, own)
    running: dict[str, Process] = {}
    if old is not None and old.boot_id == record.boot_id:
        running = {process.name: process for process in left_running(old)}
        if running:
            record.launch_id = old.launch_id
        if running and old.engine != engine:
            raise LaunchError(
                f"--engine {old.engine} still runs in {state_dir} ({', '.join(running)}): `warmroute launch stop` first"
            )
    adopted = Adopted(record, [], [], [])
    for program in programs:
        process = running.pop(program.name, None)
        if process is not None:
            process.program = program
            adopted.notes.append(_note(process))
        else:
            process = Process(program, _entry(program, state_dir, old), f"{record.launch_id}/{program.name}")
        adopted.processes.append(process)
        record.entries[program.name] = process.entry
    adopted.stray = list(running.values())
    return adopted


def left_running(record: Record) -> list[Process]:
    """The processes of a record that still run, in the order of their start. Children whose main process is gone are
    killed, since they serve nobody.
    """
    found = []
    for name, entry in record.entries.items():
        process = Process(_bare(entry), entry, f"{record.launch_id}/{name}")
        if process.state in ALIVE and process.find():
            found.append(process)
        else:
            process.end_leftovers()
    return found


def _note(process: Process) -> str:
    identity = process.entry.identity
    found = f"{process.name}: runs already{f', pid {identity.pid}' if identity else ''}"
    if not process.is_of_its_program:
        return f"{found}, by another command line than the plan's now: `warmroute launch restart {process.name}`"
    if process.state in {State.STOPPING, State.DRAINING}:
        process.entry.is_ordered = True
    return found


def _entry(program: Program, state_dir: Path, old: Record | None) -> Entry:
    """A new entry for a program, with what an earlier launcher knew of the program's starts and restarts."""
    before = None if old is None else old.entries.get(program.name)
    entry = Entry(
        name=program.name,
        kind=program.kind,
        state=State.WAITING,
        digest=program.digest,
        log=str(state_dir / LOGS / f"{program.name}.log"),
        url=program.url if program.port("http") else "",
        ports=dict(program.ports),
    )
    if before is not None:
        entry.start_records = before.start_records
        entry.is_drained = before.is_drained  # the proxy keeps a drain even if the engine has stopped meanwhile
    if before is not None and before.state is not State.STOPPED:
        entry.has_served, entry.restarts_s = before.has_served, list(before.restarts_s)
    return entry


def _bare(entry: Entry) -> Program:
    """A program with only those fields of an entry that are needed to stop it."""
    kind: Kind = entry.kind  # type: ignore[assignment]  # the value was a Kind when it was saved
    return Program(entry.name, kind, (), ports=tuple(entry.ports.items()))
