"""Which of the engines that were found are used: those that a config with them would be good with.

The config goes before what is found, an earlier source before a later one. An engine whose id or URL is taken, or that
has a problem of its own, is left out, and its source has that problem; the others of the source are used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from warmroute_proxy.server.base.config import Config, EngineConfig
from warmroute_proxy.server.base.config_engine import read_engine
from warmroute_proxy.server.base.config_file import check_engine_models, check_unsalted
from warmroute_proxy.server.base.config_table import Table, shown
from warmroute_proxy.server.base.secrets import SecretError, bearer


class Refused(NamedTuple):
    """An engine that is not used, and why; the reason may hold addresses."""

    engine: str
    reason: str


class Candidates(NamedTuple):
    """The engines that are used beside those of the config, and by source the others."""

    used: list[EngineConfig]
    refused: dict[str, list[Refused]]


def candidates(config: Config, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Candidates:
    """`found`: by source, in the order of the config, the keys of each engine."""
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
                continue  # as in a config, which proxies of several regions may share
            for key, value in (("id", engine.id), ("url", engine.url)):
                if value in taken:
                    own.append(f"{key} {shown(value)} is taken by {taken[value]}")
            if own:
                refused[source].append(Refused(engine.id, "; ".join(own)))
                continue
            taken[engine.id] = taken[engine.url] = source
            used.append(engine)
    return Candidates(used, refused)


def _read(
    values: Mapping[str, Any], config: Config, keys_within: tuple[Path, ...], problems: list[str]
) -> EngineConfig:
    """`keys_within`: where its key files must be."""
    engine = replace(read_engine(Table(dict(values), "engine", problems), {}, Path()), keys_within=keys_within)
    check_engine_models((engine,), config.models, problems)
    check_unsalted((engine,), config.tenants, problems)
    for file in (engine.key_file, engine.admin_key_file):
        try:
            bearer(file, keys_within)
        except SecretError as error:
            problems.append(str(error))
    return engine
