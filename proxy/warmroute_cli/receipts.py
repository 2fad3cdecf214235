"""`warmroute receipts list|show ID`: the newest turns, and one of them in words."""

import json
import sys
from argparse import Namespace
from typing import Any

from rich import box
from rich.table import Table

from warmroute.contract.money import usd
from warmroute_cli.api import ApiError
from warmroute_cli.asking import admin_apis, tenants_api
from warmroute_cli.receipt_words import in_words
from warmroute_cli.usage import console, noted, when
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.secrets import SecretError

DECISIONS = {"limit": "1000"}


def run(arguments: Namespace) -> int:
    """Ask, and print. 0: done, 1: some turns are missing, 2: not done."""
    try:
        return _show(arguments) if arguments.action == "show" else _list(arguments)
    except ApiError as error:
        print(f"warmroute receipts: {error}", file=sys.stderr)
        return 2


def _list(arguments: Namespace) -> int:
    parameters = {"limit": str(arguments.limit)} | ({"since": arguments.since} if arguments.since else {})
    found = tenants_api(arguments).ask("/usage/receipts", parameters, session=arguments.session or "")
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        console().print(_table(found["data"]))
    return 0 if noted(found) else 1


def _show(arguments: Namespace) -> int:
    receipt = tenants_api(arguments).ask(f"/usage/receipts/{arguments.receipt}")
    if arguments.json:
        print(json.dumps(receipt, indent=2))
    else:
        print("\n".join(in_words(receipt, _decision(arguments, receipt))))
    return 0


def _decision(arguments: Namespace, receipt: dict[str, Any]) -> dict[str, Any] | None:
    """The placement of the turn, as long as its proxy remembers it, for whoever has the admin key; else None."""
    region = receipt.get("usage", {}).get("warmroute", {}).get("region")
    try:
        admin = admin_apis(arguments).get(region)
        decisions = admin.ask("/admin/decisions", DECISIONS)["decisions"] if admin is not None else []
    except (ApiError, ConfigError, SecretError):
        return None
    return next((decision for decision in decisions if decision["id"] == receipt["id"]), None)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("receipt", "ended", "model", "session", "region"):
        table.add_column(name, no_wrap=True)
    for name in ("turn", "prompt", "cached", "answer", "cost USD"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome")
    for row in rows:
        words = [row["id"], when(row["settled_at"]), row["model"], row["session"] or "-", row["region"]]
        counts = [f"{row[name]:,}" for name in ("turn", "prompt_tokens", "cached_tokens", "completion_tokens")]
        table.add_row(*words, *counts, usd(row["price_nanousd"]), row["outcome"])
    return table
