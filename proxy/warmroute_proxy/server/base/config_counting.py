"""Names the budgets and limits that several proxies, of a region or of several, would each spend whole."""

from collections.abc import Collection, Iterable
from typing import Final

from warmroute_proxy.core.queue.quota import TenantLimits
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.server.base.config import Config, ProxyConfig, TenantConfig
from warmroute_proxy.server.base.config_stores import ReadBudgets
from warmroute_proxy.server.base.secrets import config_key_id

_ALONE: Final = "or proxy.counts_alone = true, if each proxy may spend it whole"
_IN_REDIS: Final = ("requests_per_minute", "tokens_per_minute", "requests_at_once")
"""Limits of a tenant that only Redis counts over several proxies."""


def check_counted(
    proxy: ProxyConfig,
    regions: Collection[str],
    read: ReadBudgets,
    *,
    has_database: bool,
    has_redis: bool,
    problems: list[str],
) -> None:
    """Beside other proxies or regions, amounts of USD need the database; beside other proxies of the region, limits by
    the minute or at once need Redis. `regions`: the names of all.
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
    """Whether the turns that a budget is for may be served in several regions."""
    mine = [of for of in tenants if any(scope.holds(of.name, config_key_id(key)) for key in of.key_sha256)]
    return len({region for tenant in mine for region in regions if tenant.may_be_served(region)}) > 1


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
