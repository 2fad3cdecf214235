"""`warmroute ledger`: makes or brings up to date the tables of the database that a config names; compares receipts."""

import sys
from argparse import Namespace

from warmroute_cli.installed import missing
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.secrets import SecretError, load_dsn

NEEDED = ("alembic", "asyncpg", "sqlalchemy")


def run(arguments: Namespace) -> int:
    """Do what is asked. 0: done, 1: a difference is beyond the tolerance, 2: not done."""
    if arguments.action == "reconcile":
        from warmroute_cli.reconcile import reconcile

        return reconcile(arguments)
    return _migrate(arguments)


def _migrate(arguments: Namespace) -> int:
    if hint := missing(NEEDED, "postgres"):
        print(f"warmroute: {hint}", file=sys.stderr)
        return 2
    from warmroute_proxy.server.stores.database import REVISIONS
    from warmroute_proxy.server.stores.migrate import migrate
    from warmroute_proxy.server.stores.store_state import StoreError

    try:
        database = load_config(arguments.config).database
        if database is None:
            raise SecretError(f"{arguments.config} names no database: set dsn_file in [ledger]")
        migrate(load_dsn(database.dsn_file))
    except (ConfigError, SecretError, StoreError) as error:
        print(f"warmroute ledger: {error}", file=sys.stderr)
        return 2
    print(f"the database has schema {REVISIONS[-1]}")
    return 0
