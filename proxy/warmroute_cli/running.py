"""Finds a running fleet of `warmroute up`, through files that `up` writes for other commands.

While the fleet runs, a file in its state directory has the addresses of its proxies. The file has no keys: commands
derive the API key and the admin key from the fleet's secret. Another file, in the user's state folder (XDG), lists the
state directories of running fleets. So a command in another folder finds the newest fleet.
"""

import contextlib
import fcntl
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from warmroute_cli import state
from warmroute_cli.arguments import DEFAULT_STATE_DIR

MAX_FLEETS: Final = 8
"""How many state directories are read from the file in the user's state folder, the newest first."""

PORTS = "ports.json"
USERS = "users"
"""While a command uses another command's fleet, it holds a shared lock on this file."""


class Address(NamedTuple):
    """Where one proxy of the fleet is reached."""

    region: str
    url: str
    admin_url: str


class Running(NamedTuple):
    state_dir: Path
    addresses: list[Address]
    api_key: str
    admin_key: str


@contextlib.contextmanager
def announced(state_dir: Path, addresses: list[Address]) -> Iterator[None]:
    """Until this context ends, other commands can find the fleet."""
    path = state_dir / state.FLEET_FILE
    path.write_text(json.dumps([address._asdict() for address in addresses]) + "\n", encoding="utf-8")
    _keep_fleets([state_dir.resolve(), *(each for each in _fleets() if state.in_use(each))])
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def find(state_dir: Path) -> Running | None:
    """The fleet that runs in this state directory. For the default directory without a fleet: the user's newest
    fleet."""
    if (here := running_in(state_dir)) is not None or state_dir != DEFAULT_STATE_DIR:
        return here
    return next(filter(None, map(running_in, _fleets())), None)


def find_named(state_dir: Path) -> Running | None:
    """Find a fleet as `find` does. If the fleet runs in another folder, a line on stderr says so."""
    found = find(state_dir)
    if found is not None and found.state_dir != state_dir:
        print(f"warmroute: using the fleet of {found.state_dir}, since none runs in {state_dir}", file=sys.stderr)
    return found


def running_in(state_dir: Path) -> Running | None:
    try:
        found = json.loads((state_dir / state.FLEET_FILE).read_text(encoding="utf-8"))
        addresses = [Address(**address) for address in found]
    except (OSError, ValueError, TypeError):
        return None
    if not state.in_use(state_dir):
        return None
    return Running(state_dir, addresses, state.api_key(state_dir), state.admin_key(state_dir))


def option(state_dir: Path) -> str:
    """The option by which a printed command uses this state directory from any folder."""
    return f" --state-dir {shlex.quote(str(state_dir.absolute()))}"


def _fleets() -> list[Path]:
    """The state directories of the user's fleets, the newest first. Some of the fleets may have ended."""
    try:
        return [Path(line) for line in _fleets_file().read_text(encoding="utf-8").splitlines()[:MAX_FLEETS]]
    except (OSError, ValueError):
        return []


def _keep_fleets(state_dirs: list[Path]) -> None:
    """Write the directories to the file in the user's state folder, unless that file cannot be written."""
    with contextlib.suppress(OSError):
        path = _fleets_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{each}\n" for each in dict.fromkeys(state_dirs))
        path.write_text(lines, encoding="utf-8")


def _fleets_file() -> Path:
    folder = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - never raises
    return Path(folder) / "warmroute" / "fleets"


@contextlib.contextmanager
def used(state_dir: Path) -> Iterator[None]:
    """Until this context ends, mark another command's fleet as in use."""
    with (state_dir / USERS).open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield


def wait_until_unused(state_dir: Path, on_wait: Callable[[], None]) -> None:
    """Wait until no other command needs the fleet that this command started. `on_wait` is called if it has to wait."""
    with (state_dir / USERS).open("a") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(users, fcntl.LOCK_EX)


def kept_ports(state_dir: Path) -> dict[str, tuple[int, int]]:
    """Region -> its two ports at the last start: for clients, for operators. Empty before the first start."""
    try:
        found = json.loads((state_dir / PORTS).read_text(encoding="utf-8"))
        return {str(region): (int(port), int(admin_port)) for region, (port, admin_port) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def keep_ports(state_dir: Path, ports: dict[str, tuple[int, int]]) -> None:
    (state_dir / PORTS).write_text(json.dumps(ports) + "\n", encoding="utf-8")
