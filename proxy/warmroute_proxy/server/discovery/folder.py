"""Engines in a folder of TOML files, each with the keys of one [[engine]].

Without an id an engine has the name of its file. What a file named last stays while it cannot be read, as when it is
half written. The folder is read in a thread, since it may be on a network. Limits: `MAX_ENGINES` files of at most
`MAX_FILE_BYTES`.
"""

import asyncio
import tomllib
from pathlib import Path
from typing import Any, Final

from warmroute_proxy.server.discovery.source import MAX_ENGINES, Found, SourceError

MAX_FILE_BYTES: Final = 65_536
_PATHS: Final = ("key_file", "admin_key_file")


class Folder:
    """One folder. `region`: that of engines that name none."""

    def __init__(self, path: Path, interval_s: float, region: str) -> None:
        self._path = path
        self._interval_s = interval_s
        self._region = region
        self._named_before: dict[str, dict[str, Any]] = {}  # by file

    async def read(self) -> Found:
        """As `Source`."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> Found:
        try:
            files = sorted(path for path in self._path.iterdir() if path.suffix == ".toml")
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read: {error.strerror}") from None
        found: dict[str, dict[str, Any]] = {}
        problems: list[str] = []
        if len(files) > MAX_ENGINES:
            problems.append(f"{self._path} has {len(files)} files, and only {MAX_ENGINES} are read")
        for path in files[:MAX_ENGINES]:
            try:
                found[path.name] = self._engine(path)
            except (OSError, ValueError, RecursionError) as error:
                problems.append(f"{path}: {error}")
                if path.name in self._named_before:
                    found[path.name] = self._named_before[path.name]
        self._named_before = found
        return Found(list(found.values()), self._interval_s, problems)

    def _engine(self, path: Path) -> dict[str, Any]:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"is larger than {MAX_FILE_BYTES} bytes")
        values = {"id": path.stem, "region": self._region, **tomllib.loads(content.decode())}
        if "url" not in values:  # it may be half written: what is left is TOML, too
            raise ValueError("names no url")
        return values | {key: str(self._path / values[key]) for key in _PATHS if isinstance(values.get(key), str)}
