"""`warmroute up`: the embedded fleet, until Ctrl-C or SIGTERM."""

import time
from argparse import Namespace

from warmroute_cli import state
from warmroute_cli.fleet import Fleet, FleetOptions
from warmroute_cli.processes import FleetError, stopping_on_signals
from warmroute_cli.state import locked_state

LOOK_S = 0.5


def run(arguments: Namespace) -> int:
    """Start the fleet, print how to use it, and wait."""
    options = FleetOptions(speed=arguments.speed)
    with stopping_on_signals(), locked_state(arguments.state_dir) as state_dir:
        run_dir = state_dir / "up"
        try:
            with Fleet(state_dir, run_dir, options) as fleet:
                print(greeting(fleet), flush=True)
                watch(fleet)
        except KeyboardInterrupt:
            print("stopped", flush=True)
    return 0


def greeting(fleet: Fleet) -> str:
    """What a person needs to send the first turn."""
    lines = ["The embedded fleet is up: a model of engines, not an engine.", ""]
    for region, proxy in fleet.proxies.items():
        lines.append(f"{region}: base_url {proxy.base_url}   admin {proxy.admin_url}")
    lines.append(f"admin key: {state.admin_key(fleet.state_dir)}")
    first = next(iter(fleet.proxies.values()))
    lines += [
        f"key:       {fleet.api_key}",
        f"logs:      {fleet.run_dir}",
        "",
        "Try:",
        f"  curl -s {first.base_url}/chat/completions -H 'authorization: Bearer {fleet.api_key}' \\",
        "    -H 'content-type: application/json' \\",
        """    -d '{"model":"m","messages":[{"role":"user","content":"hello"}]}'""",
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def watch(fleet: Fleet) -> None:
    """Stay until a signal comes, or a process is gone that should not be."""
    while True:
        if ended := fleet.ended():
            raise FleetError(f"{', '.join(ended)} ended; logs are in {fleet.run_dir}")
        time.sleep(LOOK_S)
