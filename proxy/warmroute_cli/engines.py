"""`warmroute engines`: lists the engines of a running proxy or fleet, and drains one or flips its role."""

import argparse
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from warmroute_cli.api import Api, ApiError
from warmroute_cli.asking import admin_apis
from warmroute_cli.tables import Column, Row, fitted, width

POLL_EVERY_S: Final = 0.5
FLIP_WAIT_S: Final = 300.0
FLIP_TIMEOUT_S: Final = 310.0
NOTICE_S: Final = 3.0
"""Wait this long after a flip: the proxy's other processes read the role of a draining engine only once a second."""
RESTARTS: Final = frozenset({0, 503})
"""What a call gets while the proxy restarts: no answer, or a 503. A wait goes on."""
ENGINES: Final = "/admin/engines"
COLUMNS: Final = (
    Column("engine"), Column("role"), Column("state"), Column("warm tokens", is_number=True),
    Column("running", is_number=True),
)  # fmt: skip
"""`warm tokens`: the tokens of sessions whose KV the engine keeps; empty for a decode engine, which keeps no KV."""


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Exit status 0: done, 1: not drained in time, 2: not done."""
    if (arguments.action == "list") != (arguments.engine is None):
        print(f"warmroute engines: {arguments.action} takes {'no' if arguments.engine else 'one'} ID", file=sys.stderr)
        return 2
    admins = admin_apis(arguments)
    if arguments.action == "list":
        engines = [engine for admin in admins.values() for engine in admin.ask(ENGINES)["engines"]]
        show(sorted(engines, key=_warmth) if arguments.by == "warmth" else engines)
        return 0
    engine = f"{ENGINES}/{quote(arguments.engine, safe='')}"
    path = f"{engine}/drain"
    admin = _admin_of(admins, path, arguments.engine)
    if arguments.action == "flip":
        return _flip(admin, engine, arguments)
    if arguments.action == "undrain":
        show([admin.ask(path, method="DELETE")])
        return 0
    return _drain(admin, path, arguments.wait)


def show(engines: list[dict[str, Any]]) -> None:
    """Print a line for each engine, and warnings on stderr."""
    rows = [
        Row([engine["id"], engine["role"], _state(engine), _warm(engine), f"{engine['running']:,}"])
        for engine in engines
    ]
    print("\n".join(fitted(COLUMNS, rows, "", width())))
    for engine in engines:
        if "warning" in engine:
            print(f"warning: {engine['warning']}", file=sys.stderr)


def _warmth(engine: Mapping[str, Any]) -> int:
    """How many tokens of sessions' KV a drain would lose; 0 if the proxy does not report them."""
    return int(engine.get("warm_tokens", 0))


def _warm(engine: Mapping[str, Any]) -> str:
    return f"{engine['warm_tokens']:,}" if "warm_tokens" in engine else ""


def _state(engine: Mapping[str, Any]) -> str:
    by = ", ".join(engine["draining_since"])
    return f"{engine['state']} (by the {by})" if by else str(engine["state"])


def _admin_of(admins: Mapping[str, Api], path: str, engine_id: str) -> Api:
    """Find the admin listener whose proxy knows the engine. Raises: ApiError with the regions, if no proxy does."""
    for admin in admins.values():
        try:
            admin.ask(path)
        except ApiError as error:
            if error.status != 404:
                raise
        else:
            return admin
    raise ApiError(f"there is no engine {engine_id!r} in {', '.join(admins)}: `warmroute engines list` names them")


def _flip(admin: Api, engine: str, arguments: argparse.Namespace) -> int:
    """Drain the engine, change its role (prefill or decode) to the other one, and undrain it.

    An engine that refuses the flip, or is not drained in time, is undrained in its old role, even after an error or
    Ctrl-C. Returns 1 if it was not drained in time.
    """
    admin.ask(f"{engine}/flip")
    drain = f"{engine}/drain"
    parameters = {} if arguments.graph_gb is None else {"graph_gb": str(arguments.graph_gb)}
    knows_role = True
    try:
        if _drain(admin, drain, arguments.wait or FLIP_WAIT_S) != 0:
            return 1
        knows_role = False
        found = admin.ask(f"{engine}/flip", parameters, method="POST", timeout_s=FLIP_TIMEOUT_S)
        time.sleep(NOTICE_S)
        knows_role = True
    except ApiError as error:
        knows_role = knows_role or "it keeps its role" in str(error) or error.status == 409
        raise
    finally:
        _end_flip(admin, drain, arguments.engine, undrains=knows_role)
    print(f"{found['id']} is a {found['role']} engine now")
    return 0


def _end_flip(admin: Api, drain: str, engine_id: str, *, undrains: bool) -> None:
    """Undrain the engine, or say on stderr that it still drains."""
    drains = True
    try:
        if undrains:
            show([admin.ask(drain, method="DELETE")])
            drains = False
    finally:
        if drains:
            print(
                f"warmroute engines: {engine_id} still drains: `warmroute engines undrain {shlex.quote(engine_id)}`, "
                "with the options of this command, ends that",
                file=sys.stderr,
            )


def _drain(admin: Api, path: str, wait_s: float | None) -> int:
    engine = admin.ask(path, method="POST")
    show([engine])
    if wait_s is None:
        return 0
    deadline = time.monotonic() + wait_s
    while not engine["drained"]:
        if time.monotonic() > deadline:
            show([engine])
            return 1
        time.sleep(POLL_EVERY_S)
        try:
            engine = admin.ask(path)
        except ApiError as error:
            if error.status not in RESTARTS or time.monotonic() > deadline:
                raise
    print("drained")
    return 0
