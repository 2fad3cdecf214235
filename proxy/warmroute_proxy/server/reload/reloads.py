"""Replaces the config of a running process, as a whole: a file with a problem changes nothing.

A new config is checked like the one at the start, and an object is made for each engine that would join, to read the
engine's key files. Only then is the config applied, in one step without waiting, so that no request is read while half
of it is in force. Requests under way keep the prices of their model and the limits of their tenant.

The `appliers` are functions that pass a new config to each part that uses it. They cannot fail.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_difference import ConfigChange, compare, merged, usd_budgets_live
from warmroute_proxy.server.base.config_file import ConfigError, check_memory
from warmroute_proxy.server.base.config_source import ConfigSource, LiveConfig, ReadConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.secrets import SecretError, bearer, load_secret
from warmroute_proxy.server.discovery.discovery import Discovery
from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.reload.membership import Membership
from warmroute_proxy.server.stores.directory.access import Access
from warmroute_proxy.server.stores.price_table import kept_prices
from warmroute_proxy.server.stores.prices import Prices

log = logging.getLogger(__name__)

Applier = Callable[[Config], None]


def problems_of(config: Config, prices: Prices) -> list[str]:
    """Why a valid config cannot be put in force: unreadable secret files, missing prices, too little memory.

    Each process checks this before it applies a file. With several processes, the supervisor also checks it before it
    accepts a file. `prices`: includes the price books of the database.
    """
    problems: list[str] = []
    check_memory(config.limits, config.engines, problems)
    problems = [f"{each} (body_memory_bytes waits for a restart)" for each in problems]
    return [*problems, *prices.problems(config.models), *_unreadable(config)]


def problems_for_processes(config: Config) -> list[str]:
    """`problems_of` for the supervisor, with the price books that its processes last read from the database."""
    return problems_of(config, kept_prices(config, time.time))


def _unreadable(config: Config) -> Iterator[str]:
    try:
        load_secret(config.secret_file, os.environ)
    except SecretError as error:
        yield str(error)
    for engine in config.own_engines:
        for file in (engine.key_file, engine.admin_key_file):
            try:
                bearer(file)
            except SecretError as error:
                yield f"engine {engine.id}: {error}"


class Difference(NamedTuple):
    """A checked config, and what it would change."""

    read: ReadConfig
    config: Config
    """The new config, without the changes that wait for a restart."""

    changes: list[ConfigChange]
    joining: dict[str, Engine]

    @property
    def waiting(self) -> list[str]:
        """The changes that wait for a restart: `table.key`, `table name.key` or `table name`."""
        found: list[str] = []
        for change in self.changes:
            if change.waits_for_restart:
                named = f"{change.table} {change.name}".rstrip()
                found += [f"{named}.{key}" for key in change.keys] or [named]
        return found


class Reloads:
    """Applies configs. `running`: the config with which the process started, and the content of its file."""

    def __init__(
        self,
        running: ReadConfig,
        live: LiveConfig,
        state_dir: Path,
        membership: Membership,
        appliers: list[Applier],
        prices: Prices,
        metrics: Metrics,
        access: Access | None,
    ) -> None:
        """`access`: the tenants in the database; None without a database."""
        self._running = running
        self._usd_live = usd_budgets_live(running.config)
        self._live = live
        self.discovery = Discovery(state_dir, self.engines_found)
        self._membership = membership
        self.appliers = appliers
        self._prices = prices
        self._metrics = metrics
        self._access = access
        self.problems: list[str] = []
        """The problems of the last file, if it was refused; empty if the file is in force."""

        if access is not None:
            access.on_tenants.append(lambda _config: self.engines_found())

    @property
    def digest(self) -> str:
        return self._running.digest

    def begin(self) -> None:
        """Begin to read the sources of engines. Engines that the sources named before a restart join now, unless they
        are there already.
        """
        self.discovery.replace(self._live.now)
        self.engines_found()

    def sweep(self) -> None:
        """Let engines leave and join if they can by now. Called a few times a second."""
        self._membership.sweep()

    def look(self, source: ConfigSource) -> Difference:
        """Read and check a file, and say what it would change. Raises: ConfigError."""
        read = source.read()
        changes = compare(self._running.config, read.config, self._usd_live)
        config = merged(self._live.now, read.config, self._usd_live)
        problems = problems_of(config, self._prices)
        if self._access is not None:
            problems += self._access.newly_left_out(config)
        if problems:
            raise ConfigError(str(source.path), problems)
        try:
            joining = self._membership.make(config.own_engines)
        except SecretError as error:
            raise ConfigError(str(source.path), [str(error)]) from None
        return Difference(read, config, changes, joining)

    def apply(self, found: Difference) -> None:
        config = found.config if self._access is None else self._access.replace(found.config)
        for apply in self.appliers:
            apply(config)
        self._live.replace(config)
        self.discovery.replace(config)
        self._use_engines(found.joining)
        self._running = found.read._replace(config=merged(self._running.config, found.read.config, self._usd_live))
        self.problems = []
        self._metrics.add(declared.RELOADS_TOTAL, 1, (("outcome", "applied"),))
        _log_applied(found)

    def reload(self, source: ConfigSource) -> None:
        """Apply a file if it differs from the config in force. A file with problems is logged and not applied."""
        try:
            found = self.look(source)
        except ConfigError as error:
            self.refused(error)
            return
        self.problems = []
        if found.changes or found.read.digest != self.digest:
            self.apply(found)

    def engines_found(self) -> None:
        """Use the engines that the sources name now. Called after a source has changed, or the tenants have: tenants
        decide whether an engine is valid.
        """
        if self._live.now.discoveries:
            self._use_engines({})

    def _use_engines(self, joining: dict[str, Engine]) -> None:
        """Use the engines of the config and the discovered engines. `joining`: new engines that were made already."""
        own = self._live.now.own_engines
        made, found = dict(joining), []
        for engine in self.discovery.engines(self._live.now):
            try:
                made |= self._membership.make([engine])
                found.append(engine)
            except SecretError as error:  # the engine's key file has just been removed
                log.error("engine %s does not join: %s", engine.id, error)
        self._membership.replace([*own, *found], made)

    def refused(self, error: ConfigError) -> None:
        self.problems = error.problems
        self._metrics.add(declared.RELOADS_TOTAL, 1, (("outcome", "refused"),))
        log.error("the config is not applied, and the one before stays in force: %s", error)


def _log_applied(found: Difference) -> None:
    log.warning("config %s is in force: %d changes", found.read.digest, len(found.changes))
    for change in found.changes:
        log.info("config: %s %s %s (%s)", change.table, change.name, change.kind.value, ", ".join(change.keys))
    if found.waiting:
        log.warning("these changes of the config wait for a restart: %s", ", ".join(found.waiting))
