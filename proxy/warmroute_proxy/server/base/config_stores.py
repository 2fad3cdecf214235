"""Reads what a config says of what tenants may use, and of the stores in which proxies share that."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

from warmroute_proxy.core.queue.budget import Budget, Period
from warmroute_proxy.core.queue.quota import TenantLimits
from warmroute_proxy.server.base.config import DatabaseConfig, TenantConfig
from warmroute_proxy.server.base.config_table import Table, nearest, shown

MAX_USD: Final = 1_000_000_000
_NANO: Final = 1_000_000_000
_PERIODS: Final[tuple[tuple[Period, str], ...]] = (("day", "usd_per_day"), ("month", "usd_per_month"))


def read_database(ledger: Table, folder: Path) -> DatabaseConfig | None:
    """The database of a table [ledger]; None where it names none."""
    dsn_file, keep_days = ledger.text("dsn_file", ""), ledger.integer("keep_days", None, 1, 36_500)
    key_max_age_s = ledger.number("key_max_age_s", 3_600.0, 2.0, 31_536_000.0)
    if not dsn_file:
        for key in ("keep_days", "key_max_age_s"):
            if ledger.has(key):
                ledger.problem(key, "is for a database, and there is no dsn_file")
        return None
    return DatabaseConfig(folder / dsn_file, keep_days, key_max_age_s)


def read_tenant_limits(table: Table) -> TenantLimits | None:
    """The limits of a [[tenant]]; None where it has none."""
    rpm, tpm, requests, tokens = [table.integer(key, None, 1, 10**12) for key in TenantLimits._fields[:-1]]
    weight = table.number("cached_weight", 1.0, 0.0, 1.0)
    if not any((rpm, tpm, requests, tokens)):
        return None
    return TenantLimits(rpm, tpm, requests, tokens, weight)


def read_redis(values: object, folder: Path, problems: list[str]) -> Path | None:
    """The file with the address of a table [redis]; None where there is none."""
    if values is None:
        return None
    table = Table(values, "redis", problems)
    url_file = table.text("url_file")
    table.close()
    return folder / url_file


def read_budgets(
    found: object, tenants: tuple[TenantConfig, ...], problems: list[str], *, others: bool
) -> tuple[tuple[TenantConfig, ...], tuple[Budget, ...]]:
    """The budgets of the tables [[budget]], one for each period that has a limit, and the tenants; those of a budget
    have limits, so that their requests go through admission. `others`: there may be tenants in a database.
    """
    budgets: list[Budget] = []
    names: dict[str, int] = {}
    if not isinstance(found, list | None):
        problems.append("budget: must be a list of tables, written [[budget]]")
        return tenants, ()
    for at, values in enumerate(found or ()):
        table = Table(values, f"budget[{at}]", problems)
        name = table.name("name")
        if name in names:
            table.problem("name", f"{shown(name)} is taken by budget[{names[name]}]")
        names.setdefault(name, at)
        budgets += _budgets(table, name, None if others else [tenant.name for tenant in tenants])
        table.close()
    spend = {tenant for budget in budgets for tenant in budget.tenants}
    limited = [replace(each, limits=each.limits or TenantLimits()) if each.name in spend else each for each in tenants]
    return tuple(limited), tuple(budgets)


def _budgets(table: Table, name: str, known: Sequence[str] | None) -> list[Budget]:
    tenants = table.names("tenants", ())
    if not tenants:
        table.problem("tenants", "is missing: whose budget it is")
    for tenant in tenants:
        if known is not None and tenant not in known:
            table.problem("tenants", f"{shown(tenant)} is no [[tenant]]{nearest(tenant, known)}")
    warn_share = table.number("warn_share", 0.8, 0.0, 1.0)
    limits = [(period, key, _nanousd(table, key)) for period, key in _PERIODS]
    if not any(table.has(key) for _, key in _PERIODS):
        table.problem("usd_per_day", "is missing, and usd_per_month too: a budget has one of them, or both")
    return [Budget(name, tenants, period, limit, warn_share) for period, _, limit in limits if limit is not None]


def _nanousd(table: Table, key: str) -> int | None:
    """An amount of USD in billionths, or None where there is none, or it cannot be read."""
    text = table.text(key, "")
    if not text:
        return None
    try:
        amount = Decimal(text) * _NANO
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount != amount.to_integral_value() or not 0 < amount <= MAX_USD * _NANO:
        table.problem(key, f'{shown(text)} is not an amount above 0 of USD, written like "12.50"')
        return None
    return int(amount)
