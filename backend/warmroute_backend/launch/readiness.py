"""Tells whether programs can start (they are installed, and their ports are free), and whether they serve."""

import contextlib
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from warmroute_backend.asking import ask
from warmroute_backend.launch.identity import PROC
from warmroute_backend.launch.program import Program

PROBE_TIMEOUT_S: Final = 2.0
ROUTE: Final = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
"""The query to a prefill engine's bootstrap server. If all ranks in it are -1, the answer has facts on all of the
engine's ranks, or is 503 until all of them have registered (`sglang/srt/disaggregation/common/conn.py`,
`_handle_route_get`)."""


def serves(program: Program) -> bool:
    """Whether the program is ready and, for a prefill engine, whether all ranks have registered with its bootstrap
    server. A program without a port is ready once it runs.
    """
    if not program.ready_path:
        port = program.port("http")
        return port is None or listens(program.host, port)
    if ask(program.url + program.ready_path, PROBE_TIMEOUT_S).status != 200:
        return False
    return program.bootstrap_url is None or bool(route(program.bootstrap_url))


def listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), PROBE_TIMEOUT_S):
        return True
    return False


def route(bootstrap_url: str) -> Mapping[str, Any]:
    """The facts on a prefill engine's ranks, from its bootstrap server; empty if ranks are missing or the server does
    not answer.
    """
    return ask(bootstrap_url + ROUTE, PROBE_TIMEOUT_S).fields()


def metrics(url: str) -> str | None:
    """The text of `/metrics`; None if nothing answers, empty if the engine has no metrics."""
    answer = ask(f"{url}/metrics", PROBE_TIMEOUT_S)
    if not answer.status:
        return None
    return answer.body.decode("utf-8", "replace") if answer.status == 200 else ""


def server_info(url: str) -> Mapping[str, Any]:
    """An engine's `/server_info`; empty if the engine does not answer."""
    return ask(f"{url}/server_info", PROBE_TIMEOUT_S).fields()


_LISTEN: Final = "0A"
"""The state of a listening socket in /proc/net/tcp (include/net/tcp_states.h)."""


def unready(programs: Iterable[Program]) -> Iterator[str]:
    taken: dict[int, str] = {}
    for program in programs:
        if shutil.which(program.command[0]) is None:
            text = f"{program.name}: there is no program {program.command[0]} in PATH"
            yield f"{text}: install it, or name the Python beside it by --python"
        for what, port in program.ports:
            if port in taken:
                yield f"{program.name} and {taken[port]} both listen on port {port}: change one in the plan"
            elif is_taken(port):
                text = f"{program.name}: port {port} ({what}) is in use{by_listener(port)}"
                yield f"{text}: end that, or change it in the plan"
            taken[port] = program.name


def is_taken(port: int) -> bool:
    """Whether something listens on a port of this machine, on any address."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # this machine lacks IPv4 or IPv6
            continue
        with listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind((address, port))
                listener.listen(1)
            except OSError:
                return family == socket.AF_INET or is_listening(port)
    return False


def is_listening(port: int) -> bool:
    """Whether the system lists a listening socket on a port."""
    return bool(_inodes(port))


def by_listener(port: int) -> str:
    """The words ` by NAME, pid NUMBER` for the process that listens on a port; empty if this user may not see it."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    with contextlib.suppress(OSError):  # the process ended meanwhile
        for process in PROC.iterdir() if wanted else ():
            if process.name.isdecimal() and _has(process, wanted):
                return f" by {(process / 'comm').read_text().strip()}, pid {process.name}"
    return ""


def _inodes(port: int) -> set[str]:
    """Inodes of listening sockets. A line of /proc/net/tcp has number, local address, remote address and state; the
    tenth column is the inode.
    """
    found = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (PROC / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == _LISTEN and int(local.rpartition(":")[-1], 16) == port:
                found.add(inode)
    return found


def _has(process: Path, sockets: set[str]) -> bool:
    try:
        return any(str(descriptor.readlink()) in sockets for descriptor in (process / "fd").iterdir())
    except OSError:
        return False
