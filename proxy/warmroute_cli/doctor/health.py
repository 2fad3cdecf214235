"""`warmroute health`: whether the proxy of a config answers here, for containers and units that have no curl.

The command asks the proxy's own port on this machine, and reads only that address from the config. An endpoint picker
speaks gRPC on that port. So if the port gives no HTTP answer, the command asks the admin port.
"""

import sys
import tomllib
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

TIMEOUT_S: Final = 4.0
MAX_BYTES: Final = 65_536


def add(parser: ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the proxy's TOML file")
    parser.add_argument("--ready", action="store_true", help="check that it accepts turns, not only that it runs")


def run(arguments: Namespace) -> int:
    """Print the health of the proxy. Status 0: healthy; 1: unhealthy, or no answer; 2: no such config."""
    try:
        proxy = _proxy_table(arguments.config)
    except (OSError, ValueError) as error:
        print(f"warmroute health: {arguments.config}: {error}", file=sys.stderr)
        return 2
    path = "/ready" if arguments.ready else "/health"
    try:
        status, answer = _ask(proxy, path)
    except OSError as error:
        print(f"{path}: no answer: {error or type(error).__name__}")
        return 1
    print(f"{path}: {status} {answer}")
    return 0 if status == 200 else 1


def _proxy_table(config: Path) -> dict[str, Any]:
    table = tomllib.loads(config.read_text()).get("proxy", {})
    if not isinstance(table, dict) or not isinstance(table.get("port"), int) or not table["port"]:
        raise ValueError("[proxy] names no port")
    return table


def _ask(proxy: dict[str, Any], path: str) -> tuple[int, str]:
    try:
        return _get(proxy, "", path, encrypted="tls_cert" in proxy)
    except OSError:
        if not proxy.get("admin_port"):
            raise
        status, answer = _get(proxy, "admin_", path, encrypted=False)
        if status == 401:  # a proxy's admin port requires a key, an endpoint picker's does not
            raise
        return status, answer


def _get(proxy: dict[str, Any], which: str, path: str, *, encrypted: bool) -> tuple[int, str]:
    import http.client

    from warmroute_backend.asking import connection, reachable

    host = reachable(str(proxy.get(f"{which}host", "127.0.0.1")))
    opened = connection(host, proxy[f"{which}port"], TIMEOUT_S, has_tls=encrypted)
    try:
        opened.request("GET", path)
        answer = opened.getresponse()
        return answer.status, answer.read(MAX_BYTES).decode(errors="replace").strip()
    except http.client.HTTPException as error:
        raise OSError(f"no answer of HTTP: {type(error).__name__}") from None
    finally:
        opened.close()
