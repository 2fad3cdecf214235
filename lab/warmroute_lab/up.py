"""Runs `warmroute up`: a fleet with embedded (simulated) engines, until Ctrl-C or SIGTERM."""

import json
import socket
import sys
import time
import zlib
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from warmroute_cli import running, state
from warmroute_cli.arguments import DEFAULT_STATE_DIR
from warmroute_cli.installed import called_as
from warmroute_cli.processes import FleetError, stopping_on_signals
from warmroute_cli.running import Address
from warmroute_cli.state import locked_state
from warmroute_lab.fleet import CONTEXT_TOKENS, REGIONS, START_TIMEOUT_S, FleetOptions, LocalFleet, Ports
from warmroute_proxy.server.base.port_owner import port_owner

LOOK_S = 0.5
HERE_FIRST_S = 5.0  # `up`, started at the same moment, has locked the state directory by then
HOST = "127.0.0.1"
FIRST_PORT = 20_000
BLOCKS = 2_500  # blocks of ports to choose from; a block has the ports of one fleet
MODEL = "kimi-k2.5"
OPENCODE = "opencode.json"
MAX_ANSWER_TOKENS = 8_192


def run(arguments: Namespace) -> int:
    """Start the fleet, print how to use it, and wait. With `--env`, start nothing, and print the shell exports for a
    fleet that runs already; `--wait` does so once a fleet runs.
    """
    if arguments.env or arguments.wait:
        return _print_exports(arguments)
    print("starting 2 regions, 8 engines, 2 proxies", flush=True)
    try:
        with stopping_on_signals(), started(arguments.state_dir, arguments) as fleet:
            first = next(iter(fleet.proxies.values()))
            (fleet.state_dir / OPENCODE).write_text(opencode_json(first.url) + "\n", encoding="utf-8")
            print(greeting(fleet), flush=True)
            watch(fleet)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    return 0


def _print_exports(arguments: Namespace) -> int:
    """Returns 0 if the exports were printed, 2 if no fleet runs."""
    found = _awaited(arguments.state_dir) if arguments.wait else running.find_named(arguments.state_dir)
    if found is None:
        hint = f"start `{called_as()} up` in another terminal"
        print(f"warmroute up: no fleet runs in {arguments.state_dir} or another folder: {hint}", file=sys.stderr)
        return 2
    print(exports(found.addresses[0].url, found.api_key))
    return 0


def _awaited(state_dir: Path) -> running.Running | None:
    """The fleet that starts in the state directory, or else another folder's: once nothing has started here for
    `HERE_FIRST_S`, or if nothing here has become a fleet in time.
    """
    now_s = used_s = time.monotonic()
    until_s = now_s + START_TIMEOUT_S
    while (found := running.running_in(state_dir)) is None and now_s < until_s:
        if state.in_use(state_dir):
            used_s = now_s
        elif now_s - used_s >= HERE_FIRST_S and (found := running.find_named(state_dir)) is not None:
            return found
        time.sleep(LOOK_S)
        now_s = time.monotonic()
    return found or running.find_named(state_dir)


@contextmanager
def started(state_dir: Path, arguments: Namespace) -> Iterator[LocalFleet]:
    """Run a fleet in a state directory, where other commands find it until the context ends. Raises: FleetError."""
    with locked_state(state_dir) as held_dir:
        options = FleetOptions(
            speed=arguments.speed,
            ports=_ports(arguments.port, running.kept_ports(held_dir), held_dir),
            record=arguments.record,
            obey_prompts=arguments.obey_prompts,
        )
        with LocalFleet(held_dir, held_dir / "up", options) as fleet:
            running.keep_ports(held_dir, {region: proxy.ports for region, proxy in fleet.proxies.items()})
            addresses = [Address(proxy.region, proxy.url, proxy.admin_url) for proxy in fleet.proxies.values()]
            with running.announced(held_dir, addresses):
                yield fleet


def _ports(first: int | None, kept_ports: Ports, state_dir: Path) -> Ports:
    """Region -> its ports: consecutive ports from `first` on, else the ports of the last start, else free ports."""
    if first is None and kept_ports:
        ports = kept_ports
    elif first:
        ports = _ports_from(first)
    else:
        return _free_ports(state_dir)
    for port in _all(ports):
        if problem := _problem(port):
            hint = "--port N takes N and the three after it, --port 0 takes free ones"
            raise FleetError(f"port {port} cannot be used ({problem}{port_owner(port)}): {hint}")
    return ports


def _free_ports(state_dir: Path) -> Ports:
    """The first free block of ports, searched from a number that depends on the state directory. The ports are below
    the range from which the system gives ports to other programs, so they are likely free at the next start, too.
    """
    begin = zlib.crc32(bytes(state_dir))
    for number in range(BLOCKS):
        ports = _ports_from(FIRST_PORT + (begin + number) % BLOCKS * 2 * len(REGIONS))
        if not any(map(_problem, _all(ports))):
            return ports
    raise FleetError("no ports are free; choose some with --port")


def _ports_from(first: int) -> Ports:
    return {region: (first + 2 * number, first + 2 * number + 1) for number, region in enumerate(REGIONS)}


def _all(ports: Ports) -> list[int]:
    return [port for pair in ports.values() for port in pair]


def _problem(port: int) -> str:
    """Why no process can listen on a port; empty if one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.strerror or type(error).__name__
    return ""


def exports(url: str, key: str) -> str:
    return f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}"


def opencode_json(url: str) -> str:
    """The configuration of OpenCode, which reads the key from the environment."""
    model = {
        "name": "embedded engine",
        "limit": {"context": CONTEXT_TOKENS, "output": MAX_ANSWER_TOKENS},
        "cost": {"input": 0.6, "output": 3, "cache_read": 0.1},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "warmroute",
        "options": {"baseURL": f"{url}/v1", "apiKey": "{env:OPENAI_API_KEY}"},
        "models": {MODEL: model},
    }
    name = f"warmroute/{MODEL}"
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": name,
        "small_model": name,
        "provider": {"warmroute": provider},
    }
    return json.dumps(config, indent=2)


def greeting(fleet: LocalFleet) -> str:
    lines = ["The embedded fleet is up: a model of engines, not an engine.", ""]
    for region, proxy in fleet.proxies.items():
        lines.append(f"{region}: base_url {proxy.base_url}   admin {proxy.admin_url}")
    first = next(iter(fleet.proxies.values()))
    option = "" if fleet.state_dir == DEFAULT_STATE_DIR.absolute() else running.option(fleet.state_dir)
    lines += [
        f"admin key: {state.admin_key(fleet.state_dir)} (opens the page at admin)",
        f"key:       {fleet.api_key}",
        f"logs:      {fleet.run_dir}",
        *[f"record:    {fleet.run_dir / region}.record" for region in fleet.proxies if fleet.options.record],
        "",
        f"In a shell (`{called_as()} up --env{option}` prints this line again):",
        f"  {exports(first.url, fleet.api_key)}",
        "",
        "For OpenCode, in the folder of a project:",
        f"  cp {quote(str(fleet.state_dir / OPENCODE))} .",
        "",
        "Try:",
        f"  curl -s {first.base_url}/chat/completions \\",
        f"    -H 'authorization: Bearer {fleet.api_key}' \\",
        "    -H 'content-type: application/json' -H 'x-session-affinity: my-session' \\",
        f"""    -d '{{"model":"{MODEL}","messages":[{{"role":"user","content":"hello"}}]}}'""",
        f"  {called_as()} usage --session my-session{option}",
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def watch(fleet: LocalFleet) -> None:
    """Wait until a signal comes or a process of the fleet ends."""
    while True:
        if ended := fleet.ended():
            raise FleetError(f"{', '.join(ended)} ended; logs are in {fleet.run_dir}")
        time.sleep(LOOK_S)
