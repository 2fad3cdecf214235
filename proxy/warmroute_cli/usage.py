"""`warmroute usage`: what turns cost, how much was cached, and why the rest was not."""

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from warmroute.contract.money import usd
from warmroute_cli.api import ApiError
from warmroute_cli.asking import admin_apis, tenants_api
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.secrets import SecretError

DEFAULT_BY = "model"
WIDTH = 170


def run(arguments: Namespace) -> int:
    """Ask, and print. 0: done, 1: some turns are missing, 2: not done."""
    try:
        found = _ask(arguments)
    except (ApiError, ConfigError, SecretError) as error:
        print(f"warmroute usage: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        console().print(_table(found))
    return 0 if noted(found) else 1


def console() -> Console:
    """The terminal, or a page of fixed width where there is none."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=WIDTH)


def noted(found: Mapping[str, Any]) -> bool:
    """Whether an answer is complete; what is missing is said on the standard error."""
    for region, state in found["regions"].items():
        if state != "counted":
            print(f"warmroute: region {region}: {state}; its turns are missing", file=sys.stderr)
    since = found.get("counted_since")
    if since is not None:
        print(f"warmroute: too many turns: only those since {when(since)} are counted; use --since", file=sys.stderr)
    if left_out := found.get("groups_left_out"):
        print(f"warmroute: the total counts {left_out} more groups, each cheaper than these", file=sys.stderr)
    complete: bool = found["complete"]
    return complete


def when(unix_s: float) -> str:
    """A time as people read it."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def losses_text(losses: Mapping[str, int]) -> str:
    """Loss classes with their tokens, the largest first."""
    return ", ".join(f"{name} {tokens:,}" for name, tokens in sorted(losses.items(), key=lambda loss: -loss[1]))


def _ask(arguments: Namespace) -> dict[str, Any]:
    parameters = {"by": arguments.by} | ({"since": arguments.since} if arguments.since else {})
    session = arguments.session or ""
    if arguments.by == "tenant" or arguments.tenant or arguments.config is not None:
        admin = next(iter(admin_apis(arguments).values()))
        given = {"tenant": arguments.tenant} if arguments.tenant else {}
        return dict(admin.ask("/admin/usage", parameters | given, session=session))
    return dict(tenants_api(arguments).ask("/usage", parameters, session=session))


def _table(found: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(found["by"], no_wrap=True)
    for name in ("turns", "prompt", "cached", "hit", "answer", "cost USD", "saved USD"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("not cached: tokens by class")
    for group in found["groups"]:
        table.add_row(group["key"] or "(none)", *_cells(group))
    table.add_section()
    table.add_row("all", *_cells(found))
    return table


def _cells(sums: Mapping[str, Any]) -> list[str]:
    hit = sums["hit_ratio"]
    counts = [f"{sums[name]:,}" for name in ("turns", "prompt_tokens", "cached_tokens")]
    money = [usd(sums[name]) for name in ("price_nanousd", "saved_nanousd")]
    cells = [*counts, "-" if hit is None else f"{hit:.1%}", f"{sums['completion_tokens']:,}", *money]
    return [*cells, losses_text(sums["losses"] or {})]
