"""Where a running `up` fleet is reached: what `up` writes down, so that other commands find it.

The file is in the state directory while the fleet runs. It has addresses; keys follow from the fleet's secret.
"""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from warmroute_cli import state

FILE = "fleet.json"
PORTS = "ports.json"
USERS = "users"
"""Locked, shared, by commands that use the fleet of another one."""


class Address(NamedTuple):
    """Where one proxy of the fleet is reached."""

    region: str
    url: str
    admin_url: str


class Running(NamedTuple):
    """A running fleet and its keys."""

    addresses: list[Address]
    api_key: str
    admin_key: str


@contextmanager
def announced(state_dir: Path, addresses: list[Address]) -> Iterator[None]:
    """The fleet can be found as long as this lasts."""
    path = state_dir / FILE
    path.write_text(json.dumps([address._asdict() for address in addresses]) + "\n", encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def find(state_dir: Path) -> Running | None:
    """The fleet that runs in this state directory; None where none does."""
    try:
        found = json.loads((state_dir / FILE).read_text(encoding="utf-8"))
        addresses = [Address(**address) for address in found]
    except (OSError, ValueError, TypeError):
        return None
    if not state.in_use(state_dir):
        return None
    return Running(addresses, state.api_key(state_dir), state.admin_key(state_dir))


@contextmanager
def used(state_dir: Path) -> Iterator[None]:
    """The fleet that another command has started is needed as long as this lasts."""
    with (state_dir / USERS).open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield


def wait_until_unused(state_dir: Path, on_wait: Callable[[], None]) -> None:
    """Wait until no other command needs the fleet that was started here. `on_wait`: called where one does."""
    with (state_dir / USERS).open("a") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(users, fcntl.LOCK_EX)


def kept_ports(state_dir: Path) -> dict[str, tuple[int, int]]:
    """Region -> its ports at the last start, for clients and for operators; none before the first start."""
    try:
        found = json.loads((state_dir / PORTS).read_text(encoding="utf-8"))
        return {str(region): (int(port), int(admin_port)) for region, (port, admin_port) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def keep_ports(state_dir: Path, ports: dict[str, tuple[int, int]]) -> None:
    (state_dir / PORTS).write_text(json.dumps(ports) + "\n", encoding="utf-8")
