"""Ports for servers that have to be told one: no other process gets them between the choice and the use, or a restart.

A port that the system has assigned, and that is free again, is one that it may assign to the next who asks.
"""

import random
import socket
from typing import Final

PORT_RANGE: Final = (10_000, 32_000)
"""Below those that the system hands out, so that none is taken between the choice and its use."""
_CLAIMS: Final[list[socket.socket]] = []


def free_port() -> int:
    """A port where no process listens."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports that no process of tests was given before, while it lives: a plan names ports, so the system cannot assign
    them. Each is claimed by a name among abstract sockets, which ends with its process.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(*PORT_RANGE)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0warmroute-tests-port-{port}")
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _CLAIMS.append(claim)
        found.append(port)
    return found
