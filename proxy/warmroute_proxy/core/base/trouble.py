"""The troubles that `/ready` can report. Metrics, alerts and runbooks use the same names."""

from enum import StrEnum
from typing import NamedTuple


class Trouble(StrEnum):
    """Why a proxy is not ready, or what does not work while it serves requests."""

    SHUTTING_DOWN = "shutting_down"
    LEDGER_UNWRITABLE = "ledger_unwritable"
    NO_ENGINE = "no_engine"
    ALL_ENGINES_DRAIN = "all_engines_drain"

    DATABASE_AWAY = "database_away"
    DATABASE_OLD_SCHEMA = "database_old_schema"
    DATABASE_NEW_SCHEMA = "database_new_schema"
    LEDGER_FILE_OLD = "ledger_file_old"
    BUDGET_FILE_UNUSABLE = "budget_file_unusable"
    REDIS_AWAY = "redis_away"
    TENANTS_LEFT_OUT = "tenants_left_out"
    BUDGETS_WITHOUT_TENANTS = "budgets_without_tenants"
    CONFIG_REFUSED = "config_refused"
    DISCOVERY_AWAY = "discovery_away"
    DISCOVERED_ENGINES_UNUSED = "discovered_engines_unused"
    LIMITS_COUNTED_ALONE = "limits_counted_alone"
    LARGE_BODIES_WAIT = "large_bodies_wait"


class Problem(NamedTuple):
    """A trouble that a proxy has now. `text`: what `/ready` says; it names no addresses, since anybody may read it."""

    trouble: Trouble
    text: str
