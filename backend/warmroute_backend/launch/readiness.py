"""What is looked at before anything is started: ports, programs, the model. Each problem is a sentence."""

import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from warmroute_backend.launch.identity import PROC
from warmroute_backend.launch.program import Program

_LISTEN: Final = "0A"
"""State of a listening socket in /proc/net/tcp (include/net/tcp_states.h)."""


def unready(programs: Iterable[Program]) -> Iterator[str]:
    taken: dict[int, str] = {}
    for program in programs:
        if shutil.which(program.command[0]) is None:
            yield f"{program.name}: there is no program {program.command[0]} in PATH: install it, or give its path"
        for what, port in program.ports:
            if port in taken:
                yield f"{program.name} and {taken[port]} both listen on port {port}: change one in the plan"
            elif is_taken(port):
                yield f"{program.name}: port {port} ({what}) is in use{_by(port)}: end that, or change it in the plan"
            taken[port] = program.name


def is_taken(port: int) -> bool:
    """Whether something listens on a port of this machine, on any address."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # no such family here
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


def listener_of(port: int) -> tuple[int, str] | None:
    """Pid and command of who listens on a port, where this user may see it."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not wanted:
        return None
    for process in PROC.iterdir():
        if process.name.isdecimal() and _has(process, wanted):
            name = (process / "comm").read_text().strip()
            return int(process.name), name
    return None


def _by(port: int) -> str:
    try:
        found = listener_of(port)
    except OSError:  # it ended meanwhile
        return ""
    return "" if found is None else f" by {found[1]}, pid {found[0]}"


def _inodes(port: int) -> set[str]:
    """Of listening sockets. /proc/net/tcp has number, local address, remote address, state; the inode is the tenth."""
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
