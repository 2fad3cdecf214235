"""All sources of a config: each is read by a task of its own, and what it named last stays while it is away.

A source that names no engine counts as away, too: a folder that is not mounted and a name whose records are being
replaced look like that. To give up its engines, take it out of the config.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warmroute_proxy.core.base.trouble import Problem, Trouble
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Config, DiscoveryConfig, EngineConfig
from warmroute_proxy.server.base.metrics import GaugeRow, Labels
from warmroute_proxy.server.discovery import last_known
from warmroute_proxy.server.discovery.candidates import Refused, candidates
from warmroute_proxy.server.discovery.folder import Folder
from warmroute_proxy.server.discovery.source import Source, SourceError

log = logging.getLogger(__name__)


class _Reading:
    """One source as it was read last."""

    def __init__(self, config: DiscoveryConfig, engines: list[dict[str, Any]]) -> None:
        self.config = config
        self.engines = engines
        self.away = ""
        """Why it cannot be read; empty where it was."""

        self.problems: list[str] = []
        """Of what it names."""

        self.refused: list[Refused] = []
        """Its engines that are not used."""

        self.task: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Discovery:
    """The engines that are found. All methods are called in the event loop."""

    def __init__(self, state_dir: Path, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a source names other engines than before."""
        self._state_dir = state_dir
        self._known = last_known.load(state_dir)
        self._readings: dict[str, _Reading] = {}
        self._on_change = on_change

    def replace(self, config: Config) -> None:
        """Read the sources of this config, and no others. One that stays as it is goes on."""
        before, self._readings = self._readings, {}
        for one in config.discoveries:
            reading = before.pop(one.id, None)
            if reading is None or reading.config != one:
                if reading is not None:
                    reading.close()
                reading = _Reading(one, self._known.get(one.id, []))
                source = _source(one, config.proxy.region, reading.engines)
                reading.task = asyncio.get_running_loop().create_task(self._read(reading, source))
            self._readings[one.id] = reading
        for reading in before.values():
            reading.close()

    def engines(self, config: Config) -> list[EngineConfig]:
        """The engines that are used beside those of the config."""
        found = candidates(config, {name: reading.engines for name, reading in self._readings.items()})
        for source, refused in found.refused.items():
            reading = self._readings[source]
            for one in refused:
                if one not in reading.refused:
                    log.error("discovery %s: engine %s is not used: %s", source, one.engine, one.reason)
            reading.refused = refused
        return found.used

    def problems(self) -> list[Problem]:
        """What does not work as it should. Everybody may read it, so engines are named in the log alone."""
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
        """What `/metrics` shows of them."""
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
        """An error of ours must not end the reading of a source."""
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
        """Read a source; returns the seconds until the next time."""
        name = reading.config.id
        try:
            found = await source.read()
            if not found.engines:
                raise SourceError("it names no engine")
        except Exception as error:
            text = str(error) if isinstance(error, SourceError) else type(error).__name__
            if not reading.away:
                log.error("discovery %s does not answer, and its last engines stay: %s", name, text)
            reading.away = text
            return reading.config.interval_s
        if reading.away:
            log.warning("discovery %s is back", name)
        for problem in found.problems:
            if problem not in reading.problems:
                log.error("discovery %s: %s", name, problem)
        reading.away, reading.problems = "", found.problems
        if found.engines != reading.engines:
            reading.engines = found.engines
            self._known = {each: one.engines for each, one in self._readings.items()}
            last_known.save(self._state_dir, self._known)
            self._on_change()
        return found.next_s


def _source(config: DiscoveryConfig, region: str, known: list[dict[str, Any]]) -> Source:
    if config.path is not None:
        return Folder(config.path, config.interval_s, region)
    if config.kind in {"endpointslices", "inferencepool"}:
        from warmroute_proxy.server.discovery.kubernetes import Pool, Slices

        return (Slices if config.kind == "endpointslices" else Pool)(config, region, known)
    from warmroute_proxy.server.discovery.srv import Records

    return Records(config, region)
