"""`warmroute reload`: lets a running proxy apply its changed config file, or says what would change."""

import argparse
from typing import Any, Final

from warmroute_cli.asking import admin_apis

PATH: Final = "/admin/reload"
_SIGNS: Final = {"added": "+", "removed": "-", "changed": "~", "moved": "~"}


def run(arguments: argparse.Namespace) -> int:
    """Ask the proxy to reload its config. Exit codes: 0 done, 1 not in force in all processes yet, 2 not done."""
    parameters = {"dry_run": "true"} if arguments.dry_run else {}
    answers = [admin.ask(PATH, parameters, method="POST") for admin in admin_apis(arguments).values()]
    for answer in answers:
        show(answer)
    return int(any(answer.get("processes_behind") for answer in answers))


def show(answer: dict[str, Any]) -> None:
    """Print a line for each change, and one for the outcome."""
    for change in answer["changes"]:
        keys = f": {', '.join(change['keys'])}" if change["keys"] else ""
        moved = " (another order)" if change["change"] == "moved" else ""
        named = f"{change['table']} {change['name']}".rstrip()
        print(f"{_SIGNS[change['change']]} {named}{keys}{moved}")
    if not answer["changes"]:
        print("nothing is changed")
    if answer["waits_for_restart"]:
        print(f"waits for a restart: {', '.join(answer['waits_for_restart'])}")
    if not answer["applied"]:
        print("nothing is applied: this was a dry run")
        return
    behind = answer["processes_behind"]
    late = f"; {behind} have not applied it yet, see the log" if behind else ""
    number = answer["processes"]
    print(f"config {answer['config']} is in force in {number} {'process' if number == 1 else 'processes'}{late}")
