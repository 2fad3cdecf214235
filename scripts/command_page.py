#!/usr/bin/env python3
"""Writes docs/reference/commands.md from the command line: each command, its options, defaults and an example.

scripts/command_page.py            write the page
scripts/command_page.py --check    exit with 1 if the page is not up to date
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "commands.md"
HEAD: Final = """# All commands

Each command and its options, from `warmroute --help`. Exit codes: 0 done; 1 done, and a check failed; 2 not done.
`scripts/command_page.py` makes this page.
"""
READ_ON: Final = {
    "demo": "../tutorial/first-hour.md",
    "up": "../tutorial/first-hour.md",
    "run": "run.md",
    "lint": "../how-to/lint.md",
    "proxy": "configuration.md",
    "epp": "../how-to/gateway.md",
    "reload": "../how-to/change.md",
    "health": "doctor.md",
    "conform": "conform.md",
    "audit": "isolation.md",
    "usage": "usage.md",
    "ladder": "ladder.md",
    "receipts": "receipt.md",
    "prices": "prices.md",
    "tenants": "../how-to/change.md",
    "keys": "../how-to/change.md",
    "key": "../how-to/change.md",
    "ledger": "../how-to/many-proxies.md",
    "top": "../how-to/page.md",
    "ask": "../how-to/troubleshooting.md",
    "engines": "../how-to/rolling.md",
    "embedded": "../how-to/sglang.md",
    "doctor": "doctor.md",
    "plan": "plan.md",
    "launch": "launch.md",
    "replay": "replay.md",
}
"""Command -> the page that explains it."""


def page() -> str:
    from warmroute_cli.main import COMMANDS, parser

    lines = [HEAD, "| Command | |", "|---|---|"]
    for group in COMMANDS.values():
        lines += [f"| [`{each.name}`](#warmroute-{each.name}) | {each.help} |" for each in group]
    for purpose, group in COMMANDS.items():
        lines += ["", f"## {purpose}"]
        for each in group:
            (commands,) = (a for a in parser(each.name)._actions if isinstance(a, argparse._SubParsersAction))
            lines += ["", f"### warmroute {each.name}", ""]
            lines += [f"{each.help[0].upper()}{each.help[1:]} ([more]({READ_ON[each.name]})).", ""]
            lines += ["```text", each.example, "```"]
            options = list(_options(commands.choices[each.name], ""))
            if each.name == "key":
                options[options.index("", 1) :] = ["", "The actions have the options of [`keys`](#warmroute-keys)."]
            lines += options
    return "\n".join(lines) + "\n"


def _options(command: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """The table of a command's options, then the tables of its subcommands."""
    rows: list[str] = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = [(f"{name} {key}".strip(), each) for key, each in action.choices.items()]
        elif action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            rows.append(_row(command, action))
    if rows:
        title = f"`{name}`: option" if name else "option"
        yield from ("", f"| {title} | |", "|---|---|", *rows)
    for key, each in below:
        yield from _options(each, key)


def _row(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    """A row of the table: an option or argument, and its help with the default."""
    formatter = command._get_formatter()
    value = formatter._format_args(action, _metavar(action)) if action.nargs != 0 else ""
    names = ", ".join(f"{each} {value}".strip() for each in action.option_strings) or value
    words = formatter._expand_help(action) if action.help else ""
    default = (
        "" if action.default in (None, False, argparse.SUPPRESS, [], ()) else f"{action.default}".removesuffix(".0")
    )
    if default and default not in words:
        words = f"{words} ({default})".strip()
    return f"| `{_cell(names)}` | {_cell(words)} |"


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None:
        return f"{{{','.join(map(str, action.choices))}}}"
    return action.dest.upper() if action.option_strings else action.dest


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page would change")
    made = page()
    if parser.parse_args().check:
        return int(not PAGE.exists() or PAGE.read_text() != made)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
