"""A file in which a process keeps what it has read of the database, for a start while that is away."""

import logging
import os
from pathlib import Path
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)


def read_kept(file: Path, kind: type[T], default: T) -> T:
    """What was kept; the default where there is none, or none that can be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return default
    except (OSError, msgspec.DecodeError) as error:
        _LOG.error("%s cannot be read: %s", file, error)
        return default


def write_kept(file: Path, value: object) -> None:
    """Keep it. A failure is logged: the process goes on with what it has in memory."""
    new = file.with_suffix(f".{os.getpid()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            out.write(msgspec.json.encode(value))
        new.replace(file)
    except OSError as error:
        _LOG.error("%s cannot be written: %s", file, error.strerror)
