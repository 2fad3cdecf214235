"""The state that proxies share in Redis: limits per minute and at once, idempotency markers, used forward tokens.

A limit at once is one on concurrent requests. A forward token lets a proxy forward one request to another region. While
Redis is away, each process counts limits alone and knows only its own idempotency keys, and each proxy knows only the
forward tokens that it has seen itself. The Redis client is imported only if the config names a Redis.
"""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmroute_proxy.core.base.trouble import Problem, Trouble
from warmroute_proxy.core.queue.budget import Budget, Unit
from warmroute_proxy.core.queue.quota import ScopeLimits
from warmroute_proxy.core.queue.slots import SlotLimit
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Config, RedisConfig
from warmroute_proxy.server.base.metrics import GaugeRow, Labels, Metrics
from warmroute_proxy.server.base.secrets import SPECIAL, SecretError, load_redis_url
from warmroute_proxy.server.ledger.schema import LedgerError
from warmroute_proxy.server.stores.budgets import Budgets
from warmroute_proxy.server.stores.leases import SharedSlots

if TYPE_CHECKING:
    from warmroute_proxy.server.redis.calls import RedisCalls
    from warmroute_proxy.server.redis.markers import RedisMarkers, RedisNonces

AWAY: Final = (
    "redis away: limits by the minute and at once, and idempotency keys, are those of each process;"
    " used forward tokens are those of each proxy"
)


class SharedLimits:
    """This process's part of the limits and other state that all proxies share."""

    def __init__(
        self,
        windows: Budgets,
        slots: SharedSlots,
        calls: "RedisCalls | None" = None,
        markers: "RedisMarkers | None" = None,
        nonces: "RedisNonces | None" = None,
        url_file: Path | None = None,
    ) -> None:
        """`url_file`: the file with the address of Redis."""
        self.windows = windows
        self.slots = slots
        self.markers = markers
        self.nonces = nonces
        self.url_file = url_file
        self._calls = calls

    @classmethod
    def none(cls) -> "SharedLimits":
        """The object for a proxy without Redis, which has no limits."""
        return cls(Budgets((), None, Metrics(), time.time), SharedSlots((), None, time.monotonic))

    @classmethod
    def opened(cls, config: Config, redis: RedisConfig, metrics: Metrics) -> "SharedLimits":
        """Open the limits of a config. Raises: SecretError; LedgerError, if the Redis client is not installed."""
        url = load_redis_url(redis.url_file)
        try:
            from warmroute_proxy.server.redis.calls import RedisCalls
            from warmroute_proxy.server.redis.limits import RedisSlots, RedisWindows
            from warmroute_proxy.server.redis.markers import RedisMarkers, RedisNonces
        except ModuleNotFoundError as error:
            raise LedgerError(
                f"{error.name} is missing: install warmroute[redis] for limits over several proxies"
            ) from None
        try:
            calls = RedisCalls(url, redis.timeout_s)
        except ValueError:  # the error may quote a part of a password
            raise _no_address(redis.url_file) from None
        limits, process = config.scope_limits(), secrets.token_hex(8)
        windows = Budgets(_by_minute(limits), RedisWindows(calls), metrics, time.time)
        slots = SharedSlots(_at_once(limits), RedisSlots(calls, process), time.monotonic)
        markers = RedisMarkers(calls, process, config.proxy.region)
        return cls(windows, slots, calls, markers, RedisNonces(calls), redis.url_file)

    @property
    def hold(self) -> bool:
        return self._calls is not None

    @property
    def away(self) -> bool:
        """Whether Redis has not answered recently."""
        return self._calls is not None and self._calls.away

    def read_url(self) -> None:
        """Read the address of Redis from its file again. Raises: SecretError; the old address then stays in use."""
        if self._calls is not None and self.url_file is not None:
            try:
                self._calls.move_to(load_redis_url(self.url_file))
            except SecretError:
                raise
            except ValueError:  # the error may quote a part of a password, as in `opened`
                raise _no_address(self.url_file) from None

    def replace(self, config: Config) -> None:
        if self._calls is not None:
            limits = config.scope_limits()
            self.windows.replace(_by_minute(limits))
            self.slots.replace(_at_once(limits))

    def problems(self) -> list[Problem]:
        return [Problem(Trouble.REDIS_AWAY, AWAY)] if self.away else []

    def gauges(self) -> list[GaugeRow]:
        """The gauges for `/metrics`."""
        if self._calls is None:
            return []
        rows: list[GaugeRow] = [(declared.STORE_UP, (("store", "redis"),), float(not self.away))]
        for lease in self.windows.leases:
            if lease.left is not None and lease.budget.scope.kind == "budget":
                label: Labels = (("budget", lease.budget.name), ("limit", lease.budget.reason))
                rows.append((declared.LIMIT_LEFT, label, float(lease.left + max(0, lease.free))))
        return rows

    def sweep(self) -> None:
        """Ask Redis the due questions, and renew the markers of this process. Called a few times a second."""
        self.windows.sweep()
        self.slots.sweep()
        if self.markers is not None:
            self.markers.sweep()


def _no_address(file: Path) -> SecretError:
    return SecretError(f"{file} holds no address of a Redis: {SPECIAL}")


def _by_minute(limits: Sequence[ScopeLimits]) -> list[Budget]:
    found: list[Budget] = []
    for scope, of, warn_share in limits:
        by_unit: tuple[tuple[Unit, int | None], ...] = (
            ("requests", of.requests_per_minute),
            ("tokens", of.tokens_per_minute),
        )
        for unit, limit in by_unit:
            if limit is not None:
                found.append(Budget(scope, "minute", limit, warn_share, unit, of.cached_weight))
    return found


def _at_once(limits: Sequence[ScopeLimits]) -> list[SlotLimit]:
    return [
        SlotLimit(scope, of.requests_at_once, warn_share)
        for scope, of, warn_share in limits
        if of.requests_at_once is not None
    ]
