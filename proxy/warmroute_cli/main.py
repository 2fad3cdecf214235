"""The `warmroute` command: the table of its subcommands, and the code that runs one of them.

A subcommand's modules are imported only when it is chosen, so that `warmroute proxy` starts without an OpenAI
client and `warmroute --version` without anything. Exit codes: 0 done, 1 done and a check has failed, 2 not done: a
wrong command line or configuration, or a process that did not start.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, Final, NamedTuple

from warmroute import __version__
from warmroute_cli.arguments import (
    CannotRun,
    add_admin,
    add_ask,
    add_doctor,
    add_engines,
    add_epp,
    add_fleet,
    add_ladder,
    add_ledger,
    add_prices,
    add_proxy,
    add_receipts,
    add_reload,
    add_state_dir,
    add_top,
    add_up,
    add_usage,
    read_strictly,
)  # fmt: skip
from warmroute_cli.installed import missing
from warmroute_cli.loopback import go_direct
from warmroute_cli.run import run_options
from warmroute_cli.tables import at_work
from warmroute_proxy import BUILD

NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "proxy": (
        "cryptography",
        "fastapi",
        "httptools",
        "msgspec",
        "rich",
        "tomli_w",
        "uvloop",
        "websockets",
        "xxhash",
        "zmq",
    ),
    "replay": ("numpy",),
    "epp": ("grpc", "envoy"),
}
"""Packages that the extras install. The SDK needs none of these packages."""

COLLECT_EVERY: Final = 100_000
"""Allocations between two garbage collections in a replay: many, since a replay hardly makes reference cycles."""


class Command(NamedTuple):
    """A subcommand. `arguments`: functions that add its options; `target`: the function that runs it; all may be given
    as `module:function`. `silent`: prints nothing until it is done; `computes`: plays requests on a virtual clock.
    """

    name: str
    help: str
    example: str
    arguments: tuple[Callable[[argparse.ArgumentParser], None] | str, ...]
    target: str
    extras: tuple[str, ...] = ("proxy",)
    silent: bool = False
    computes: bool = False


_FLEET = (add_fleet, add_state_dir)
_RUNNING = (add_admin, add_state_dir)
COMMANDS: Final[Mapping[str, tuple[Command, ...]]] = {
    "Try it here": (
        Command("demo", "play recorded agent sessions on an embedded fleet, and audit them",
            "warmroute demo --sessions 4", ("warmroute_lab.demo.demo:add", add_state_dir),
            "warmroute_lab.demo.demo:run"),
        Command("up", "start the embedded fleet and keep it running until Ctrl-C",
            "warmroute up --port 8000", (add_fleet, add_up, add_state_dir), "warmroute_lab.up:run"),
        Command("run", "start an installed coding agent on a proxy, and show the cost of its turns",
            "warmroute run opencode", (run_options.add, *_FLEET), "run.run:run"),
        Command("lint", "find breaks of the cached prefix in recorded requests",
            "warmroute lint requests.jsonl", ("warmroute.lint.arguments:add",), "warmroute.lint.command:run",
            extras=(), silent=True),
    ),
    "Run a proxy": (
        Command("proxy", "run one proxy",
            "warmroute proxy --config proxy.toml --check", (add_proxy,), "proxy:run"),
        Command("epp", "pick the engines for a gateway, such as Envoy, Istio or kgateway",
            "warmroute epp --config proxy.toml --check", (add_epp,), "proxy:run_picker", extras=("proxy", "epp")),
        Command("reload", "make a running proxy apply its config file",
            "warmroute reload --config proxy.toml --dry-run", (add_reload, *_RUNNING), "reload:run", silent=True),
        Command("health", "check the health of the proxy that a config names",
            "warmroute health --config proxy.toml --ready", ("doctor.health:add",), "doctor.health:run", extras=()),
        Command("conform", "score an endpoint: sessions, cached tokens, isolation, prices, lost fields",
            "warmroute conform http://127.0.0.1:8000 --key-file key",
            ("warmroute_lab.conform.conform:add",), "warmroute_lab.conform.conform:run"),
        Command("audit", "test whether one tenant can detect another's prompts",
            "warmroute audit isolation --base-url http://127.0.0.1:8000 --model m --key-file a --other-key-file b",
            ("warmroute_lab.audit_isolation:add",), "warmroute_lab.audit_isolation:run"),
    ),
    "Tenants and money": (
        Command("usage", "show costs, cached tokens, and the reason for each uncached token",
            "warmroute usage --by session --since today", (add_usage, *_RUNNING), "usage:run", silent=True),
        Command("ladder", "show where cached tokens were lost, from possible to billed, in tokens and USD",
            "warmroute ladder --by model --since today", (add_ladder, add_state_dir), "ladder.ladder:run",
            silent=True),
        Command("receipts", "list the newest turns, or explain one in words",
            "warmroute receipts list --limit 5", (add_receipts,), "receipts:run", silent=True),
        Command("prices", "list price books, and add new ones",
            "warmroute prices list --config proxy.toml", (add_prices,), "prices:run", silent=True),
        Command("tenants", "add, change, remove and import tenants in the ledger database",
            "warmroute tenants add team-a --config proxy.toml",
            ("directory_options:add_tenants",), "directory:run_tenants"),
        Command("keys", "make, rotate and revoke API keys in the ledger database",
            "warmroute keys make team-a --config proxy.toml", ("directory_options:add_keys",), "directory:run_keys"),
        Command("key", "make an API key and its config line; with an action, the same as `keys`",
            "warmroute key", ("directory_options:add_key",), "directory:run_key"),
        Command("ledger", "create or migrate the ledger database, and audit it against the engines",
            "warmroute ledger migrate --config proxy.toml", (add_ledger,), "ledger:run", silent=True),
    ),
    "Engines and the fleet": (
        Command("top", "watch a fleet in the terminal: engines, queue, hit ratio, money, newest losses",
            "warmroute top --config proxy.toml", (add_top,), "top.top:run"),
        Command("ask", "print an answer of the admin port: conditions, admission, metrics",
            "warmroute ask /admin/conditions --config proxy.toml", (add_ask, *_RUNNING), "ask:run", silent=True),
        Command("engines", "list, drain, undrain or flip the engines of a running proxy",
            "warmroute engines drain east-p0 --wait 600 --config proxy.toml", (add_engines, *_RUNNING), "engines:run"),
        Command("embedded", "run one embedded engine: SGLang's protocol over a model of its scheduler",
            "warmroute embedded --port 30000 --model my-model", ("embedded:add",), "embedded:run"),
        Command("doctor", "check this machine for the needs of a plan or a proxy config",
            "warmroute doctor --plan plan.toml", (add_doctor,), "doctor.doctor:doctor", silent=True),
    ),
    "Plan and launch": (
        Command("plan", "plan a deployment of SGLang for a model, GPUs and traffic",
            "warmroute plan --model kimi-k2.5 --gpus 8xH200", ("plan.plan_options:add",), "plan.plan:plan",
            silent=True, computes=True),
        Command("launch", "run and supervise a node's part of a plan, with the proxy in front",
            "warmroute launch plan.toml", ("launch.launch_options:add",), "launch.launch:launch"),
        Command("replay", "replay a trace on a virtual clock, and compare placement policies",
            "warmroute replay --recorded", ("replay.replay_options:add",), "replay.replay:replay",
            extras=("proxy", "replay"), computes=True),
    ),
}  # fmt: skip
"""The subcommands, grouped by task."""


def main(argv: Sequence[str] | None = None) -> int:
    words, passed = run_options.split(sys.argv[1:] if argv is None else argv)
    if not words:
        parser("").print_help(sys.stderr)
        return 2
    arguments = argparse.Namespace(passed=passed)
    read_strictly(parser(words[0]), words, arguments)
    command: Command = arguments.command
    if hint := missing([name for extra in command.extras for name in NEEDED[extra]], ",".join(command.extras)):
        print(f"warmroute: {hint}", file=sys.stderr)
        return 2
    try:
        silent = command.silent and getattr(arguments, "watch", None) is None
        with at_work(f"warmroute {command.name}", sys.stderr) if silent else nullcontext():
            code = _run(command, arguments)
        sys.stdout.flush()
    except CannotRun as error:
        print(f"warmroute: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # nobody reads the pipe any more: discard the rest of the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from warmroute_cli.expected import EXPECTED

        if not isinstance(error, EXPECTED):
            raise
        print(f"warmroute {command.name}: {error}", file=sys.stderr)
        return 2
    return code


def _run(command: Command, arguments: argparse.Namespace) -> int:
    go_direct(os.environ)
    if command.computes:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # otherwise numpy starts a thread per core, unused
        gc.set_threshold(COLLECT_EVERY)
    code: int = _function(command.target)(arguments)
    return code


def _function(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    found: Callable[..., Any] = getattr(
        import_module(module if module.startswith("warmroute") else f"warmroute_cli.{module}"), name
    )
    return found


def parser(name: str | None = None) -> argparse.ArgumentParser:
    """Build the parser for the subcommand `name`. None: for all; an unknown name: for all, without their options."""
    found = _Parser(
        prog="warmroute",
        description="Route agent turns to the engines that have their KV cache.",
        epilog=_by_purpose(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--version", action="version", version=f"warmroute {__version__} ({BUILD})")
    commands = found.add_subparsers(required=True, metavar="COMMAND", help="a command from the list below")
    known = [each for group in COMMANDS.values() for each in group]
    for command in [each for each in known if each.name == name] or known:
        # Without `help`, argparse does not list the subcommand: `_by_purpose` does.
        one = commands.add_parser(
            command.name,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=f"example: {command.example}",
        )
        for add in command.arguments if name in {None, command.name} else ():
            (add if callable(add) else _function(add))(one)
        one.set_defaults(command=command)
    return found


class _Help(argparse.HelpFormatter):
    """Wraps help to the terminal without breaking words: argparse itself breaks `--state-dir` after a hyphen."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return indent + f"\n{indent}".join(self._split_lines(text, width - len(indent)))


class _Parser(argparse.ArgumentParser):
    """A parser that formats its help, and that of its subcommands, by `_Help`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": _Help} | options)


def _by_purpose() -> str:
    lines = []
    width = min(get_terminal_size().columns, 120) - 2
    for purpose, group in COMMANDS.items():
        lines.append(f"{purpose}:")
        for each in group:
            lines += [*_hanging(f"  {each.name:9} ", each.help, width), *_hanging(" " * 12, each.example, width)]
        lines.append("")
    return "\n".join([*lines, "`warmroute COMMAND --help` lists the options of one."])


def _hanging(first: str, text: str, width: int) -> list[str]:
    """Wrap a text that begins after `first` on its line. Further lines are indented."""
    return wrap(
        text, width, initial_indent=first, subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    sys.exit(main())
