"""`warmroute keys`: API keys in the database of the ledger, for all proxies that use it."""

import getpass
import socket
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table

from warmroute_cli.installed import missing
from warmroute_cli.ledger import NEEDED
from warmroute_cli.usage import console
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.secrets import SecretError, load_dsn

MAX_NOTE_CHARS: Final = 200


class WrongQuestion(Exception):
    """The command line asks for what there is not."""


def run(arguments: Namespace) -> int:
    """Do it. 0: done, 2: not done."""
    if hint := missing(NEEDED, "postgres"):
        print(f"warmroute: {hint}", file=sys.stderr)
        return 2
    from warmroute_proxy.server.stores.key_admin import NoSuchKey
    from warmroute_proxy.server.stores.store_state import StoreError

    try:
        _do(arguments, load_config(arguments.config))
    except NoSuchKey as error:
        print(f"warmroute keys: there is no good key {error}; `warmroute keys list` shows them", file=sys.stderr)
        return 2
    except (ConfigError, SecretError, StoreError, WrongQuestion) as error:
        print(f"warmroute keys: {error}", file=sys.stderr)
        return 2
    return 0


def _do(arguments: Namespace, config: Config) -> None:
    from warmroute_proxy.server.stores.key_admin import KeyAdmin

    if config.database is None:
        raise WrongQuestion(
            f"{arguments.config} names no database: set dsn_file in [ledger], or put a digest into the config"
            " (`warmroute key` makes one)"
        )
    admin = KeyAdmin(load_dsn(config.database.dsn_file), f"{getpass.getuser()}@{socket.gethostname()}")
    if arguments.action == "make":
        if arguments.tenant not in config.tenant_by_name:
            raise WrongQuestion(f"{arguments.tenant} is no [[tenant]] of {arguments.config}")
        made = admin.make(arguments.tenant, arguments.note[:MAX_NOTE_CHARS], arguments.lifetime)
        print(f"API key {made.id} of {arguments.tenant}, shown once:\n  {made.key}")
    elif arguments.action == "rotate":
        made = admin.rotate(arguments.key, arguments.overlap, arguments.lifetime)
        print(f"API key {made.id} in place of {arguments.key}, shown once:\n  {made.key}")
    elif arguments.action == "revoke":
        tenant = admin.revoke(arguments.key)
        print(f"revoked {arguments.key} of {tenant}; every proxy refuses it within 2 s")
    elif arguments.action == "list":
        _print(("id", "tenant", "state", "made", "expires", "note"), [
            (key.id, key.tenant, key.state, f"{key.made_at:%Y-%m-%d %H:%M}", _when(key.expires_at), key.note)
            for key in admin.keys(arguments.tenant)
        ])  # fmt: skip
    else:
        rows = [(f"{change.at:%Y-%m-%d %H:%M:%S}", *change[1:]) for change in admin.changes()]
        _print(("at (UTC)", "who", "what", "key", "tenant"), rows)


def _when(time: object) -> str:
    return "never" if time is None else f"{time:%Y-%m-%d %H:%M}"


def _print(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console().print(table)
