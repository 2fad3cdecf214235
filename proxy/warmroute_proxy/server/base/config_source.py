"""The config file, which is read again while the proxy runs, and the config that is in force."""

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import read_config, read_file
from warmroute_proxy.server.base.files import write_whole

ACCEPTED_FILE: Final = "config.toml"
"""In the state folder: a copy of the config file that the supervisor accepted last, for its processes to read."""

REFUSED_FILE: Final = "config.refused"
"""In the state folder: how many problems the last config file had, if it was refused, for all processes to read."""

_DIGEST_CHARS: Final = 16


class ReadConfig(NamedTuple):
    """A checked config, and the content of its file. `digest`: the first 16 hex digits of the content's SHA-256."""

    config: Config
    digest: str
    content: bytes


class ConfigSource:
    """One config file. `instead`: values that replace keys of its table [proxy]."""

    def __init__(self, path: Path, instead: Mapping[str, Any], folder: Path | None = None) -> None:
        """`folder`: where relative paths start; by default the folder of the file."""
        self.path = path
        self._instead = dict(instead)
        self._folder = path.absolute().parent if folder is None else folder

    def read(self) -> ReadConfig:
        """Read and check the whole file. Raises: ConfigError with all problems."""
        content = read_file(self.path)
        config = read_config(content, self._folder, str(self.path), self._instead)
        return ReadConfig(config, hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS], content)

    def accepted(self, state_dir: Path) -> "ConfigSource":
        """The source that reads the copy which `accept` writes."""
        return ConfigSource(state_dir / ACCEPTED_FILE, self._instead, self._folder)

    def accept(self, read: ReadConfig, state_dir: Path) -> None:
        """Write a copy of the file that was read, so all processes of a proxy apply the same bytes. Raises: OSError."""
        write_whole(state_dir / ACCEPTED_FILE, read.content)


class RefusedMark:
    """A file that tells all processes of a proxy that the config file was refused, until a config file is accepted."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / REFUSED_FILE

    def note(self, problems: int) -> None:
        """Record that the file was refused. Write errors are ignored: a full disk must not end the process."""
        with contextlib.suppress(OSError):
            write_whole(self._path, b"%d" % problems)

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def problems(self) -> int:
        """The number of problems of a refused file; 0 if the last file was accepted, 1 if the number is unreadable."""
        try:
            return int(self._path.read_text())
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            return 1


class LiveConfig:
    """Holds the config that was applied last. The package `reload` updates objects that keep values of a config."""

    def __init__(self, config: Config) -> None:
        self.now = config

    def replace(self, config: Config) -> None:
        self.now = config
