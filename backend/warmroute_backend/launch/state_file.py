"""`state.json` in the state directory: the processes that a launcher has started, so that the next launcher finds them.

The whole file is replaced with each change, and also before a process is started. If a launcher is killed after it has
started a process and before it has noted the pid, the entry has no pid, and the next launcher finds the process by an
environment variable (`identity.MARK`). Only one launcher at a time uses the directory: it holds the file `lock`, which
the system releases however the launcher ends.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from warmroute_backend.launch.identity import MARK, Identity
from warmroute_backend.launch.program import LaunchError
from warmroute_backend.launch.states import State

FOLDER: Final = "orders"
_RESTART: Final = ".restart"
_START: Final = "start"
MAX_ORDERS: Final = 64


def give_restart(state_dir: Path, name: str) -> None:
    folder = state_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f"{name}{_RESTART}").touch()


def give_start(state_dir: Path) -> None:
    """Leave the order to start all nodes in the state directory. Raises: OSError."""
    folder = state_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / _START).touch()


def take_start(state_dir: Path) -> bool:
    """Take the order to start, if there is one, so that it is obeyed only once. Returns whether there was an order."""
    try:
        (state_dir / FOLDER / _START).unlink()
    except FileNotFoundError:
        return False
    return True


def take_restarts(state_dir: Path) -> Iterator[str]:
    """Take the orders to restart processes, so that each is obeyed only once. Yields the names of the processes."""
    folder = state_dir / FOLDER
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir())[:MAX_ORDERS]:
        if path.name == _START:
            continue
        path.unlink(missing_ok=True)
        if path.name.endswith(_RESTART):
            yield path.name.removesuffix(_RESTART)


VERSION: Final = 1
STATE: Final = "state.json"
MAX_BYTES: Final = 4 << 20
MAX_STARTS: Final = 16


@dataclass(frozen=True, slots=True)
class StartRecord:
    """A start that succeeded. `at_s`: unix seconds; `source`: where the weights came from."""

    at_s: float
    total_s: float
    source: str
    phases_s: dict[str, float]


@dataclass(slots=True)
class Entry:
    """One process. Times are unix seconds. `members`: other processes of its session (`setsid(2)`) when last seen."""

    name: str
    kind: str
    state: State
    digest: str
    log: str
    url: str
    ports: dict[str, int]
    identity: Identity | None = None
    members: list[Identity] = field(default_factory=list)
    log_begin: int = 0
    """The offset in the log at which this start begins."""
    starts: int = 0
    started_s: float = 0.0
    ready_s: float | None = None
    """When the current run of the process began to serve."""
    has_served: bool = False
    is_ordered: bool = False
    """Whether an operator's order to restart the process is being carried out."""
    is_drained: bool = False
    """Whether the launcher asked the proxy to give the process no new work, and has to undo that."""
    restarts_s: list[float] = field(default_factory=list)
    last_words: str = ""
    """How the process last ended unasked, with the last lines of its log."""
    findings: list[str] = field(default_factory=list)
    """How the process differs from the plan, and whether it hangs."""
    start_records: list[StartRecord] = field(default_factory=list)
    """The last few successful starts."""


@dataclass(slots=True)
class Record:
    launch_id: str
    boot_id: str
    plan: str
    engine: str
    node: int
    launcher: Identity
    entries: dict[str, Entry] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    """What is wrong with other nodes."""


def save(folder: Path, record: Record) -> None:
    """Replace the state file. Raises: OSError."""
    document = {"version": VERSION, **asdict(record)}
    path = folder / STATE
    fresh = path.with_suffix(".tmp")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def load(folder: Path) -> Record | None:
    """The record of the last launcher; None if the folder has none. Raises: LaunchError."""
    path = folder / STATE
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}") from None
    try:
        document = json.loads(content[:MAX_BYTES])
        if document.pop("version") != VERSION:
            raise LaunchError(f"{path} is of another version of warmroute: end its processes with that version")
        return _record(document)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise LaunchError(
            f"{path} is damaged: look for processes with {MARK} in their environment, end them, remove it"
        ) from None


def _record(document: dict[str, Any]) -> Record:
    entries = {name: _entry(found) for name, found in document.pop("entries").items()}
    launcher = Identity(**document.pop("launcher"))
    return Record(**document, launcher=launcher, entries=entries)


def _entry(found: dict[str, Any]) -> Entry:
    identity = found.pop("identity")
    members = [Identity(**member) for member in found.pop("members")]
    state = State(found.pop("state"))
    starts = [StartRecord(**each) for each in found.pop("start_records", [])]
    return Entry(
        **found, start_records=starts, state=state, identity=Identity(**identity) if identity else None, members=members
    )


@contextlib.contextmanager
def locked(folder: Path, taken: str) -> Iterator[None]:
    """Make and lock the state directory. `taken`: the message if another launcher has it. Raises: LaunchError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a")
    except OSError as error:
        raise LaunchError(f"the state directory {folder} cannot be used: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LaunchError(taken) from None
        yield
