"""Writes small files atomically (a draft replaces the old file), reads them, and tells whether files have changed."""

import logging
import os
from pathlib import Path
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that only this user may read. Readers see either the old content or all of the new content. Raises:
    OSError.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def read_kept(path: Path, kind: type[T], default: T, *, max_bytes: int = -1, lost: str = "") -> T:
    """Read what `write_kept` kept before this start; the default if the file is missing or unreadable. An unreadable
    file is logged with `lost`, which says what the loss of the file means.
    """
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(max_bytes), type=kind)
    except FileNotFoundError:
        return default
    except (OSError, msgspec.DecodeError) as error:
        _LOG.error("%s cannot be read%s: %s", path, lost, error)
        return default


def write_kept(path: Path, value: object) -> None:
    """Keep a value for the next start. A failure is logged: the process goes on with the value in memory."""
    try:
        write_whole(path, msgspec.json.encode(value))
    except (OSError, TypeError) as error:
        _LOG.error("%s cannot be written, and will be lost at a restart: %s", path, error)


class FileChanges:
    """Tells from ctime (content or mode), size and inode whether files have changed since the last call of `found`. At
    the first call a file counts as changed, since it may have changed after its content was read.
    """

    def __init__(self, *paths: Path | None) -> None:
        """`paths` may contain None, which is ignored."""
        self._seen: dict[Path, tuple[int, int, int] | None] = {}
        self.follow(*paths)

    def follow(self, *paths: Path | None) -> None:
        """Watch only these files from now on."""
        self._seen = {path: self._seen.get(path) for path in paths if path is not None}

    def found(self) -> bool:
        """Whether a file has changed since the last call. A missing file counts as unchanged."""
        changed = False
        for path, seen in self._seen.items():
            state = _state_of(path)
            if state is not None and state != seen:
                self._seen[path] = state
                changed = True
        return changed


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ctime_ns, found.st_size, found.st_ino
