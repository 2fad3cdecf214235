"""What else must hold of a config that is to be in force: it needs files, prices and what waits for a restart.

Each process checks it before it applies a file, and of several processes the supervisor before it accepts one.
"""

import time
from collections.abc import Iterator

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import check_memory
from warmroute_proxy.server.base.secrets import SecretError, bearer
from warmroute_proxy.server.stores.prices import Prices, kept_prices


def problems_of(config: Config, prices: Prices) -> list[str]:
    """The problems of a config as it would be in force. `prices`: with the books of the database."""
    problems: list[str] = []
    check_memory(config.limits, config.engines, problems)
    problems = [f"{each} (body_memory_bytes waits for a restart)" for each in problems]
    return [*problems, *prices.problems(config.models), *_unreadable_keys(config)]


def problems_for_processes(config: Config) -> list[str]:
    """The same before a process has it: with the books that processes have read of the database last."""
    return problems_of(config, kept_prices(config, time.time))


def _unreadable_keys(config: Config) -> Iterator[str]:
    for engine in config.own_engines:
        for file in (engine.key_file, engine.admin_key_file):
            try:
                bearer(file)
            except SecretError as error:
                yield f"engine {engine.id}: {error}"
