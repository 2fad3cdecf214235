"""What an earlier launcher has left running in a state directory, matched with what is to run."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warmroute_backend.launch.errors import LaunchError
from warmroute_backend.launch.identity import Identity, boot_id
from warmroute_backend.launch.process import Process
from warmroute_backend.launch.program import Kind, Program
from warmroute_backend.launch.state_file import Entry, Record, load
from warmroute_backend.launch.states import ALIVE, State

LOGS = "logs"


@dataclass(slots=True)
class Adopted:
    """`processes`: one for each program, in their order. `stray`: run, and belong to no program any more."""

    record: Record
    processes: list[Process]
    stray: list[Process]
    notes: list[str]

    @property
    def fresh(self) -> list[Process]:
        """Those that do not run yet."""
        return [process for process in self.processes if process.state not in ALIVE]


def adopt(programs: Sequence[Program], state_dir: Path, plan: str, engine: str, node: int, own: Identity) -> Adopted:
    """Match programs with what runs. `own`: of this launcher. Raises: LaunchError, if another engine kind runs."""
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
    """The processes of a record that still run, in the order of their start. Children whose main process is gone serve
    nobody, and are ended.
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
    """A new one; what an earlier launch knows of restarts stays with it."""
    before = None if old is None else old.entries.get(program.name)
    served = before is not None and before.state in {State.READY, State.DRAINING, State.BACKING_OFF}
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
    if before is not None and served:
        entry.is_drained = before.is_drained
        entry.has_served, entry.restarts_s = before.has_served, list(before.restarts_s)
    return entry


def _bare(entry: Entry) -> Program:
    """The program of an entry, as far as it takes to stop it."""
    kind: Kind = entry.kind  # type: ignore[assignment]  # written from one
    return Program(entry.name, kind, (), ports=tuple(entry.ports.items()))
