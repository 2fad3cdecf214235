"""Who listens on a port of this machine, as far as this user may see it (/proc). Proxy, launcher and doctor say it."""

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_LISTEN: Final = "0A"
"""State of a listening socket in /proc/net/tcp (include/net/tcp_states.h)."""


def is_listening(port: int) -> bool:
    """Whether the system lists a listening socket on a port."""
    return bool(_inodes(port))


def port_owner(port: int) -> str:
    """` by NAME, pid N`, or nothing where that cannot be seen."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    try:
        for process in PROC.iterdir() if wanted else ():
            if process.name.isdecimal() and _has(process, wanted):
                return f" by {(process / 'comm').read_text().strip()}, pid {process.name}"
    except OSError:  # it ended meanwhile
        pass
    return ""


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
