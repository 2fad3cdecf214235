"""Names the budgets and limits that several proxies of a region would each spend whole."""

from collections.abc import Iterable
from typing import Final

from warmroute_proxy.core.queue.quota import TenantLimits
from warmroute_proxy.server.base.config import Config, ProxyConfig, TenantConfig
from warmroute_proxy.server.base.config_stores import ReadBudgets

_ALONE: Final = "or proxy.counts_alone = true, if each of the region's proxies may spend it whole"
_IN_REDIS: Final = ("requests_per_minute", "tokens_per_minute", "requests_at_once")
"""Limits of a tenant that only Redis counts over several proxies."""


def check_counted(
    proxy: ProxyConfig, read: ReadBudgets, *, has_database: bool, has_redis: bool, problems: list[str]
) -> None:
    """Of a config with `other_proxies`: amounts of USD need the database, and limits by the minute or at once Redis."""
    if not proxy.other_proxies or proxy.counts_alone:
        return
    if read.budgets and not has_database:
        names = _named(budget.name for budget in read.budgets)
        problems.append(f"budget: each proxy would spend {names}: it needs dsn_file of [ledger], {_ALONE}")
    if has_redis:
        return
    if read.limits:
        names = _named(of.name for of in read.limits)
        problems.append(f"budget: each proxy would count the limits of {names} alone: they need [redis], {_ALONE}")
    if tenants := limited(read.tenants):
        problems.append(
            f"tenant: each proxy would count the limits of {_named(tenants)} alone: they need [redis], {_ALONE}"
        )


def limited(tenants: Iterable[TenantConfig]) -> list[str]:
    return [tenant.name for tenant in tenants if tenant.limits is not None and _is_shared(tenant.limits)]


def counts_limits_alone(config: Config) -> bool:
    """Whether tenants have limits that this proxy counts alone, beside others, though its config does not say so."""
    proxy = config.proxy
    return bool(proxy.other_proxies and not proxy.counts_alone and config.redis is None and limited(config.tenants))


def _is_shared(limits: TenantLimits) -> bool:
    return any(getattr(limits, key) is not None for key in _IN_REDIS)


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))[:8])
