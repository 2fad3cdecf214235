"""The command lines of `warmroute tenants` and `warmroute keys`."""

import argparse
from pathlib import Path

from warmroute_cli.arguments import duration, many

LISTED = 1_000
AUDITED = 100
_SETTING = "KEY=VALUE"


def add_tenants(tenants: argparse.ArgumentParser) -> None:
    actions = tenants.add_subparsers(required=True, metavar="ACTION", dest="action")
    added = actions.add_parser("add", help="add a tenant, with settings of a [[tenant]]: tokens_per_minute=100000")
    changed = actions.add_parser("change", help="change settings; KEY= without a value removes one")
    removed = actions.add_parser("remove", help="refuse a tenant on all proxies at once, and revoke its keys")
    for command in (added, changed, removed):
        command.add_argument("tenant", metavar="NAME")
    added.add_argument("settings", nargs="*", metavar=_SETTING, help="a key of a [[tenant]], with a TOML value")
    changed.add_argument("settings", nargs="+", metavar=_SETTING, help="as for `add`")
    imported = actions.add_parser("import", help="copy the tenants of the file, with their keys, to the database")
    found = actions.add_parser("list", help="list the tenants of the file and of the database")
    _add_page(found, LISTED)
    audit = actions.add_parser("audit", help="list changes, with their authors")
    _add_audit(audit)
    for command in (added, changed, removed, imported, found, audit):
        _add_config(command)


def add_key(key: argparse.ArgumentParser) -> None:
    key.add_argument("--admin-of", type=Path, metavar="FILE", help="print the admin key of the proxy with this config")
    add_keys(key, required=False)


def add_keys(keys: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the actions of `warmroute keys`. `required`: the command line must name an action."""
    actions = keys.add_subparsers(required=required, metavar="ACTION", dest="action")
    made = actions.add_parser("make", help="make a key for a tenant, and show it once")
    made.add_argument("tenant", metavar="TENANT", help="name of a tenant of the file or of the database")
    made.add_argument("--note", default="", metavar="TEXT", help="purpose of the key")
    rotate = actions.add_parser("rotate", help="replace a key; the old one stays valid for --overlap")
    rotate.add_argument(
        "--overlap", type=duration, default="24h", metavar="TIME", help="how long the old key stays valid (%(default)s)"
    )
    revoke = actions.add_parser("revoke", help="refuse a key on all proxies at once")
    for command in (rotate, revoke):
        command.add_argument("key", metavar="ID", help="the id of the key, as `list` shows it")
    for command in (made, rotate):
        command.add_argument(
            "--lifetime", type=duration, metavar="TIME", help="lifetime of the key: 90d, 12h (default: no expiry)"
        )
    found = actions.add_parser("list", help="list all keys by id, never their values")
    found.add_argument("--tenant", metavar="NAME", help="only keys of this tenant")
    _add_page(found, LISTED)
    audit = actions.add_parser("audit", help="list changes, with their authors")
    _add_audit(audit)
    for command in (made, rotate, revoke, found, audit):
        _add_config(command)


def _add_audit(audit: argparse.ArgumentParser) -> None:
    audit.add_argument("--since", metavar="TIME", help="only changes since then: 30m, 1h, 7d, 2026-11-23")
    _add_page(audit, AUDITED)


def _add_page(command: argparse.ArgumentParser, default: int) -> None:
    command.add_argument(
        "--limit", type=many, default=default, metavar="N", help="number of rows, at most 10000 (%(default)d)"
    )


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, required=True, metavar="FILE", help="a proxy's TOML file")
