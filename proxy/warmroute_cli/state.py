"""Keeps a fleet's state across restarts: its secret, which only the owner can read, and its tenant's key."""

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from warmroute_cli.processes import FleetError
from warmroute_proxy.server.base.secrets import Secrets, load_secret

FLEET_FILE: Final = "fleet.json"
"""While a fleet runs, its addresses. A fleet that was killed leaves the file."""

LOCK_TRIES: Final = 5
LOCK_AGAIN_S: Final = 0.01
"""`in_use` takes the lock for a moment, so a start that finds it taken tries again."""


def make(state_dir: Path) -> None:
    if not state_dir.exists():
        state_dir.mkdir(parents=True)
        (state_dir / ".gitignore").write_text("*\n", encoding="utf-8")


@contextlib.contextmanager
def locked_state(state_dir: Path) -> Iterator[Path]:
    """Make the state directory, and hold its lock: one fleet at a time may use it."""
    try:
        make(state_dir)
        lock = (state_dir / "lock").open("a")
    except OSError as error:
        raise FleetError(f"the state directory {state_dir} cannot be used: {error.strerror}") from None
    with lock:
        for more_tries in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if not more_tries:
                    message = f"another fleet runs in {state_dir}; stop it or choose another --state-dir"
                    raise FleetError(message) from None
            time.sleep(LOCK_AGAIN_S)
        (state_dir / FLEET_FILE).unlink(missing_ok=True)
        yield state_dir.resolve()


def in_use(state_dir: Path) -> bool:
    try:
        with (state_dir / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def secret_file(state_dir: Path) -> Path:
    """The file of the fleet's secret. If it is missing or empty, it gets a new secret and mode 0600."""
    path = state_dir / "secret"
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8").strip():
            return path
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secrets.token_hex(32) + "\n")
    return path


def api_key(state_dir: Path) -> str:
    """The tenant's key, which is derived from the secret, so that no file holds it."""
    return Secrets(load_secret(secret_file(state_dir), os.environ)).key_for("demo")


def admin_key(state_dir: Path) -> str:
    return Secrets(load_secret(secret_file(state_dir), os.environ)).admin_key()
