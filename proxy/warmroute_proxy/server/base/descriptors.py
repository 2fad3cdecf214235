"""Raises the process's limit of file descriptors, and divides them between clients and its own needs.

At the start the proxy raises its soft limit as far as it needs and the system allows. It then divides the descriptors:
a reserve for engines, the ledger, the admin port and log files comes first, and client connections get the rest. So a
flood of clients cannot take the descriptors with which the proxy serves requests and writes ledger rows.
"""

import resource
from typing import Final, NamedTuple

ADMIN_CONNECTIONS: Final = 24
"""How many connections the admin listener takes."""

RESERVED: Final = 64
"""Descriptors of the process itself: event loop, listeners, ledger, its journal, logs, admin connections."""

PER_ENGINE: Final = 16
"""Connections for probes, KV events and aborts of one engine, besides those that carry requests."""

PER_REQUEST: Final = 3
"""Descriptors of a client connection: its own socket, and those of two requests to engines (prefill and decode)."""


class Division(NamedTuple):
    """How descriptors are divided. `limit`: the soft limit to set; `connections`: the client connections to accept;
    `lowered`: whether `connections` is less than wanted.
    """

    limit: int
    connections: int
    lowered: bool


def divide(soft: int, hard: int, connections: int, engines: int) -> Division:
    """Divide descriptors between `connections` clients and `engines` engines, under the limits of the process.

    Raises `ValueError` if the hard limit leaves no connection at all.
    """
    reserve = RESERVED + PER_ENGINE * engines
    wanted = reserve + PER_REQUEST * connections
    limit = max(soft, min(wanted, hard))
    possible = (limit - reserve) // PER_REQUEST
    if possible < 1:
        raise ValueError(
            f"{limit} file descriptors are too few: {reserve} are needed for {engines} engines, and "
            f"{PER_REQUEST} for each connection; raise the hard limit (ulimit -Hn)"
        )
    return Division(limit, min(connections, possible), possible < connections)


def raise_limit(connections: int, engines: int) -> Division:
    """Raise the soft limit of this process as far as needed, and return the division."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 2**30
    division = divide(hard if soft == resource.RLIM_INFINITY else soft, hard, connections, engines)
    if division.limit > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (division.limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return division
