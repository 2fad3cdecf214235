"""The file of a config, as it is read again and again while the proxy runs."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import read_config, read_file

ACCEPTED_FILE: Final = "config.toml"
"""In the state folder: the file as the supervisor has accepted it, for its processes."""

_DIGEST_CHARS: Final = 16


class ReadConfig(NamedTuple):
    """A checked config, and the file that it was read from. `digest`: of the file, 16 hex digits."""

    config: Config
    digest: str
    content: bytes


class ConfigSource:
    """One config file. `instead`: values that replace keys of its [proxy]."""

    def __init__(self, path: Path, instead: Mapping[str, Any], folder: Path | None = None) -> None:
        """`folder`: where relative paths start; by default that of the file."""
        self.path = path
        self._instead = dict(instead)
        self._folder = path.resolve().parent if folder is None else folder

    def read(self) -> ReadConfig:
        """Read and check the whole file. Raises: ConfigError with all problems."""
        content = read_file(self.path)
        config = read_config(content, self._folder, str(self.path), self._instead)
        return ReadConfig(config, hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS], content)

    def accepted(self, state_dir: Path) -> "ConfigSource":
        """The copy that `accept` writes."""
        return ConfigSource(state_dir / ACCEPTED_FILE, self._instead, self._folder)

    def accept(self, read: ReadConfig, state_dir: Path) -> None:
        """Keep what was read for the processes of a proxy: they all apply the same bytes. Raises: OSError."""
        draft = state_dir / f"{ACCEPTED_FILE}.{os.getpid()}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(read.content)
        draft.replace(state_dir / ACCEPTED_FILE)


class FileChanges:
    """Whether files have changed since the last look: by their times, sizes and inodes. At the first look they count as
    changed, since what was read of them is older.
    """

    def __init__(self, *paths: Path | None) -> None:
        """`paths`: None is no file."""
        self._seen: dict[Path, tuple[int, int, int] | None] = {path: None for path in paths if path is not None}

    def found(self) -> bool:
        """Whether one is another than at the last look. A file that is away has not changed."""
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
    return found.st_mtime_ns, found.st_size, found.st_ino
