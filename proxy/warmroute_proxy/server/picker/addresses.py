"""Finds the addresses of engines as a gateway knows them, `ip:port`. The system's resolver looks up host names."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Final

from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.engines.engines import Engines

log = logging.getLogger(__name__)

RESOLVE_EVERY_S: Final = 30.0
RESOLVE_TIMEOUT_S: Final = 5.0
MAX_UNKNOWN: Final = 1024  # how many unknown addresses are logged


class Addresses:
    def __init__(self, engines: Engines, clock: Callable[[], float]) -> None:
        self._engines = engines
        self._clock = clock
        self._resolved: dict[str, str] = {}  # IP addresses, by host name
        self._failed: set[str] = set()  # host names whose last look-up failed
        self._unknown: set[str] = set()  # unknown addresses that were logged
        self._resolved_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def of(self, engine: Engine) -> str | None:
        """The address of an engine; None if its host name was never resolved."""
        host = _literal(engine.upstream.host) or self._resolved.get(engine.upstream.host)
        return None if host is None else f"{host}:{engine.upstream.port}"

    def engine_at(self, address: str) -> Engine | None:
        return next((engine for engine in self._engines.by_id.values() if self.of(engine) == address), None)

    def excluded(self, allowed: frozenset[str] | None) -> frozenset[str]:
        """The workers whose address is unknown or not in `allowed`. If `allowed` is None, all addresses are allowed."""
        return frozenset(
            worker.id
            for engine in self._engines.by_id.values()
            if (address := self.of(engine)) is None or (allowed is not None and address not in allowed)
            for worker in engine.workers()
        )

    def has_eligible(self, allowed: frozenset[str], model: str) -> bool:
        """Whether an engine that serves `model`, healthy or not, has one of the `allowed` addresses."""
        return any(
            self.of(engine) in allowed for engine in self._engines.by_id.values() if engine.config.models & {model, "*"}
        )

    def sweep(self) -> None:
        """Resolve all host names every `RESOLVE_EVERY_S`, and whenever there is a new one."""
        names = self._names()
        due = self._clock() - self._resolved_s > RESOLVE_EVERY_S
        new = not names <= self._resolved.keys() | self._failed
        if names and self._task is None and (due or new):
            self._task = asyncio.get_running_loop().create_task(self.resolve(names))
            self._task.add_done_callback(self._ended)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    def _names(self) -> set[str]:
        hosts = {engine.upstream.host for engine in self._engines.by_id.values()}
        return {host for host in hosts if _literal(host) is None}

    async def resolve(self, names: Iterable[str] | None = None) -> None:
        """Resolve `names`, or all host names. A name that cannot be resolved keeps its last address."""
        self._resolved_s = self._clock()
        await asyncio.gather(*map(self._resolve_one, self._names() if names is None else names))

    async def _resolve_one(self, name: str) -> None:
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            if name not in self._failed:
                log.warning("the host name %s of an engine does not resolve: %s", name, type(error).__name__)
            self._failed.add(name)
            return
        self._failed.discard(name)
        by_family = {family: str(address[0]) for family, _, _, _, address in reversed(found)}
        address = by_family.get(socket.AF_INET) or next(iter(by_family.values()))  # IPv4 if there is one
        self._resolved[name] = _literal(address) or address

    def log_unknown(self, address: str) -> None:
        """Log that an engine that is not in the config has answered, once for each address."""
        if address not in self._unknown and len(self._unknown) < MAX_UNKNOWN:
            self._unknown.add(address)
            log.warning("an engine has answered at %s that is not in the config: its requests name no worker", address)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _literal(host: str) -> str | None:
    """An IP address as it is written before a port, with IPv6 in brackets; None for a host name."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return f"[{found}]" if found.version == 6 else str(found)
