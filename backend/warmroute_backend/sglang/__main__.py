"""`scripts/sglang serve`: start servers, print their addresses as one line of JSON, wait for Ctrl-C or SIGTERM."""

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from warmroute_backend.sglang.command import Role
from warmroute_backend.sglang.installation import NotInstalledError
from warmroute_backend.sglang.server import Server, StartError, wait_all

POLL_S = 1.0


def main() -> int:
    """Serve. Returns 0 if the command was asked to stop, 1 if a server ended unasked, 2 if a server did not start."""
    arguments = _parser().parse_intermixed_args()  # options are also allowed before `--`
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    roles: tuple[Role, ...] = ("prefill", "decode") if arguments.role == "pair" else (arguments.role,)
    servers = [Server(role, folder, flags=arguments.flags, port=arguments.port) for role in roles]
    try:
        return _serve(servers)
    except (NotInstalledError, StartError) as error:
        print(f"scripts/sglang: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    finally:
        for server in servers:
            server.kill()


def _serve(servers: list[Server]) -> int:
    for server in servers:
        server.start()
    print(f"starting {', '.join(server.name for server in servers)}; logs in {servers[0].folder}", file=sys.stderr)
    wait_all(servers)
    addresses: dict[str, Any] = {server.name: server.address() for server in servers}
    print(json.dumps(addresses), flush=True)
    while all(server.running() for server in servers):
        time.sleep(POLL_S)
    ended = next(server for server in servers if not server.running())
    print(f"scripts/sglang: {ended.name} ended{ended.last_words()}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="scripts/sglang serve", description=__doc__)
    found.add_argument("role", choices=("aggregated", "prefill", "decode", "pair", "speculative"))
    found.add_argument("--folder", type=Path, default=Path(".warmroute/sglang"), help="logs, storage (%(default)s)")
    found.add_argument("--port", type=int, default=0, help="of one server; any free one otherwise")
    found.add_argument("flags", nargs="*", metavar="-- FLAG", help="SGLang's own flags, after the usual ones")
    return found


if __name__ == "__main__":
    sys.exit(main())
