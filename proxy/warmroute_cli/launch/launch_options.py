"""The options of `warmroute launch`."""

import argparse
from pathlib import Path

from warmroute_backend.launch.program import ENGINES
from warmroute_cli.arguments import above_zero, count, port

STATE_DIR = Path(".warmroute/launch")
ACTIONS = ("status", "start", "stop", "restart", "starts", "logs")
SHOWN_LINES = 40
STOP_WAIT_S = 600.0


def add(launch: argparse.ArgumentParser) -> None:
    launch.add_argument("what", metavar="PLAN|ACTION", help=f"a plan.toml to run, or an action: {', '.join(ACTIONS)}")
    launch.add_argument("name", nargs="?", metavar="NAME", help="restart, logs: name of the process")
    launch.add_argument("--engine", choices=ENGINES, default="sglang", help="kind of engine to start (%(default)s)")
    launch.add_argument(
        "--state-dir", type=Path, default=STATE_DIR, metavar="DIR", help="folder for state and logs (%(default)s)"
    )
    _add_run(launch.add_argument_group("running a plan"))
    trial = launch.add_argument_group("a trial (--engine embedded, sglang-cpu)")
    trial.add_argument("--port", type=port, default=8000, metavar="N", help="port for clients (%(default)s)")
    trial.add_argument("--admin-port", type=port, default=8001, metavar="N", help="admin port (%(default)s)")
    trial.add_argument(
        "--speed", type=above_zero, default=1.0, help="embedded: virtual seconds per second (%(default)g)"
    )
    actions = launch.add_argument_group("actions")
    actions.add_argument("--json", action="store_true", help="status, starts: print JSON")
    actions.add_argument(
        "--lines", type=count, default=SHOWN_LINES, metavar="N", help="logs: number of lines (%(default)s)"
    )
    actions.add_argument("--follow", action="store_true", help="logs: follow until Ctrl-C")
    actions.add_argument(
        "--wait", type=above_zero, default=STOP_WAIT_S, metavar="S", help="stop, restart: longest wait (%(default)g)"
    )


def _add_run(run: argparse._ArgumentGroup) -> None:
    run.add_argument("--node", type=int, default=0, metavar="N", help="number of this node, from 0 (%(default)s)")
    run.add_argument("--python", default="python3", metavar="FILE", help="Python interpreter with SGLang (%(default)s)")
    run.add_argument(
        "--proxy-config", type=Path, metavar="FILE", help="the proxy's TOML file (default: beside the plan)"
    )
    run.add_argument(
        "--restarts", type=count, default=5, metavar="N", help="restarts of a process per half hour (%(default)s)"
    )
    run.add_argument(
        "--drain-s", type=above_zero, default=300.0, metavar="S", help="longest drain, in seconds (%(default)g)"
    )
    run.add_argument(
        "--nodes-port", type=port, default=0, metavar="N", help="port on which launchers of all nodes report (none)"
    )
    run.add_argument(
        "--wait-for-start", action="store_true", help="with --nodes-port: start when one node's launcher is told to"
    )
    run.add_argument(
        "--secret-file", type=Path, metavar="FILE", help="the fleet's secret, for --nodes-port (default: the proxy's)"
    )
    run.add_argument(
        "--fast-restart", action="store_true", help="keep weights in GPU memory, or pre-sharded in SGLANG_CACHE_DIR"
    )
    run.add_argument(
        "--hang-s", type=above_zero, default=360.0, metavar="S", help="an engine hangs after S seconds (%(default)g)"
    )
    run.add_argument(
        "--on-hang",
        choices=("restart", "report"),
        default="restart",
        help="what an engine that hangs gets (%(default)s)",
    )
