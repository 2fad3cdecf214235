"""`warmroute ledger`: makes or migrates the tables of the database, restores a dump; compares receipts."""

import sys
from argparse import Namespace

from warmroute_cli.installed import missing
from warmroute_cli.ledger_address import dsn_of
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.secrets import SecretError

NEEDED = ("alembic", "asyncpg", "sqlalchemy")


def run(arguments: Namespace) -> int:
    """Do what is asked. 0: done, 1: a difference is beyond the tolerance, 2: not done."""
    if arguments.action == "reconcile":
        from warmroute_cli.reconcile import reconcile

        return reconcile(arguments)
    if arguments.action == "restore":
        from warmroute_cli.restore import restore

        return restore(arguments)
    return _migrate(arguments)


def _migrate(arguments: Namespace) -> int:
    if hint := missing(NEEDED, "postgres"):
        print(f"warmroute: {hint}", file=sys.stderr)
        return 2
    from warmroute_proxy.server.stores.migrate import migrate
    from warmroute_proxy.server.stores.store_state import StoreError

    try:
        schema = migrate(dsn_of(arguments), expand_only=arguments.expand_only)
    except (ConfigError, SecretError, StoreError) as error:
        print(f"warmroute ledger: {error}", file=sys.stderr)
        return 2
    print(f"the database has schema {schema}")
    return 0
