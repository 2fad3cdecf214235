"""Reads a config's limits and budgets of tenants, the stores in which proxies share them, and the trace collector."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from warmroute_proxy.core.queue.budget import Budget, Period
from warmroute_proxy.core.queue.quota import ScopeLimits, TenantLimits
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.server.base.config import (
    Config,
    DatabaseConfig,
    LedgerFileConfig,
    ProxyConfig,
    RedisConfig,
    TenantConfig,
    TracingConfig,
)
from warmroute_proxy.server.base.config_bounds import within
from warmroute_proxy.server.base.config_table import Table, nearest, shown
from warmroute_proxy.server.base.secrets import config_key_id

LEDGER_FILE_DAYS: Final = 7
"""How many days the ledger file keeps rows that the database has, since a restored database may lack the newest
rows."""

MAX_USD: Final = 1_000_000_000
_NANO: Final = 1_000_000_000
_KEY_ID: Final = re.compile(r"[a-z]-[0-9a-f]{10}")
_IN_REDIS: Final = ("requests_per_minute", "tokens_per_minute", "requests_at_once")
"""Limits of a budget or a tenant that only Redis can count over several proxies."""
PERIODS: Final[tuple[tuple[Period, str], ...]] = (("day", "usd_per_day"), ("month", "usd_per_month"))


def read_database(ledger: Table, folder: Path) -> DatabaseConfig | None:
    """The database of a table [ledger]; None if the table names no database."""
    dsn_file = ledger.file("dsn_file", folder)
    database = ledger.read(DatabaseConfig, dsn_file=dsn_file or folder)
    if dsn_file is not None:
        return database
    for key in ("keep_days", "key_max_age_s"):
        if ledger.has(key):
            ledger.problem(key, "is for a database, and there is no dsn_file")
    return None


def read_ledger_file(ledger: Table, *, has_database: bool) -> LedgerFileConfig:
    """What the ledger file keeps, by the keys of a table [ledger]."""
    read = ledger.read(LedgerFileConfig)
    follows = read.ledger_file_days is None and has_database
    return replace(read, ledger_file_days=LEDGER_FILE_DAYS) if follows else read


def read_tenant_limits(table: Table) -> TenantLimits | None:
    """The limits of a [[tenant]]; None if it has none."""
    limits = {key: table.integer(key) for key in TenantLimits._fields if key != "cached_weight"}
    weight = _cached_weight(table)
    return TenantLimits(**limits, cached_weight=weight) if any(limits.values()) else None


def read_redis(values: object, folder: Path, problems: list[str]) -> RedisConfig | None:
    """The Redis of a table [redis]; None without the table."""
    if values is None:
        return None
    table = Table(values, "redis", problems)
    made = table.read(RedisConfig, folder)
    table.close()
    return made


def read_tracing(values: object, folder: Path, problems: list[str]) -> TracingConfig | None:
    """The trace collector of a table [tracing]; None without the table: then no request is traced."""
    if values is None:
        return None
    table = Table(values, "tracing", problems)
    made = table.read(TracingConfig, folder)
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        table.problem("endpoint", "needs OpenTelemetry's exporter: pip install 'warmroute[otel]'")
    table.close()
    return made


class BudgetKeys(NamedTuple):
    """The keys of a [[budget]], except those for amounts of USD, which are in `PERIODS`."""

    scope: Scope
    limits: TenantLimits
    warn_share: Annotated[float, within(0.0, 1.0)] = 0.8
    """Fraction of a limit above which responses carry a warning header."""


class ReadBudgets(NamedTuple):
    """What the tables [[budget]] say. `budgets`: one in USD for each period with a limit; `limits`: per-minute limits
    and concurrency limits; `tenants`: as `with_limits` returns them.
    """

    tenants: tuple[TenantConfig, ...]
    budgets: tuple[Budget, ...]
    limits: tuple[ScopeLimits, ...]


def read_budgets(found: object, tenants: tuple[TenantConfig, ...], problems: list[str], *, others: bool) -> ReadBudgets:
    """Read the tables [[budget]]. `others`: a database may have further tenants."""
    budgets: list[Budget] = []
    limits: list[ScopeLimits] = []
    names: dict[str, int] = {}
    if not isinstance(found, list | None):
        problems.append("budget: must be a list of tables, written [[budget]]")
        return ReadBudgets(tenants, (), ())
    for at, values in enumerate(found or ()):
        table = Table(values, f"budget[{at}]", problems).of(BudgetKeys)
        name = table.name("name")
        if name in names:
            table.problem("name", f"{shown(name)} is taken by budget[{names[name]}]")
        names.setdefault(name, at)
        scope = _scope(table, name, None if others else tenants)
        of_table = _usd(table, scope), _limits(table, scope)
        if not any(of_table):
            every = ", ".join((*(key for _, key in PERIODS), *_IN_REDIS))
            table.problem("usd_per_day", f"is missing: a budget has one or more of {every}")
        budgets += of_table[0]
        limits += of_table[1]
        table.close()
    return ReadBudgets(with_limits(tenants, budgets, limits), tuple(budgets), tuple(limits))


def with_limits(
    tenants: Sequence[TenantConfig], budgets: Sequence[Budget], limits: Sequence[ScopeLimits]
) -> tuple[TenantConfig, ...]:
    """The tenants. A tenant without limits gets empty limits if a budget may apply to its requests.

    Admission checks budgets only for requests of tenants with limits. A key may belong to any tenant, so a budget for
    keys gives limits to all tenants.
    """
    scopes = [budget.scope for budget in budgets] + [of.scope for of in limits]
    held = {name for scope in scopes for name in scope.tenants}
    of_keys = any(scope.keys for scope in scopes)
    return tuple(
        [
            replace(each, limits=each.limits or TenantLimits()) if of_keys or each.name in held else each
            for each in tenants
        ]
    )


def _scope(table: Table, name: str, of_config: Sequence[TenantConfig] | None) -> Scope:
    """Whose use a [[budget]] limits. `of_config`: the tenants to check its names against; None if a database may have
    further tenants and keys.
    """
    tenants, keys = table.names("tenants", ()), table.names("keys", ())
    if tenants and keys:
        table.problem("tenants", "and keys are both there: a budget is of one or the other")
    if not tenants and not keys:
        table.problem("tenants", "is missing, and keys too: whose budget it is")
    known = None if of_config is None else [tenant.name for tenant in of_config]
    known_keys = None if of_config is None else [config_key_id(each) for of in of_config for each in of.key_sha256]
    for tenant in tenants:
        if known is not None and tenant not in known:
            table.problem("tenants", f"{shown(tenant)} is not a [[tenant]]{nearest(tenant, known)}")
    for key_id in keys:
        if not _KEY_ID.fullmatch(key_id):
            problem = 'is not the id of a key, such as "k-0123456789" (`warmroute keys list` shows them)'
            table.problem("keys", problem if key_id.startswith("wr-") else f"{shown(key_id)} {problem}")
        elif known_keys is not None and key_id not in known_keys:
            problem = 'is not a key of a [[tenant]]: the id is "c-" and the first ten digits of its key_sha256'
            table.problem("keys", f"{shown(key_id)} {problem}{nearest(key_id, known_keys)}")
    return Scope(name, tenants, keys)


def _usd(table: Table, scope: Scope) -> list[Budget]:
    warn_share = table.number("warn_share")
    limits = [(period, _nanousd(table, key)) for period, key in PERIODS]
    return [Budget(scope, period, limit, warn_share) for period, limit in limits if limit is not None]


def _limits(table: Table, scope: Scope) -> list[ScopeLimits]:
    limits = {key: table.integer(key) for key in _IN_REDIS}
    weight, warn_share = _cached_weight(table), table.number("warn_share")
    if not any(limits.values()):
        return []
    return [ScopeLimits(scope, TenantLimits(**limits, cached_weight=weight), warn_share)]


def _cached_weight(table: Table) -> float:
    """The fraction of a cached token that counts against `tokens_per_minute`. A table without `tokens_per_minute` must
    not have `cached_weight`.
    """
    weight = table.number("cached_weight")
    if table.has("cached_weight") and not table.has("tokens_per_minute"):
        table.problem("cached_weight", "is for tokens_per_minute, which is missing: add it, or leave cached_weight out")
    return weight


def _nanousd(table: Table, key: str) -> int | None:
    """An amount in billionths of a USD; None if the key is missing, or its value is not an amount."""
    text = table.text(key, "")
    if not text:
        return None
    try:
        amount = Decimal(text) * _NANO
    except ArithmeticError:  # also an exponent that Decimal cannot hold
        amount = Decimal("NaN")
    if not amount.is_finite() or amount != amount.to_integral_value() or not 0 < amount <= MAX_USD * _NANO:
        table.problem(key, f'{shown(text)} is not an amount above 0 of USD, written like "12.50"')
        return None
    return int(amount)


_ALONE: Final = "or proxy.counts_alone = true, if each proxy may spend it whole"


def check_counted(
    proxy: ProxyConfig,
    regions: Collection[str],
    read: ReadBudgets,
    *,
    has_database: bool,
    has_redis: bool,
    problems: list[str],
) -> None:
    """Check that limits which several proxies share have a store. Amounts of USD need the database if there are other
    proxies or regions. Per-minute and concurrency limits need Redis if the region has other proxies.

    `regions`: the names of all regions.
    """
    if proxy.counts_alone:
        return
    counted = [] if has_database else read.budgets
    if proxy.other_proxies and counted:
        names = _named(budget.name for budget in counted)
        problems.append(f"budget: each proxy would spend {names}: it needs dsn_file of [ledger], {_ALONE}")
    elif names := _named(budget.name for budget in counted if _in_several(budget.scope, read.tenants, regions)):
        problems.append(f"budget: each region would spend {names}: it needs dsn_file of [ledger], {_ALONE}")
    if has_redis or not proxy.other_proxies:
        return
    if read.limits:
        names = _named(of.name for of in read.limits)
        problems.append(f"budget: each proxy would count the limits of {names} alone: they need [redis], {_ALONE}")
    if tenants := limited(read.tenants):
        problems.append(
            f"tenant: each proxy would count the limits of {_named(tenants)} alone: they need [redis], {_ALONE}"
        )


def _in_several(scope: Scope, tenants: Iterable[TenantConfig], regions: Collection[str]) -> bool:
    """Whether turns under a budget may be served in several regions."""
    mine = [of for of in tenants if any(scope.holds(of.name, config_key_id(key)) for key in of.key_sha256)]
    return len({region for tenant in mine for region in regions if tenant.may_be_served(region)}) > 1


def limited(tenants: Iterable[TenantConfig]) -> list[str]:
    return [tenant.name for tenant in tenants if tenant.limits is not None and _is_shared(tenant.limits)]


def counts_limits_alone(config: Config) -> bool:
    """Whether this proxy is one of several, but counts tenants' limits by itself because the config names no Redis.
    False if the config orders this by `counts_alone`.
    """
    proxy = config.proxy
    return bool(proxy.other_proxies and not proxy.counts_alone and config.redis is None and limited(config.tenants))


def _is_shared(limits: TenantLimits) -> bool:
    return any(getattr(limits, key) is not None for key in _IN_REDIS)


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))[:8])
