"""Reads all sources of engines in a config, each in its own task. While a source is away, its last engines stay.

A source is *away* if it cannot be read or names no engine: examples are a folder that is not mounted, and a DNS name
whose records are being replaced. To give up the engines of a source, remove the source from the config.
"""

import asyncio
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple

from warmroute.files.regular import read_regular
from warmroute_proxy.core.base.trouble import Problem, Trouble
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Config, DiscoveryConfig, EngineConfig
from warmroute_proxy.server.base.config_engines import read_engine
from warmroute_proxy.server.base.config_file import check_engine_models, check_unsalted
from warmroute_proxy.server.base.config_table import Table, shown
from warmroute_proxy.server.base.files import read_kept, write_kept
from warmroute_proxy.server.base.metrics import GaugeRow, Labels
from warmroute_proxy.server.base.secrets import SecretError, bearer
from warmroute_proxy.server.discovery.source import MAX_ENGINES, DiscoveredEngines, Source, SourceError

# Engines in a folder of TOML files, each with the keys of one [[engine]].
#
# The id of an engine that states none is the name of its file. While a file cannot be read, for example because it is
# half written, the engine that it last named stays. Only regular files inside the folder are read; a link must lead to
# such a file. Key files must be in the folder, too, or in `key_folder` (`EngineConfig.keys_within`). The folder may be
# on a network, so it is read in a separate thread: a folder that hangs counts as away, and does not keep the proxy from
# ending. Limits: `MAX_ENGINES` files of `MAX_FILE_BYTES` each.

MAX_FILE_BYTES: Final = 65_536
READ_S: Final = 10.0
_PATHS: Final = ("key_file", "admin_key_file")


class Folder:
    """One folder. `region`: the region of engines whose files name no region."""

    def __init__(self, path: Path, interval_s: float, region: str) -> None:
        self._path = path
        self._interval_s = interval_s
        self._region = region
        self._named_before: dict[str, dict[str, Any]] = {}  # file name -> the engine that the file last named
        self._reading: Future[DiscoveredEngines] | None = None

    async def read(self) -> DiscoveredEngines:
        if self._reading is None or self._reading.done():
            self._reading = Future()
            Thread(target=self._run, args=(self._reading,), daemon=True, name="discovery").start()
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._reading)), READ_S)
        except TimeoutError:
            raise SourceError(f"{self._path} was not read within {READ_S:g} s") from None

    def close(self) -> None:
        """Does nothing, since nothing is open between two reads."""

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
        if "url" not in values:  # the file may be half written, since the beginning of a TOML file is often valid TOML
            raise ValueError("names no url")
        return values | {key: str(self._path / values[key]) for key in _PATHS if isinstance(values.get(key), str)}


# Which of the found engines are used: those that would be valid in the config.
#
# The config's own engines come first, then those of each source in the order of the config. A found engine is not used
# if its id or URL is taken, or if it is not valid by itself. Its source reports why. All other engines of the source
# are used.


class Refused(NamedTuple):
    """An engine that is not used, and the reason, which may contain addresses."""

    engine: str
    reason: str


class Candidates(NamedTuple):
    """The found engines that are used, and for each source those that are not used."""

    used: list[EngineConfig]
    refused: dict[str, list[Refused]]


def candidates(config: Config, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Candidates:
    """Choose the engines to use. `found`: source -> the TOML keys of its engines, in the order of the config."""
    region = config.proxy.region
    used: list[EngineConfig] = []
    refused: dict[str, list[Refused]] = {source: [] for source in found}
    taken = {engine.id: "the config" for engine in config.engines}
    taken |= {engine.url: "the config" for engine in config.engines}
    within = {one.id: one.keys_within for one in config.discoveries}
    for source, engines in found.items():
        for values in engines:
            own: list[str] = []
            engine = _read(values, config, within.get(source, ()), own)
            if engine.region != region:
                continue  # no problem, since proxies of several regions may share a source, as they may share a config
            for key, value in (("id", engine.id), ("url", engine.url)):
                if value in taken:
                    own.append(f"{key} {shown(value)} is taken by {taken[value]}")
            if own:
                refused[source].append(Refused(engine.id, "; ".join(own)))
                continue
            taken[engine.id] = taken[engine.url] = source
            used.append(engine)
    return Candidates(used, refused)


# The engines that sources last named are kept in the state folder, so that they are there at once after a restart.
#
# The small file maps each source to the keys of its [[engine]] tables, which name key files but do not contain the keys
# in them. Each process writes a whole new file beside the old one and renames it. All processes find the same engines,
# so it does not matter which process writes last.

KEPT_FILE: Final = "discovered.json"
MAX_KEPT_BYTES: Final = 16_777_216


def _last_known(state_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Source -> the engines that were kept; empty if the file cannot be read, which is logged."""
    lost = ", so no engine is known before its source answers"
    kind = dict[str, list[dict[str, Any]]]
    return read_kept(state_dir / KEPT_FILE, kind, {}, max_bytes=MAX_KEPT_BYTES, lost=lost)


def last_discovered(config: Config) -> list[EngineConfig]:
    """The engines that the sources of a config named before a restart, if they can be used."""
    known = _last_known(config.proxy.state_dir)
    return candidates(config, {one.id: known.get(one.id, []) for one in config.discoveries}).used


def _read(
    values: Mapping[str, Any], config: Config, keys_within: tuple[Path, ...], problems: list[str]
) -> EngineConfig:
    """Read and check one engine. `keys_within`: the folders that must contain its key files."""
    engine = replace(read_engine(Table(dict(values), "engine", problems), {}, Path()), keys_within=keys_within)
    check_engine_models((engine,), config.models, problems)
    check_unsalted((engine,), config.tenants, problems)
    for file in (engine.key_file, engine.admin_key_file):
        try:
            bearer(file, keys_within)
        except SecretError as error:
            problems.append(str(error))
    return engine


log = logging.getLogger(__name__)


class _Reading:
    """One source, and what was last read from it."""

    def __init__(self, config: DiscoveryConfig, engines: list[dict[str, Any]]) -> None:
        self.config = config
        self.engines = engines
        self.away = ""
        """The reason why the source is away; empty if it is not away."""

        self.problems: list[str] = []
        """What could not be read of the source, as problems."""

        self.refused: list[Refused] = []
        """The source's engines that were read but are not used."""

        self.task: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Discovery:
    """The found engines of all sources. All methods are called in the event loop."""

    def __init__(self, state_dir: Path, on_change: Callable[[], None]) -> None:
        """`on_change`: called when a source names other engines than before."""
        self._state_dir = state_dir
        self._known = _last_known(state_dir)
        self._readings: dict[str, _Reading] = {}
        self._on_change = on_change

    def replace(self, config: Config) -> None:
        """Read only the sources of this config from now on. Sources whose config is unchanged are not restarted."""
        before, self._readings = self._readings, {}
        for one in config.discoveries:
            reading = before.pop(one.id, None)
            if reading is None or reading.config != one:
                if reading is not None:
                    reading.close()
                reading = _Reading(one, self._known.get(one.id, []))
                source = source_of(one, config.proxy.region, reading.engines)
                reading.task = asyncio.get_running_loop().create_task(self._read(reading, source))
            self._readings[one.id] = reading
        for reading in before.values():
            reading.close()

    def engines(self, config: Config) -> list[EngineConfig]:
        """The found engines that are used, besides those of the config."""
        found = candidates(config, {name: reading.engines for name, reading in self._readings.items()})
        for source, refused in found.refused.items():
            reading = self._readings[source]
            for one in refused:
                if one not in reading.refused:
                    log.error("discovery %s: engine %s is not used: %s", source, one.engine, one.reason)
            reading.refused = refused
        return found.used

    def named_by(self, source: str) -> list[str]:
        """The ids of the engines that a source named last."""
        reading = self._readings.get(source)
        return [] if reading is None else [each["id"] for each in reading.engines]

    def problems(self) -> list[Problem]:
        """The problems of all sources. Anyone may read them, so only the log names engines."""
        found = []
        for name, reading in self._readings.items():
            if reading.away:
                text = f"discovery {name} is away: the {len(reading.engines)} engines that it named last stay"
                found.append(Problem(Trouble.DISCOVERY_AWAY, text))
            if reading.refused:
                text = f"discovery {name}: {len(reading.refused)} engines are not used: the log says which"
                found.append(Problem(Trouble.DISCOVERED_ENGINES_UNUSED, text))
            if reading.problems:
                text = f"discovery {name}: {len(reading.problems)} of its engines cannot be read"
                found.append(Problem(Trouble.DISCOVERED_ENGINES_UNUSED, text))
        return found

    def gauges(self) -> list[GaugeRow]:
        """The gauges of the sources, for `/metrics`."""
        rows: list[GaugeRow] = []
        for name, reading in self._readings.items():
            label: Labels = (("source", name),)
            bad = len(reading.refused) + len(reading.problems)
            rows.append((declared.DISCOVERY_UP, label, float(not reading.away)))
            rows.append((declared.DISCOVERY_ENGINES, label, float(len(reading.engines))))
            rows.append((declared.DISCOVERY_PROBLEMS, label, float(bad)))
        return rows

    def close(self) -> None:
        for reading in self._readings.values():
            reading.close()

    async def _read(self, reading: _Reading, source: Source) -> None:
        """Read a source until the task is cancelled. An error in the proxy's code must not end the reading."""
        try:
            while True:
                next_s = reading.config.interval_s
                try:
                    next_s = await self._read_once(reading, source)
                except Exception as error:
                    log.error("engines of discovery %s are not used: %s", reading.config.id, type(error).__name__)
                await asyncio.sleep(next_s)
        finally:
            source.close()

    async def _read_once(self, reading: _Reading, source: Source) -> float:
        """Read a source once. Returns the seconds until the next read."""
        name = reading.config.id
        try:
            found = await source.read()
            for problem in found.problems:
                if problem not in reading.problems:
                    log.error("discovery %s: %s", name, problem)
            reading.problems = found.problems
            if not found.engines:
                raise SourceError("it names no engine that can be read" if found.problems else "it names no engine")
        except Exception as error:
            text = str(error) if isinstance(error, SourceError) else type(error).__name__
            if not reading.away:
                log.error("discovery %s is away, and its last engines stay: %s", name, text)
            reading.away = text
            return reading.config.interval_s
        if reading.away:
            log.warning("discovery %s is back", name)
        reading.away = ""
        if found.engines != reading.engines:
            reading.engines = found.engines
            self._known = {each: one.engines for each, one in self._readings.items()}
            write_kept(self._state_dir / KEPT_FILE, self._known)
            self._on_change()
        return found.next_s


def source_of(config: DiscoveryConfig, region: str, known: list[dict[str, Any]]) -> Source:
    """The object that reads a source. `known`: the engines that the source last named. Raises: ModuleNotFoundError."""
    if config.path is not None:
        return Folder(config.path, config.interval_s, region)
    if config.kind in {"endpointslices", "inferencepool"}:
        from warmroute_proxy.server.discovery.kubernetes import Pool, Slices

        return (Slices if config.kind == "endpointslices" else Pool)(config, region, known)
    from warmroute_proxy.server.discovery.srv import Records

    return Records(config, region)
