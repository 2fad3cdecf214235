"""Engines in a folder of TOML files, each with the keys of one [[engine]].

Without an id an engine has the name of its file. What a file named last stays while it cannot be read, as when it is
half written. Only regular files are read that are in the folder, also by a link; their key files must be there too, or
in `key_folder` (`EngineConfig.keys_within`). The folder is read in a thread of its own, since it may be on a network:
one that hangs is away, and does not keep the proxy from ending. Limits: `MAX_ENGINES` files of `MAX_FILE_BYTES` each.
"""

import asyncio
import tomllib
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, Final

from warmroute.files.regular import read_regular
from warmroute_proxy.server.discovery.source import MAX_ENGINES, DiscoveredEngines, SourceError

MAX_FILE_BYTES: Final = 65_536
READ_S: Final = 10.0
_PATHS: Final = ("key_file", "admin_key_file")


class Folder:
    """One folder. `region`: that of engines that name none."""

    def __init__(self, path: Path, interval_s: float, region: str) -> None:
        self._path = path
        self._interval_s = interval_s
        self._region = region
        self._named_before: dict[str, dict[str, Any]] = {}  # by file
        self._reading: Future[DiscoveredEngines] | None = None

    async def read(self) -> DiscoveredEngines:
        """As `Source`."""
        if self._reading is None or self._reading.done():
            self._reading = Future()
            Thread(target=self._run, args=(self._reading,), daemon=True, name="discovery").start()
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._reading)), READ_S)
        except TimeoutError:
            raise SourceError(f"{self._path} was not read within {READ_S:g} s") from None

    def close(self) -> None:
        """As `Source`: nothing is held between two reads."""

    def _run(self, reading: "Future[DiscoveredEngines]") -> None:
        try:
            reading.set_result(self._read())
        except Exception as error:
            reading.set_exception(error)

    def _read(self) -> DiscoveredEngines:
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
        return DiscoveredEngines(list(found.values()), self._interval_s, problems)

    def _engine(self, path: Path) -> dict[str, Any]:
        content = read_regular(path, MAX_FILE_BYTES, [self._path])
        values = {"id": path.stem, "region": self._region, **tomllib.loads(content.decode())}
        if "url" not in values:  # it may be half written: what is left is TOML, too
            raise ValueError("names no url")
        return values | {key: str(self._path / values[key]) for key in _PATHS if isinstance(values.get(key), str)}
