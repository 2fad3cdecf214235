"""Reads tenants of the database by the rules of the config's [[tenant]], and adds them to a config. Does no I/O.

The models and regions of a tenant are checked when an operator changes the tenant (`checked_tenant`), but not when a
proxy reads it (`with_stored`), since that proxy may have other models and regions. That tenants cannot read each
other's cache is checked each time.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from warmroute_proxy.server.base.config import Config, EngineConfig, TenantConfig
from warmroute_proxy.server.base.config_file import check_tenants, may_reach, read_tenant
from warmroute_proxy.server.base.config_stores import with_limits
from warmroute_proxy.server.base.config_table import Table

MAX_SETTINGS_BYTES: Final = 65_536
NOT_STORED: Final = ("name", "key_sha256")
"""Members of a [[tenant]] that are not settings: the name is the record's id, and API keys are separate records."""


class WrongSettings(ValueError):
    """A [[tenant]] cannot have these settings. `problems`: one line for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def decode_tenant(name: str, settings: Mapping[str, Any]) -> TenantConfig:
    """Make a tenant from a record of the database. Raises: WrongSettings."""
    problems = [f"{key}: is not a setting of a tenant in the database" for key in NOT_STORED if key in settings]
    tenant = read_tenant(Table({**settings, "name": name}, "tenant", problems), needs_key=False)
    if problems:
        raise WrongSettings([problem.removeprefix("tenant.") for problem in problems])
    return tenant


def checked_tenant(name: str, settings: Mapping[str, Any], config: Config, others: Mapping[str, TenantConfig]) -> None:
    """Check the new settings of a tenant. `others`: all tenants of the database. Raises: WrongSettings."""
    tenant = decode_tenant(name, settings)
    problems: list[str] = []
    check_tenants((tenant,), config.regions, config.model_by_name, problems)
    problems = [problem.removeprefix("tenant[0].") for problem in problems]
    if name not in config.tenant_by_name:
        before = with_stored(config, others)[1]
        after = with_stored(config, {**others, name: tenant})[1]
        problems += [f"tenant {other}: {why}" for other, why in after.items() if other not in before]
    if problems:
        raise WrongSettings(problems)


def with_stored(config: Config, stored: Mapping[str, TenantConfig]) -> tuple[Config, dict[str, str]]:
    """Add the database's tenants to a config. Returns the config, and for tenants that were left out the reasons."""
    unsalted = [engine for engine in config.engines if engine.kind == "openai" and not engine.provider.salted]
    groups = {engine.id: _groups(engine, config.tenants) for engine in unsalted}
    tenants, problems = list(config.tenants), dict[str, str]()
    for name in sorted(stored.keys() - config.tenant_by_name.keys()):
        tenant = stored[name]
        reached = [engine.id for engine in unsalted if may_reach(tenant, engine)]
        shared = [id_ for id_ in reached if groups[id_] - {tenant.share_group}]
        if shared:
            others = ", ".join(sorted(groups[shared[0]] - {tenant.share_group}))
            problems[name] = (
                f"engine {shared[0]} takes no cache salt, and tenants of {others} use it; keep {name} from it by models"
                " or regions, or put it into that share_group"
            )
            continue
        for id_ in reached:
            groups[id_].add(tenant.share_group)
        tenants.append(tenant)
    limited = with_limits(tenants, config.budgets, config.group_limits)
    return replace(config, tenants=limited, tenant_by_name={each.name: each for each in limited}), problems


def _groups(engine: EngineConfig, tenants: tuple[TenantConfig, ...]) -> set[str]:
    """The share groups of the tenants that may use an engine."""
    return {tenant.share_group for tenant in tenants if may_reach(tenant, engine)}
