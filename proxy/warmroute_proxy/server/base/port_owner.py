"""Finds the process that listens on a port of this machine, if this user may see it in /proc."""

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_LISTEN: Final = "0A"


def port_owner(port: int) -> str:
    """` by NAME, pid N`, or an empty string if the process cannot be seen."""
    try:
        wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
        for process in PROC.iterdir() if wanted else ():
            if process.name.isdecimal() and _has(process, wanted):
                return f" by {(process / 'comm').read_text().strip()}, pid {process.name}"
    except OSError:  # the process has ended meanwhile, or the system has no /proc
        pass
    return ""


def _inodes(port: int) -> set[str]:
    """The inodes of sockets that listen on a port.

    The columns of /proc/net/tcp begin with number, local address, remote address and state; the tenth is the inode.
    """
    found = set()
    for table in ("net/tcp", "net/tcp6"):
        if not (PROC / table).exists():
            continue
        for line in (PROC / table).read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == _LISTEN and int(local.rpartition(":")[-1], 16) == port:
                found.add(inode)
    return found


def _has(process: Path, sockets: set[str]) -> bool:
    try:
        return any(str(descriptor.readlink()) in sockets for descriptor in (process / "fd").iterdir())
    except OSError:
        return False
