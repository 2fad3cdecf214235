"""Runs warmroute under the filter of system calls that systemd would make of a unit's lines `SystemCallFilter`.

`python confined.py LINES ARGUMENT...`: the lines are separated by `;`, and the arguments are those of warmroute.
"""

import ctypes
import errno
import subprocess
import sys
from collections.abc import Iterable, Mapping

from warmroute_cli.main import main

ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | errno.EPERM


def groups() -> dict[str, list[str]]:
    """The members of each of systemd's groups of calls: names of calls and of other groups."""
    done = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("@"):
            members = found.setdefault(line, [])
        elif line.startswith("    ") and "#" not in line:
            members.append(line.strip())
    return found


def calls(names: Iterable[str], known: Mapping[str, list[str]]) -> set[str]:
    """The calls that calls and groups contain."""
    found = set[str]()
    for name in names:
        found |= calls(known[name], known) if name.startswith("@") else {name}
    return found


def confine(lines: Iterable[str]) -> None:
    """Refuse all calls that the lines do not allow, from now on and in children."""
    known = groups()
    allowed = calls(["@default"], known)
    for line in lines:
        named = calls(line.removeprefix("~").split(), known)
        allowed = allowed - named if line.startswith("~") else allowed | named
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    made = ctypes.c_void_p(library.seccomp_init(REFUSE))
    for name in allowed:
        if (number := library.seccomp_syscall_resolve_name(name.encode())) >= 0:  # else of another machine
            assert library.seccomp_rule_add(made, ALLOW, number, 0) == 0, name
    assert library.seccomp_load(made) == 0


if __name__ == "__main__":
    confine(sys.argv[1].split(";"))
    sys.exit(main(sys.argv[2:]))
