"""The `warmroute` command, with a subcommand for each thing that it does.

Each subcommand imports what it needs when it is chosen, so that `warmroute proxy` starts without an OpenAI client and
`warmroute --version` without anything. Exit codes: 0 done, 1 done and a check has failed, 2 not done: a wrong command
line or configuration, or a process that did not start.
"""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from warmroute import __version__
from warmroute.lint import arguments as lint_arguments
from warmroute_cli.arguments import (
    above_zero,
    add_admin,
    add_engines,
    add_ledger,
    add_state_dir,
    add_turns,
    count,
    listed,
    port,
    read_strictly,
)
from warmroute_cli.audit import arguments as audit_arguments
from warmroute_cli.demo import arguments as demo_arguments
from warmroute_cli.directory import arguments as directory_arguments
from warmroute_cli.doctor import arguments as doctor_arguments
from warmroute_cli.doctor import health
from warmroute_cli.installed import missing
from warmroute_cli.launch import arguments as launch_arguments
from warmroute_cli.plan import arguments as plan_arguments
from warmroute_cli.prices import arguments as prices_arguments
from warmroute_cli.replay import arguments as replay_arguments
from warmroute_cli.run import arguments as run_arguments
from warmroute_cli.tables import at_work
from warmroute_cli.top import arguments as top_arguments
from warmroute_proxy import BUILD

NEEDED = {
    "proxy": ("cryptography", "fastapi", "httptools", "msgspec", "rich", "uvloop", "websockets", "xxhash", "zmq"),
    "replay": ("numpy",),
}
"""What the extras install; the SDK needs none of it."""

COLLECT_EVERY = 100_000
"""Allocations between two runs of the garbage collector in a replay, whose objects are hardly ever in cycles."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand."""
    words, passed = run_arguments.split(sys.argv[1:] if argv is None else argv)
    arguments = argparse.Namespace(passed=passed)
    read_strictly(parser(), words, arguments)
    extras = EXTRAS.get(arguments.run, ["proxy"])
    if hint := missing([name for extra in extras for name in NEEDED[extra]], ",".join(extras)):
        print(f"warmroute: {hint}", file=sys.stderr)
        return 2
    try:
        silent = arguments.run in SILENT and getattr(arguments, "watch", None) is None
        with at_work(f"warmroute {words[0]}", sys.stderr) if silent else nullcontext():
            code: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who read the output has had enough; what is left of it goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="warmroute", description="Route agent turns to the engines that have their KV cache."
    )
    found.add_argument("--version", action="version", version=f"warmroute {__version__} ({BUILD})")
    commands = found.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands.add_parser("demo", help="play recorded agent sessions on an embedded fleet, and audit them"))
    _add_up(commands.add_parser("up", help="start the embedded fleet and keep it running until Ctrl-C"))
    run = commands.add_parser("run", help="start a coding agent that is installed here on a proxy, and show its costs")
    run_arguments.add(run)
    _add_fleet(run)
    add_state_dir(run)
    run.set_defaults(run=_run)
    _add_usage(commands.add_parser("usage", help="what turns cost, how much was cached, and why the rest was not"))
    top = commands.add_parser("top", help="the fleet in a terminal: engines, queue, hit ratio, money, newest losses")
    top_arguments.add(top)
    top.set_defaults(run=_top)
    _add_receipts(commands.add_parser("receipts", help="list the newest turns, or explain one in words"))
    lint = commands.add_parser("lint", help="find what breaks the cached prefix in recorded requests")
    lint_arguments.add(lint)
    lint.set_defaults(run=_lint)
    replay = commands.add_parser("replay", help="play a trace on a virtual clock, and compare placements")
    replay_arguments.add(replay)
    replay.set_defaults(run=_replay)
    plan = commands.add_parser("plan", help="plan a deployment of SGLang for a model, GPUs and traffic")
    plan_arguments.add(plan)
    plan.set_defaults(run=_plan)
    launch = commands.add_parser(
        "launch", help="run a node's part of a plan with the proxy in front, and look after it"
    )
    launch_arguments.add(launch)
    launch.set_defaults(run=_launch)
    doctor = commands.add_parser("doctor", help="what this machine has, what a plan or a proxy lacks here, what to do")
    doctor_arguments.add(doctor)
    doctor.set_defaults(run=_doctor)
    audit = commands.add_parser("audit", help="try whether one tenant can tell what another has sent")
    audit_arguments.add(audit)
    audit.set_defaults(run=_audit)
    _add_proxy(commands.add_parser("proxy", help="run one proxy"))
    health.add(commands.add_parser("health", help="ask the proxy of a config on this machine whether it is well"))
    _add_reload(commands.add_parser("reload", help="let a running proxy apply its config file"))
    add_engines(
        commands.add_parser("engines", help="list, drain, undrain or flip the engines of a running proxy"), _engines
    )
    add_ledger(commands.add_parser("ledger", help="the database of the ledger: make or update its tables"), _ledger)
    _add_directory(commands)
    prices_arguments.add(commands.add_parser("prices", help="price books: which are in effect, and further ones"))
    return found


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo_arguments.add(demo)
    add_state_dir(demo)
    demo.set_defaults(run=_demo)


def _add_up(up: argparse.ArgumentParser) -> None:
    _add_fleet(up)
    up.add_argument(
        "--env", action="store_true", help="print only the exports for a shell; of the fleet that runs here"
    )
    add_state_dir(up)
    up.set_defaults(run=_up)


def _add_fleet(command: argparse.ArgumentParser) -> None:
    """How a fleet is started."""
    command.add_argument("--speed", type=above_zero, default=1.0, help="virtual seconds per second (%(default)g)")
    command.add_argument(
        "--port", type=port, metavar="N", help="N and the three after it (those of the last start); 0: free ones"
    )
    command.add_argument("--record", action="store_true", help="keep every decision, for `warmroute replay`")
    command.add_argument(
        "--obey-prompts", action="store_true", help="the engines do what `obey: ...` lines of prompts say"
    )


def _add_usage(usage: argparse.ArgumentParser) -> None:
    add_turns(usage)
    by = ("session", "model", "tenant", "day", "hour")
    usage.add_argument("--by", choices=by, default="model", help="a row for each (%(default)s); tenant: for operators")
    usage.add_argument(
        "--watch", type=above_zero, nargs="?", const=2.0, metavar="SECONDS", help="print it anew each %(const)g s"
    )
    usage.add_argument("--tenant", metavar="NAME", help="for operators: only the turns of this tenant")
    add_admin(usage)
    add_state_dir(usage)
    usage.set_defaults(run=_usage)


def _add_receipts(receipts: argparse.ArgumentParser) -> None:
    actions = receipts.add_subparsers(required=True, metavar="ACTION", dest="action")
    newest = actions.add_parser("list", help="the newest turns")
    add_turns(newest)
    newest.add_argument("--limit", type=listed, default=20, metavar="N", help="how many, at most 200 (%(default)d)")
    show = actions.add_parser("show", help="where one went, why there, what was lost, what it would have cost cold")
    show.add_argument(
        "receipt", metavar="ID", help="its id, as in the header x-warmroute-receipt, or a beginning of it"
    )
    show.add_argument("--json", action="store_true", help="print the receipt as JSON")
    add_admin(show)
    for command in (newest, show):
        add_state_dir(command)
    receipts.set_defaults(run=_receipts)


def _add_proxy(proxy: argparse.ArgumentParser) -> None:
    proxy.add_argument("--config", required=True, metavar="FILE", help="the proxy's TOML file")
    proxy.add_argument("--processes", type=_processes, metavar="N", help="a number, or auto; overrides the file")
    proxy.add_argument("--check", action="store_true", help="check the file, print its errors, and exit")
    proxy.add_argument("--probe", action="store_true", help="with --check: ask all engines and other regions, too")
    proxy.set_defaults(run=_proxy)


def _add_reload(reload: argparse.ArgumentParser) -> None:
    reload.add_argument("--dry-run", action="store_true", help="only say what that would change")
    add_admin(reload)
    add_state_dir(reload)
    reload.set_defaults(run=_reload)


def _add_directory(commands: Any) -> None:
    tenants = commands.add_parser("tenants", help="tenants in the database of the ledger: add, change, remove, import")
    directory_arguments.add_tenants(tenants)
    tenants.set_defaults(run=_tenants)
    keys = commands.add_parser("keys", help="API keys in the database of the ledger: make, rotate, revoke")
    directory_arguments.add_keys(keys, required=True)
    keys.set_defaults(run=_keys)
    key = commands.add_parser("key", help="make an API key and its line of the configuration; else as `keys`")
    key.add_argument("--admin-of", type=Path, metavar="FILE", help="print the admin key of the proxy with this config")
    directory_arguments.add_keys(key, required=False)
    key.set_defaults(run=_key)


def _processes(text: str) -> int | str:
    return text if text == "auto" else count(text)


def _demo(arguments: argparse.Namespace) -> int:
    from warmroute_cli.processes import FleetError

    try:
        if arguments.tight:
            from warmroute_cli.demo import tight

            return tight.run(arguments)
        if arguments.engine == "sglang":
            from warmroute_cli.demo import sglang

            return sglang.run(arguments)
        from warmroute_cli.demo import embedded

        return embedded.run(arguments)
    except FleetError as error:
        return _failed(error)


def _up(arguments: argparse.Namespace) -> int:
    from warmroute_cli import up
    from warmroute_cli.processes import FleetError

    try:
        return up.run(arguments)
    except FleetError as error:
        return _failed(error)


def _run(arguments: argparse.Namespace) -> int:
    from warmroute_cli.processes import FleetError
    from warmroute_cli.run import command

    try:
        return command.run(arguments)
    except FleetError as error:
        return _failed(error)


def _usage(arguments: argparse.Namespace) -> int:
    from warmroute_cli import usage

    return usage.run(arguments)


def _top(arguments: argparse.Namespace) -> int:
    from warmroute_cli.top import command

    return command.run(arguments)


def _receipts(arguments: argparse.Namespace) -> int:
    from warmroute_cli import receipts

    return receipts.run(arguments)


def _lint(arguments: argparse.Namespace) -> int:
    from warmroute.lint import command

    return command.run(arguments)


def _replay(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts a thread for each core, and nothing here uses any
    gc.set_threshold(COLLECT_EVERY)
    from warmroute_cli.replay.command import replay

    return replay(arguments)


def _plan(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(COLLECT_EVERY)
    from warmroute_cli.plan.command import plan

    return plan(arguments)


def _launch(arguments: argparse.Namespace) -> int:
    from warmroute_cli.launch.command import launch

    return launch(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from warmroute_cli.doctor.command import doctor

    return doctor(arguments)


def _audit(arguments: argparse.Namespace) -> int:
    from warmroute_cli.audit import command

    return command.run(arguments)


def _proxy(arguments: argparse.Namespace) -> int:
    from warmroute_proxy.server.main import serve

    if arguments.probe and not arguments.check:
        print("warmroute proxy: --probe goes with --check", file=sys.stderr)
        return 2
    return serve(arguments.config, arguments.check, arguments.processes, probe_servers=arguments.probe)


def _engines(arguments: argparse.Namespace) -> int:
    from warmroute_cli import engines

    if (arguments.action == "list") != (arguments.engine is None):
        print(f"warmroute engines: {arguments.action} takes {'no' if arguments.engine else 'one'} ID", file=sys.stderr)
        return 2
    return engines.run(arguments)


def _reload(arguments: argparse.Namespace) -> int:
    from warmroute_cli import reload

    return reload.run(arguments)


def _ledger(arguments: argparse.Namespace) -> int:
    from warmroute_cli import ledger

    return ledger.run(arguments)


def _keys(arguments: argparse.Namespace) -> int:
    from warmroute_cli.directory import command

    return command.run_keys(arguments)


def _tenants(arguments: argparse.Namespace) -> int:
    from warmroute_cli.directory import command

    return command.run_tenants(arguments)


def _key(arguments: argparse.Namespace) -> int:
    if arguments.action is not None:
        return _keys(arguments)
    from warmroute_cli.directory import config_key

    return config_key.run(arguments)


def _failed(error: Exception) -> int:
    print(f"warmroute: {error}", file=sys.stderr)
    return 2


SILENT = (_plan, _lint, _usage, _receipts, _ledger, _doctor, _reload, prices_arguments.run)
"""The subcommands that print nothing until they are done."""

EXTRAS = {_replay: ["proxy", "replay"], _lint: [], health.run: []}
"""The extras that a subcommand needs, if not `proxy` alone."""


if __name__ == "__main__":
    sys.exit(main())
