"""`warmroute ledger`: makes or migrates the tables of the database, restores a dump, or compares receipts."""

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from warmroute_cli.installed import missing
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


_PROGRAMS: Final = ("pg_restore", "psql")
_OF_A_DAY: Final = re.compile(rb"DROP (CONSTRAINT|INDEX) ")
"""Statements on the table of one day, which PostgreSQL refuses. Leave them out: dropping the table does their work."""


def restore(arguments: Namespace) -> int:
    """Restore a dump. Exit status 0: restored; 2: the database is unchanged, and the reason is on stderr."""
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    if absent:
        print(f"warmroute ledger: {absent[0]} is missing: install PostgreSQL's client programs", file=sys.stderr)
        return 2
    address, environment = _without_password(dsn_of(arguments))
    taken = _restore(arguments.dump, address, environment)
    print(f"the database is as {arguments.dump} has it" if taken else "nothing was restored", file=sys.stderr)
    return 0 if taken else 2


def _restore(dump: Path, address: str, environment: dict[str, str]) -> bool:
    """Restore in one transaction, which is rolled back if `pg_restore` or `psql` fails. Returns whether both worked."""
    reads = ["pg_restore", "--clean", "--if-exists", "--file", "-", str(dump)]
    writes = ["psql", "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--output", os.devnull, address]
    with subprocess.Popen(reads, stdout=subprocess.PIPE) as source:  # noqa: S603 - a fixed program
        assert source.stdout is not None
        with subprocess.Popen(writes, stdin=subprocess.PIPE, env=environment) as target:  # noqa: S603 - likewise
            assert target.stdin is not None
            try:
                target.stdin.write(b"BEGIN;\n")
                target.stdin.writelines(_statements(source.stdout))
                if source.wait() == 0:
                    target.stdin.write(b"COMMIT;\n")
                target.stdin.close()
            except BrokenPipeError:  # psql has printed the reason
                source.kill()
            return target.wait() == 0 and source.wait() == 0


def _statements(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of the dump, but of those before the first CREATE only lines that do not match `_OF_A_DAY`."""
    dropping = True
    for line in lines:
        dropping = dropping and not line.startswith(b"CREATE ")
        if not (dropping and _OF_A_DAY.search(line)):
            yield line


def _without_password(dsn: str) -> tuple[str, dict[str, str]]:
    """The address without the password, and an environment with it: other users can read command lines."""
    parts = urlsplit(dsn)
    environment = dict(os.environ)
    if parts.password is not None:
        environment["PGPASSWORD"] = unquote(parts.password)
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{host}" if user else host)), environment


NEEDED = ("alembic", "asyncpg", "sqlalchemy")


def operator_name() -> str:
    """The author of a change, as the database notes it."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def run(arguments: Namespace) -> int:
    """Run the action. Exit status 0: done, 1: a difference is beyond the tolerance, 2: not done."""
    if arguments.action == "reconcile":
        from warmroute_cli.reconcile import reconcile

        return reconcile(arguments)
    if arguments.action == "restore":
        return restore(arguments)
    return _migrate(arguments)


def _migrate(arguments: Namespace) -> int:
    if hint := missing(NEEDED, "postgres"):
        print(f"warmroute: {hint}", file=sys.stderr)
        return 2
    from warmroute_proxy.server.stores.migrate import migrate

    print(f"the database has schema {migrate(dsn_of(arguments), expand_only=arguments.expand_only)}")
    return 0
