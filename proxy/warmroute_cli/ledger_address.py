"""Where the database of a command is: the file that its config names, or that the command line does."""

from argparse import Namespace

from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.base.secrets import SecretError, load_dsn


def dsn_of(arguments: Namespace) -> str:
    """The address of the database. Raises: ConfigError, SecretError."""
    if arguments.dsn_file is not None:
        return load_dsn(arguments.dsn_file)
    database = load_config(arguments.config).database
    if database is None:
        raise SecretError(f"{arguments.config} names no database: set dsn_file in [ledger]")
    return load_dsn(database.dsn_file)
